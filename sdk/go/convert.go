// SPDX-License-Identifier: Apache-2.0

package shard

// #include "callbacks.h"
import "C"

import (
	"context"
	"unsafe"
)

// ConvertOptions are the options of Checkpoint.Convert and Checkpoint.Export.
// Zero fields have their defaults.
type ConvertOptions struct {
	Content       Content
	Overwrite     bool   // Replaces an existing checkpoint or file.
	Threads       int    // 1 to 256. Default 4.
	DType         DType  // That float tensors are converted to. Default: each keeps its own.
	WorldSize     int    // Checkpoints: the number of data files.
	ExpandAliases bool   // Safetensors: tied tensors under each of their names.
	MaxShardBytes uint64 // Safetensors: more than this together become several files.
	// Called with the bytes, on another thread. An error cancels the call, which
	// returns it.
	Progress func(done, total uint64) error
}

// progressFor makes the progress callback of a call without other ranks, which a
// context that is done cancels.
func progressFor(ctx context.Context, progress func(done, total uint64) error) *callback {
	return newProgress(nil, func(done, total uint64) error {
		if err := ctx.Err(); err != nil || progress == nil {
			return err
		}
		return progress(done, total)
	})
}

// VerifyOptions are the options of Checkpoint.Verify. Zero fields have their
// defaults.
type VerifyOptions struct {
	Threads int // 1 to 256. Default 4.
	// Called with the bytes, on another thread. An error cancels the call, which
	// returns it.
	Progress func(done, total uint64) error
}

// Verify reads everything and compares it with its checksums. Options may be nil.
func (c *Checkpoint) Verify(ctx context.Context, options *VerifyOptions) error {
	if options == nil {
		options = &VerifyOptions{}
	}
	var in arguments
	callback := progressFor(ctx, options.Progress)
	defer callback.delete()
	given := C.shard_verify_options{
		struct_size:        C.sizeof_shard_verify_options,
		threads:            in.int32("Threads", options.Threads),
		progress:           C.shard_progress_fn(C.shard_go_progress),
		progress_user_data: callback.userData(),
	}
	return in.result(callback.result(c.do(func(checkpoint *C.shard_checkpoint) *C.shard_error {
		return C.shard_checkpoint_verify(checkpoint, &given)
	})))
}

// Convert writes a checkpoint into root, with another number of files, with other
// types, or from safetensors.
func (c *Checkpoint) Convert(ctx context.Context, root string, options *ConvertOptions) error {
	return c.write(ctx, root, options,
		func(checkpoint *C.shard_checkpoint, root *C.char, options *C.shard_convert_options) *C.shard_error {
			return C.shard_checkpoint_convert(checkpoint, root, options)
		})
}

// Export writes a safetensors file; the path ends in ".safetensors".
func (c *Checkpoint) Export(ctx context.Context, path string, options *ConvertOptions) error {
	return c.write(ctx, path, options,
		func(checkpoint *C.shard_checkpoint, path *C.char, options *C.shard_convert_options) *C.shard_error {
			return C.shard_checkpoint_export(checkpoint, path, options)
		})
}

func (c *Checkpoint) write(ctx context.Context, path string, options *ConvertOptions,
	call func(*C.shard_checkpoint, *C.char, *C.shard_convert_options) *C.shard_error) error {
	if options == nil {
		options = &ConvertOptions{}
	}
	var in arguments
	defer in.free()
	callback := progressFor(ctx, options.Progress)
	defer callback.delete()
	given := C.shard_convert_options{
		struct_size:        C.sizeof_shard_convert_options,
		content:            C.shard_content(options.Content),
		overwrite:          flag(options.Overwrite),
		threads:            in.int32("Threads", options.Threads),
		dtype:              C.shard_dtype(options.DType),
		world_size:         in.int32("WorldSize", options.WorldSize),
		expand_aliases:     flag(options.ExpandAliases),
		max_shard_bytes:    C.uint64_t(options.MaxShardBytes),
		progress:           C.shard_progress_fn(C.shard_go_progress),
		progress_user_data: callback.userData(),
	}
	text := in.text("path", path)
	if in.wrong != nil {
		return in.wrong
	}
	return callback.result(c.h.shared(func(object unsafe.Pointer) error {
		return takeError(call((*C.shard_checkpoint)(object), text, &given))
	}))
}
