// SPDX-License-Identifier: Apache-2.0

package shard

// #include "callbacks.h"
import "C"

import (
	"context"
	"time"
	"unsafe"
)

// Content is the part of a training state that a call is about.
type Content int32

// The parts of a training state.
const (
	ContentAll       Content = C.SHARD_CONTENT_ALL
	ContentModel     Content = C.SHARD_CONTENT_MODEL // Parameters and buffers.
	ContentOptimizer Content = C.SHARD_CONTENT_OPTIMIZER
)

// StateFilter selects the part of a training state that is saved, loaded or put
// into a state dict. The zero value selects everything.
type StateFilter struct {
	Content      Content
	IgnoreFrozen bool
	Submodules   []ModuleID // Only parameters and buffers in these. Default: all.
	StripPrefix  bool       // Keys have no module path in front; one submodule only.
}

func (a *arguments) filter(f StateFilter) C.shard_state_filter {
	modules := make([]int32, len(f.Submodules))
	for i, module := range f.Submodules {
		modules[i] = int32(module)
	}
	return C.shard_state_filter{
		content:        C.shard_content(f.Content),
		ignore_frozen:  flag(f.IgnoreFrozen),
		submodules:     a.int32s(modules),
		num_submodules: C.size_t(len(modules)),
		strip_prefix:   flag(f.StripPrefix),
	}
}

// SaveOptions are the options of a save. Zero fields have their defaults. The
// same on every rank, but for Timeout, Threads and Progress.
type SaveOptions struct {
	Timeout   time.Duration // For the whole save. Default 30 minutes.
	Filter    StateFilter
	Overwrite bool  // Replaces a checkpoint of this step.
	Threads   int   // Writing threads per rank: 1 to 256. Default 4.
	KeepLast  int64 // After the save, only so many checkpoints stay. Default: all.
	KeepEvery int64 // And those whose step is a multiple of this.
	// Called with this rank's bytes, on another thread, until the save has ended
	// or its engine is closed. An error cancels the save, which returns it.
	Progress func(done, total uint64) error
}

// Save is a save that runs in the background.
type Save struct {
	h        *handle
	guard    *guard    // The engine's.
	progress *callback // May be nil.
}

// runningSave has the objects that a save uses. The engine keeps it until the
// save has ended, whatever becomes of the Save.
type runningSave struct {
	h        *handle
	progress *callback
}

func (r runningSave) free() {
	r.progress.delete()
	r.h.release()
}

// CheckpointSave saves the training state as a checkpoint of its step in root,
// and returns when the checkpoint is durable. Collective.
func CheckpointSave(ctx context.Context, engine *Engine, root string, options *SaveOptions) error {
	_, err := engine.save(ctx, root, options, false)
	return err
}

// CheckpointSaveAsync copies the training state and saves the copy in the
// background. The next save or load waits for it, and so does Close of the
// engine. Collective. The context is that of the call; SaveOptions.Timeout is
// the save's.
func CheckpointSaveAsync(ctx context.Context, engine *Engine, root string, options *SaveOptions) (*Save, error) {
	return engine.save(ctx, root, options, true)
}

func (e *Engine) save(ctx context.Context, root string, options *SaveOptions, async bool) (*Save, error) {
	if err := required("engine", e); err != nil {
		return nil, err
	}
	if options == nil {
		options = &SaveOptions{}
	}
	var in arguments
	defer in.free()
	given := C.shard_save_options{
		struct_size: C.sizeof_shard_save_options,
		timeout:     seconds(options.Timeout),
		filter:      in.filter(options.Filter),
		overwrite:   flag(options.Overwrite),
		threads:     in.int32("Threads", options.Threads),
		keep_last:   C.int64_t(options.KeepLast),
		keep_every:  C.int64_t(options.KeepEvery),
	}
	progress := newProgress(e.h.guard, options.Progress)
	if progress != nil {
		given.progress = C.shard_progress_fn(C.shard_go_progress)
		given.progress_user_data = progress.userData()
	}
	path := in.text("root", root)
	var save *Save
	err := in.result(e.h.collective(ctx, e.state.comm, func(object unsafe.Pointer) error {
		e.state.freeEndedSaves()
		var started *C.shard_save
		output := &started
		if !async {
			output = nil
			given.timeout = timeout(ctx, options.Timeout)
		}
		err := takeError(C.shard_checkpoint_save((*C.shard_engine)(object), path, &given, output))
		if started != nil {
			save = e.state.addSave(started, progress)
		}
		return err
	}))
	if save != nil {
		return save, err
	}
	err = progress.result(err)
	progress.delete()
	return nil, err
}

func (s *engineState) addSave(object *C.shard_save, progress *callback) *Save {
	h := newHandle("save", nil, unsafe.Pointer(object), func() { C.shard_save_free(object) })
	_, _ = h.retain() // A new handle is open.
	s.saves = append(s.saves, runningSave{h, progress})
	return &Save{h, s.comm.guard, progress}
}

// freeEndedSaves gives back what ended saves have used.
func (s *engineState) freeEndedSaves() {
	running := s.saves[:0]
	for _, save := range s.saves {
		if C.shard_save_done((*C.shard_save)(save.h.object)) == 0 {
			running = append(running, save)
		} else {
			save.free()
		}
	}
	s.saves = running
}

// Done returns whether the save has ended, well or not.
func (s *Save) Done() (bool, error) {
	var done bool
	err := s.h.shared(func(object unsafe.Pointer) error {
		done = C.shard_save_done((*C.shard_save)(object)) != 0
		return nil
	})
	return done, err
}

// waitSlice is how long a wait takes at most to see that its context is
// cancelled.
const waitSlice = 50 * time.Millisecond

// Wait waits for the save and returns its result, in every call. A context that
// is done ends the wait, and not the save.
func (s *Save) Wait(ctx context.Context) error {
	if isInCallback(s.guard) {
		return newError(FailedPrecondition, "a progress callback must not wait for its save; return first")
	}
	return s.h.shared(func(object unsafe.Pointer) error {
		save := (*C.shard_save)(object)
		for C.shard_save_done(save) == 0 {
			if err := ctx.Err(); err != nil {
				return withCause(newError(contextCode(err), "the save goes on"), err)
			}
			slice := time.Hour
			if ctx.Done() != nil {
				slice = waitSlice
			}
			// The result comes from the call below.
			C.shard_error_free(C.shard_save_wait(save, timeout(ctx, slice)))
		}
		return s.progress.result(takeError(C.shard_save_wait(save, 0)))
	})
}

// Close releases the handle. The save goes on.
func (s *Save) Close() error {
	if isInCallback(s.guard) {
		// Where the engine is closed, releasing waits for the save, and so for a
		// callback of the save.
		go s.h.close()
		return nil
	}
	return s.h.close()
}
