// SPDX-License-Identifier: Apache-2.0

package shard

// #include "shard/shard.h"
import "C"

import (
	"context"
	"unsafe"
)

// AddParamGroup gives parameters, which are frozen or in the default group, a
// group of their own; they become trainable. It replaces the plan: all views of
// parameters and gradients end. Collective.
func (e *Engine) AddParamGroup(ctx context.Context, optimizer string, params []ParamID) (GroupID, error) {
	var in arguments
	defer in.free()
	var group C.int32_t
	text := in.text("optimizer", optimizer)
	err := in.result(e.replan(ctx, "AddParamGroup", func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_add_param_group(engine, text, ids(params), C.size_t(len(params)),
			timeout(ctx, 0), &group)
	}))
	return GroupID(group), err
}

// SetTrainable freezes or trains parameters from here on, by a new plan as
// AddParamGroup does. Collective.
func (e *Engine) SetTrainable(ctx context.Context, params []ParamID, trainable bool) error {
	return e.replan(ctx, "SetTrainable", func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_set_trainable(engine, ids(params), C.size_t(len(params)), flag(trainable),
			timeout(ctx, 0))
	})
}

// replan makes a call that replaces the plan. A call that fails may have replaced
// it on this rank; only a wrong argument or state leaves all as it was.
func (e *Engine) replan(ctx context.Context, what string, call func(engine *C.shard_engine) *C.shard_error) error {
	return e.h.collective(ctx, e.state.comm, func(object unsafe.Pointer) error {
		engine := (*C.shard_engine)(object)
		err := takeError(call(engine))
		switch CodeOf(err) {
		case InvalidArgument, FailedPrecondition, NotFound:
			return err
		}
		e.state.plan.end(what + " has replaced the plan")
		if taken := e.state.takePlan(engine); err == nil {
			err = taken
		}
		return err
	})
}
