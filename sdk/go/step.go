// SPDX-License-Identifier: Apache-2.0

package shard

// #include "shard/shard.h"
import "C"

import (
	"context"
	"time"
	"unsafe"
)

// StepOptions is how a step treats the gradients: the same on every rank. Zero
// fields have their defaults.
type StepOptions struct {
	MaxGradNorm   float64 // Bounds the global norm. Default: no clipping.
	GradDivisor   float64 // Divides the sum of the ranks' gradients. Default: the world size.
	LossScale     float64 // The factor that the loss was multiplied by.
	SkipNonfinite bool    // Skips the step, on all ranks, when a gradient is not finite.
	AverageActive bool    // Divides by the number of ranks that have not joined.
	GradNormType  float64 // 1, 2, any p, or infinity. Default 2.
	ClipValue     float64 // Bounds every element of the averaged gradient.
}

// StepReport is the results and the times of a step; shard_step_report in
// shard/engine.h documents each.
type StepReport struct {
	Step              int64         // Steps done so far, skipped ones not counted.
	GradNorm          float64       // Before clipping; -1: not computed.
	Skipped           bool          // Gradients were not finite; parameters are as before.
	ActiveRanks       int           // Ranks that have not joined.
	BytesMoved        uint64        // Read and written by this rank's kernels.
	TimeWait          time.Duration // The time of waiting for other ranks.
	TimeReduce        time.Duration // Sum and norm; 0 in the one-pass form.
	TimeUpdate        time.Duration // Update and publish; with the sum in one pass.
	TimeTotal         time.Duration
	LossScale         float64       // This step divided the gradients by it.
	BytesCommunicated uint64        // Bytes of tensors that this rank has sent since the step before.
	BytesOverlapped   uint64        // Those that were through before the program waited for them.
	TimeCommunication time.Duration // The transfers' time.
	TimeExposed       time.Duration // The time that the program waited for them.
}

func stepOptions(ctx context.Context, options *StepOptions) *C.shard_step_options {
	if options == nil {
		options = &StepOptions{}
	}
	return &C.shard_step_options{
		struct_size:    C.sizeof_shard_step_options,
		max_grad_norm:  C.double(options.MaxGradNorm),
		grad_divisor:   C.double(options.GradDivisor),
		loss_scale:     C.double(options.LossScale),
		timeout:        timeout(ctx, 0),
		skip_nonfinite: flag(options.SkipNonfinite),
		average_active: flag(options.AverageActive),
		grad_norm_type: C.double(options.GradNormType),
		clip_value:     C.double(options.ClipValue),
	}
}

func duration(seconds C.double) time.Duration {
	return time.Duration(float64(seconds) * float64(time.Second))
}

// Step reduces the gradients of all ranks, updates the parameters, and publishes
// them. Options may be nil. Collective.
func (e *Engine) Step(ctx context.Context, options *StepOptions) (StepReport, error) {
	report := C.shard_step_report{struct_size: C.sizeof_shard_step_report}
	err := e.collective(ctx, "a step", func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_step(engine, stepOptions(ctx, options), &report)
	})
	return stepReport(&report), err
}

// StepWithoutReport is Step. On a device with streams it may return once the step is
// enqueued: after SetStream.
func (e *Engine) StepWithoutReport(ctx context.Context, options *StepOptions) error {
	return e.collective(ctx, "a step", func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_step(engine, stepOptions(ctx, options), nil)
	})
}

// LastReport gets the report of the last finished step. It is FailedPrecondition
// before the first step.
func (e *Engine) LastReport() (StepReport, error) {
	report := C.shard_step_report{struct_size: C.sizeof_shard_step_report}
	err := e.do(func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_last_report(engine, &report)
	})
	return stepReport(&report), err
}

// DeviceKind is where tensors lie, in the codes of DLPack.
type DeviceKind int32

