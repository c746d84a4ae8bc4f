// SPDX-License-Identifier: Apache-2.0

package shard

// #include "callbacks.h"
import "C"

import (
	"context"
	"time"
	"unsafe"
)

// LoadOptions are the options of a load. Zero fields have their defaults. The
// same on every rank, but for Timeout, Threads and Progress.
type LoadOptions struct {
	Timeout            time.Duration // For the whole load. Default 30 minutes.
	Filter             StateFilter   // The part to load, and the checkpoint's keys.
	AllowMismatch      bool          // Missing and unexpected keys are reported, and no error.
	Convert            bool          // Elements of other types are converted.
	StripLeadingModule bool          // One leading "module." of keys is left out.
	SkipVerify         bool          // Bytes are not compared with their checksums.
	Threads            int           // Reading threads per rank: 1 to 256. Default 4.
	// Called with this rank's bytes, on another thread. An error cancels the
	// load, which returns it.
	Progress func(done, total uint64) error
}

// LoadReport is the result of a load.
type LoadReport struct {
	Step           int64 // The checkpoint's; -1: it has none.
	SavedWorldSize int   // 0: unknown.
	Loaded         int64 // Tensors that were read.
	Converted      int64 // Those among them that were converted.
	Missing        int64 // Keys; Engine.LastLoadReportJSON names them.
	Unexpected     int64
}

// CheckpointLoad loads a checkpoint that any number of ranks saved, or
// safetensors. The path is a checkpoint or a root with checkpoints, whose last
// one is loaded. NotFound, where there is none, leaves the engine as it was.
// Collective.
func CheckpointLoad(ctx context.Context, engine *Engine, path string, options *LoadOptions) (LoadReport, error) {
	var in arguments
	defer in.free()
	text := in.text("path", path)
	report, err := engine.load(ctx, &in, options,
		func(engine *C.shard_engine, options *C.shard_load_options, report *C.shard_load_report) *C.shard_error {
			return C.shard_checkpoint_load(engine, text, options, report)
		})
	return report, in.result(err)
}

// load makes a call that loads training state.
func (e *Engine) load(ctx context.Context, in *arguments, options *LoadOptions,
	call func(*C.shard_engine, *C.shard_load_options, *C.shard_load_report) *C.shard_error) (LoadReport, error) {
	if err := required("engine", e); err != nil {
		return LoadReport{}, err
	}
	if options == nil {
		options = &LoadOptions{}
	}
	given := C.shard_load_options{
		struct_size:          C.sizeof_shard_load_options,
		filter:               in.filter(options.Filter),
		allow_mismatch:       flag(options.AllowMismatch),
		convert:              flag(options.Convert),
		strip_leading_module: flag(options.StripLeadingModule),
		skip_verify:          flag(options.SkipVerify),
		threads:              in.int32("Threads", options.Threads),
	}
	progress := newProgress(e.h.guard, options.Progress)
	defer progress.delete()
	if progress != nil {
		given.progress = C.shard_progress_fn(C.shard_go_progress)
		given.progress_user_data = progress.userData()
	}
	report := C.shard_load_report{struct_size: C.sizeof_shard_load_report}
	err := e.h.collective(ctx, e.state.comm, func(object unsafe.Pointer) error {
		given.timeout = timeout(ctx, options.Timeout)
		err := takeError(call((*C.shard_engine)(object), &given, &report))
		// Ends the state dict too that was loaded, if it is of this engine.
		e.state.changed("a load")
		e.state.initial.end("a load has set parameters")
		return err
	})
	return LoadReport{
		Step:           int64(report.step),
		SavedWorldSize: int(report.saved_world_size),
		Loaded:         int64(report.loaded),
		Converted:      int64(report.converted),
		Missing:        int64(report.missing),
		Unexpected:     int64(report.unexpected),
	}, progress.result(err)
}

// LastLoadReportJSON writes the missing and unexpected keys of the last load
// that succeeded.
func (e *Engine) LastLoadReportJSON() (text string, err error) {
	err = e.h.exclusive(func(object unsafe.Pointer) error {
		text, err = readText(func(buffer *C.char, capacity C.size_t, length *C.size_t) error {
			return takeError(C.shard_engine_last_load_report_json((*C.shard_engine)(object), buffer, capacity, length))
		})
		return err
	})
	return text, err
}

// BlobRule is how a blob is mapped to another world size.
type BlobRule int32

// The rules of blobs.
const (
	BlobPerRank    BlobRule = C.SHARD_BLOB_PER_RANK   // Each rank gets its own, at the same world size.
	BlobReplicated BlobRule = C.SHARD_BLOB_REPLICATED // Every rank gets the blob, the same on all.
	BlobSummed     BlobRule = C.SHARD_BLOB_SUMMED     // int64 numbers that add up over the ranks.
)

// SetBlob sets bytes of the program's that are saved under a name with every
// checkpoint from here on, such as a data loader's position. They are copied.
func (e *Engine) SetBlob(name string, rule BlobRule, data []byte) error {
	var in arguments
	defer in.free()
	text := in.text("name", name)
	return in.result(e.do(func(engine *C.shard_engine) *C.shard_error {
		first := nonEmpty(data)
		return C.shard_engine_set_blob(engine, text, C.shard_blob_rule(rule), unsafe.Pointer(&first[0]),
			C.size_t(len(data)))
	}))
}

// Blob gets a copy of a blob that was set or loaded.
func (e *Engine) Blob(name string) ([]byte, error) {
	var in arguments
	defer in.free()
	text := in.text("name", name)
	var copied []byte
	err := in.result(e.h.exclusive(func(object unsafe.Pointer) error {
		var data unsafe.Pointer
		var bytes C.size_t
		err := takeError(C.shard_engine_blob((*C.shard_engine)(object), text, &data, &bytes))
		copied = append(copied, unsafe.Slice((*byte)(data), int(bytes))...)
		return err
	}))
	return copied, err
}
