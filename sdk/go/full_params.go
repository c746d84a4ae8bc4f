// SPDX-License-Identifier: Apache-2.0

package shard

// #include "shard/shard.h"
import "C"

import "context"

// FullParams are whole private copies of parameters, on one rank or on all, in the
// host's memory on every device. The engine's own parameters stay as they are until
// End, so a rank that fails in between has changed nothing. Meanwhile Param,
// WritableParam and End are the only calls on the engine that are allowed.
//
//	full, err := engine.Summon(ctx, 0, -1)
//	if err != nil { ... }
//	defer full.Close()
//	... full.Param(id) ...
//	err = full.End(ctx, false)
//
// End is collective: a rank that returns early would leave the others waiting.
// The deferred Close comes to them in that case.
type FullParams struct {
	engine *Engine
	life   *lifetime
}

// Summon makes whole copies of the parameters in a module (0: all) and below, on
// one rank or, with -1, on all ranks. Collective.
func (e *Engine) Summon(ctx context.Context, module ModuleID, rank int) (*FullParams, error) {
	var in arguments
	on := in.int32("rank", rank)
	var full *FullParams
	err := in.result(e.collective(ctx, "Summon", func(engine *C.shard_engine) *C.shard_error {
		err := C.shard_engine_summon(engine, C.int32_t(module), on, timeout(ctx, 0))
		if err == nil {
			e.state.summoned = newLifetime(e.state.plan)
			full = &FullParams{e, e.state.summoned}
		}
		return err
	}))
	return full, err
}

// Param gets a view of a copy, to read. It ends with End.
func (f *FullParams) Param(id ParamID) (View, error) { return f.view(id, param) }

// WritableParam gets a view of a copy, to write. It ends with End.
func (f *FullParams) WritableParam(id ParamID) (View, error) { return f.view(id, writableParam) }

func (f *FullParams) view(id ParamID, get tensor) (View, error) {
	return f.engine.view(id, get, func(types paramTypes) (DType, *lifetime, error) {
		return types.dtype, f.life, f.check()
	})
}

// check returns an error after End. REQUIRES: the guard.
func (f *FullParams) check() error {
	if reason := f.life.over(); reason != "" {
		return newError(FailedPrecondition, "there are no copies of full parameters any more: %s; summon them "+
			"again", reason)
	}
	return nil
}

// End frees the copies. With writeBack they are first written to the parameters:
// the same on every rank. Collective.
func (f *FullParams) End(ctx context.Context, writeBack bool) error {
	return f.engine.endSummon(ctx, f, writeBack)
}

// Close is End without writing back, with the engine's timeout; nothing after
// End. It is collective where it ends the copies.
func (f *FullParams) Close() error {
	if f.life.over() != "" {
		return nil
	}
	return f.End(context.Background(), false)
}

func (e *Engine) endSummon(ctx context.Context, full *FullParams, writeBack bool) error {
	var ended error
	err := e.collective(ctx, "the end of Summon", func(engine *C.shard_engine) *C.shard_error {
		if ended = full.check(); ended != nil {
			return nil
		}
		err := C.shard_engine_summon_end(engine, flag(writeBack), timeout(ctx, 0))
		if err == nil {
			full.life.end("End has freed them")
			e.state.summoned = nil
		}
		return err
	})
	if ended != nil {
		return ended
	}
	return err
}
