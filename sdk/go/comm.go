// SPDX-License-Identifier: Apache-2.0

package shard

// #include "callbacks.h"
import "C"

import (
	"context"
	"time"
	"unsafe"
)

// LogLevel is the level of a log message.
type LogLevel int32

// The levels of log messages.
const (
	LogError   LogLevel = C.SHARD_LOG_ERROR
	LogWarning LogLevel = C.SHARD_LOG_WARNING
	LogInfo    LogLevel = C.SHARD_LOG_INFO
	LogDebug   LogLevel = C.SHARD_LOG_DEBUG
)

// CommOptions are the options of CommOpen. Zero fields have their defaults.
type CommOptions struct {
	// This rank and the number of ranks, where the URL does not give them. Rank
	// is ignored as long as WorldSize is 0.
	Rank      int
	WorldSize int
	// How long to wait for the other ranks to come, and the default of every
	// later wait. Default 60 seconds.
	Timeout time.Duration
	// Receives log messages, from any goroutine or thread. Default: no logging.
	Log func(level LogLevel, message string)
	// The most verbose level that is logged. Default LogWarning.
	LogLevel LogLevel
	// The path of a trace that the ranks of a host write together; Perfetto opens
	// it. A run that finds the file in use writes another one: "trace.json" is
	// "trace.2.json" then. SHARD_TRACE of the environment overrides the path.
	// Default: none.
	Trace string
	// The path of the counters in the text format of Prometheus. Each rank has its
	// own: "shard.prom" is "shard.rank0.prom" on rank 0, and "shard.rank0.2.prom"
	// where that file is in use. SHARD_METRICS of the environment overrides the
	// path. Default: none.
	Metrics string
	// The path of the last collectives, which `shardctl triage` reads when a
	// collective has failed. Each rank has its own, as that of Metrics. SHARD_DUMP
	// of the environment overrides the path. Default: none.
	Dump string
}

// Counter has the totals of an event on a rank since the communicator was opened.
type Counter struct {
	Calls, Errors, Bytes uint64
	Seconds              float64
}

// Comm is the ranks of a run. shard/comm.h documents the transports.
type Comm struct {
	h                         *handle
	rank, worldSize           int
	localRank, localWorldSize int
}

// CommOpen meets the other ranks. It is collective, and waits at most for the
// timeout of the options: nothing else ends the wait. Options may be nil.
func CommOpen(url string, options *CommOptions) (*Comm, error) {
	if err := checkLibrary(); err != nil {
		return nil, err
	}
	if options == nil {
		options = &CommOptions{}
	}
	var in arguments
	defer in.free()
	g := &guard{}
	given := C.shard_comm_options{
		struct_size: C.sizeof_shard_comm_options,
		rank:        in.int32("Rank", options.Rank),
		world_size:  in.int32("WorldSize", options.WorldSize),
		timeout:     seconds(options.Timeout),
		log_level:   C.shard_log_level(options.LogLevel),
		trace:       in.option("Trace", options.Trace),
		metrics:     in.option("Metrics", options.Metrics),
		dump:        in.option("Dump", options.Dump),
	}
	if options.Log != nil {
		g.log = (&callback{name: "log", guard: g, log: options.Log}).register()
		given.log = C.shard_log_fn(C.shard_go_log)
		given.log_user_data = g.log.userData()
	}
	var object *C.shard_comm
	err := in.result(takeError(C.shard_comm_open(in.text("URL", url), &given, &object)))
	err = g.result(err)
	if err != nil {
		C.shard_comm_free(object)
		g.log.delete()
		return nil, err
	}
	return &Comm{
		// Engines on the communicator hold it open, so that the log callback
		// lives as long as any of them.
		h: newHandle("communicator", g, unsafe.Pointer(object), func() {
			C.shard_comm_free(object)
			g.log.delete()
		}),
		rank:           int(C.shard_comm_rank(object)),
		worldSize:      int(C.shard_comm_world_size(object)),
		localRank:      int(C.shard_comm_local_rank(object)),
		localWorldSize: int(C.shard_comm_local_world_size(object)),
	}, nil
}

// Rank returns this rank, also after Close, as do the next three.
func (c *Comm) Rank() int { return c.rank }

// WorldSize returns the number of ranks.
func (c *Comm) WorldSize() int { return c.worldSize }

// LocalRank returns this rank's number among the ranks of its host.
func (c *Comm) LocalRank() int { return c.localRank }

// LocalWorldSize returns the number of ranks on this host.
func (c *Comm) LocalWorldSize() int { return c.localWorldSize }

// Describe returns one line for people: transport, rank, world size, and where
// they came from.
func (c *Comm) Describe() (line string, err error) {
	if _, err := c.h.open(); err != nil {
		return "", err
	}
	err = c.h.brief(func(object unsafe.Pointer) error {
		var text *C.char
		err := takeError(C.shard_comm_describe((*C.shard_comm)(object), &text))
		// The text is the communicator's, which may be freed after this call.
		line = C.GoString(text)
		return err
	})
	return line, err
}