const (
	DeviceCPU  DeviceKind = C.SHARD_DEVICE_CPU  // The host's memory.
	DeviceCUDA DeviceKind = C.SHARD_DEVICE_CUDA // A GPU's.
)

// Device gets where the engine's tensors lie: the kind, and the number of the device
// among those of its kind.
func (e *Engine) Device() (DeviceKind, int, error) {
	var kind C.shard_device_kind
	var ordinal C.int32_t
	err := e.do(func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_device(engine, &kind, &ordinal)
	})
	return DeviceKind(kind), int(ordinal), err
}

// JSON describes how the engine works, for programs: engine.h has the keys.
func (e *Engine) JSON() (text string, err error) {
	err = e.h.exclusive(func(object unsafe.Pointer) error {
		text, err = readText(func(buffer *C.char, capacity C.size_t, length *C.size_t) error {
			return takeError(C.shard_engine_json((*C.shard_engine)(object), buffer, capacity, length))
		})
		return err
	})
	return text, err
}

// SetStream sets the stream on which the program enqueues its own work, in the
// device's own form; nil is the device's usual one. The stream must live until the
// engine is closed, or another one is set.
func (e *Engine) SetStream(stream unsafe.Pointer) error {
	return e.do(func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_set_stream(engine, stream)
	})
}

// CaptureBegin begins a capture: until CaptureEnd, ZeroGrad and one
// StepWithoutReport become part of the CUDA graph that the program captures on the
// stream of SetStream. Several ranks need NCCL.
func (e *Engine) CaptureBegin() error {
	return e.do(func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_capture_begin(engine)
	})
}

// CaptureEnd ends the capture; call it before the program ends its own. Collective
// where several ranks have captured a step.
func (e *Engine) CaptureEnd() error {
	return e.do(func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_capture_end(engine)
	})
}

// BeforeReplay gives the captured step the values of the next one: before each
// launch of the graph. It waits for the step before. Options may be nil. Collective.
func (e *Engine) BeforeReplay(ctx context.Context, options *StepOptions) error {
	return e.collective(ctx, "BeforeReplay", func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_before_replay(engine, stepOptions(ctx, options))
	})
}

// Synchronize waits until everything that the engine was given has run. A deadline
// of the context bounds the wait.
func (e *Engine) Synchronize(ctx context.Context) error {
	return e.do(func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_synchronize(engine, timeout(ctx, 0))
	})
}

func stepReport(report *C.shard_step_report) StepReport {
	return StepReport{
		Step:              int64(report.step),
		GradNorm:          float64(report.grad_norm),
		Skipped:           report.skipped != 0,
		ActiveRanks:       int(report.active_ranks),
		BytesMoved:        uint64(report.bytes_moved),
		TimeWait:          duration(report.seconds_wait),
		TimeReduce:        duration(report.seconds_reduce),
		TimeUpdate:        duration(report.seconds_update),
		TimeTotal:         duration(report.seconds_total),
		LossScale:         float64(report.loss_scale),
		BytesCommunicated: uint64(report.bytes_communicated),
		BytesOverlapped:   uint64(report.bytes_overlapped),
		TimeCommunication: duration(report.seconds_communication),
		TimeExposed:       duration(report.seconds_exposed),
	}
}

// BeginStep announces the options of the next step before the backward pass, so
// that each unit is updated as soon as its gradients are ready. Optional.
// Collective.
func (e *Engine) BeginStep(ctx context.Context, options *StepOptions) error {
	return e.collective(ctx, "BeginStep", func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_begin_step(engine, stepOptions(ctx, options))
	})
}

// Join takes part in the steps of the other ranks, with gradients of zero, until
// every rank has joined, and returns the number of these steps. The engine's
// timeout is that of each wait; a deadline of the context bounds the whole call.
// Collective.
func (e *Engine) Join(ctx context.Context) (int64, error) {
	var steps C.int64_t
	err := e.collective(ctx, "Join", func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_join(engine, 0, &steps)
	})
	return int64(steps), err
}