// Counter gets the counter of an event, such as "step" or "reduce_scatter"; the
// error of another name lists all. It may be called while another goroutine is in
// a collective.
func (c *Comm) Counter(event string) (Counter, error) {
	counter := C.shard_counter{struct_size: C.sizeof_shard_counter}
	if _, err := c.h.open(); err != nil {
		return Counter{}, err
	}
	var in arguments
	defer in.free()
	name := in.text("event", event)
	err := c.h.brief(func(object unsafe.Pointer) error {
		return in.result(takeError(C.shard_comm_counter((*C.shard_comm)(object), name, &counter)))
	})
	if err != nil {
		return Counter{}, err
	}
	return Counter{uint64(counter.calls), uint64(counter.errors), uint64(counter.bytes), float64(counter.seconds)}, nil
}

// Metrics writes all counters in the text format of Prometheus. It may be called
// while another goroutine is in a collective.
func (c *Comm) Metrics() (text string, err error) {
	if _, err := c.h.open(); err != nil {
		return "", err
	}
	err = c.h.brief(func(object unsafe.Pointer) error {
		text, err = readText(func(buffer *C.char, capacity C.size_t, length *C.size_t) error {
			return takeError(C.shard_comm_metrics((*C.shard_comm)(object), buffer, capacity, length))
		})
		return err
	})
	return text, err
}

// Dump writes the last 1,024 collectives of this rank as JSON, which
// `shardctl triage` reads. It may be called while another goroutine is in a
// collective.
func (c *Comm) Dump() (text string, err error) {
	if _, err := c.h.open(); err != nil {
		return "", err
	}
	err = c.h.brief(func(object unsafe.Pointer) error {
		text, err = readText(func(buffer *C.char, capacity C.size_t, length *C.size_t) error {
			return takeError(C.shard_comm_dump((*C.shard_comm)(object), buffer, capacity, length))
		})
		return err
	})
	return text, err
}

// Barrier waits until every rank has called it. Collective.
func (c *Comm) Barrier(ctx context.Context) error {
	return c.h.collective(ctx, c.h, func(object unsafe.Pointer) error {
		return takeError(C.shard_comm_barrier((*C.shard_comm)(object), timeout(ctx, 0)))
	})
}

// Sum replaces each value by its sum over the ranks, the same bits on all of
// them. For losses and counts: at most 2^20 values. Collective.
func (c *Comm) Sum(ctx context.Context, values []float64) error {
	return c.h.collective(ctx, c.h, func(object unsafe.Pointer) error {
		var first *C.double
		if len(values) > 0 {
			first = (*C.double)(unsafe.Pointer(&values[0]))
		}
		return takeError(C.shard_comm_sum((*C.shard_comm)(object), first, C.size_t(len(values)), timeout(ctx, 0)))
	})
}

// CheckDevice checks that GPUs move tensors between the ranks by NCCL. device is
// this rank's own GPU, such as "cuda:0". An error of NCCL ends the communicator.
// Collective.
func (c *Comm) CheckDevice(ctx context.Context, device string) error {
	var in arguments
	defer in.free()
	return c.h.collective(ctx, c.h, func(object unsafe.Pointer) error {
		return in.result(takeError(C.shard_comm_check_device((*C.shard_comm)(object), in.text("device", device), timeout(ctx, 0))))
	})
}

// Broadcast copies rank root's data to the data of all other ranks, which has as
// many bytes there. Collective.
func (c *Comm) Broadcast(ctx context.Context, data []byte, root int) error {
	var in arguments
	return c.h.collective(ctx, c.h, func(object unsafe.Pointer) error {
		first := nonEmpty(data)
		return in.result(takeError(C.shard_comm_broadcast((*C.shard_comm)(object),
			unsafe.Pointer(&first[0]), C.size_t(len(data)), in.int32("root", root), timeout(ctx, 0))))
	})
}

// Abort ends the group from one side: every current or next collective of each
// rank is an error with the reason. It never waits, and may be called while
// another goroutine is in a collective, and from callbacks.
func (c *Comm) Abort(reason string) error {
	if _, err := c.h.open(); err != nil {
		return err
	}
	return c.h.brief(func(object unsafe.Pointer) error { return abort(object, reason) })
}

func abort(comm unsafe.Pointer, reason string) error {
	var in arguments
	defer in.free()
	return in.result(takeError(C.shard_comm_abort((*C.shard_comm)(comm), in.text("reason", reason))))
}

// Shutdown ends the group with a last barrier, so that no rank takes another's
// leaving for a death. Collective. Close the communicator afterwards.
func (c *Comm) Shutdown(ctx context.Context) error {
	return c.h.collective(ctx, c.h, func(object unsafe.Pointer) error {
		return takeError(C.shard_comm_shutdown((*C.shard_comm)(object), timeout(ctx, 0)))
	})
}

// Close frees the communicator; engines on it keep what they need. Local.
func (c *Comm) Close() error { return c.h.close() }
