// SPDX-License-Identifier: Apache-2.0

package shard

// #include "shard/shard.h"
import "C"

import (
	"context"
	"unsafe"
)

// Pass is the pass that a unit is acquired for.
type Pass int32

// The passes.
const (
	PassForward  Pass = C.SHARD_PASS_FORWARD
	PassBackward Pass = C.SHARD_PASS_BACKWARD
	// As PassBackward, but the unit's gradients do not start as zeros: the
	// program writes every element.
	PassBackwardOverwrite Pass = C.SHARD_PASS_BACKWARD_OVERWRITE
)

// unitLifetimes are those of an acquisition.
type unitLifetimes struct {
	params *lifetime // Until the release.
	grads  *lifetime // Until they are declared ready, or the release.
	// The parameters whose gradients were declared one by one.
	declared map[ParamID]bool
}

// Unit is an acquired unit: its parameters can be read, and in a backward pass
// its gradients written. Its views end with Release, in every stage, so that a
// program that is right in one is right in all.
type Unit struct {
	engine *Engine
	id     UnitID
	pass   Pass
	life   *unitLifetimes
}

// UnitAcquire acquires a unit for a pass. Collective where something is
// gathered.
func (e *Engine) UnitAcquire(ctx context.Context, unit UnitID, pass Pass) (*Unit, error) {
	var acquired *Unit
	err := e.collective(ctx, "UnitAcquire", func(engine *C.shard_engine) *C.shard_error {
		err := C.shard_engine_unit_acquire(engine, C.int32_t(unit), C.shard_pass(pass), timeout(ctx, 0))
		if err == nil {
			params := newLifetime(e.state.plan)
			life := &unitLifetimes{params, newLifetime(params), map[ParamID]bool{}}
			e.state.units[unit] = life
			acquired = &Unit{e, unit, pass, life}
		}
		return err
	})
	return acquired, err
}

// ID returns the unit's number.
func (u *Unit) ID() UnitID { return u.id }

// check returns an error when the unit was released. REQUIRES: the guard.
func (u *Unit) check() error {
	if reason := u.life.params.over(); reason != "" {
		return newError(FailedPrecondition, "unit %d is not acquired any more: %s; acquire it again", u.id, reason)
	}
	return nil
}

// do makes a call on a unit that is still acquired.
func (u *Unit) do(call func(engine *C.shard_engine) error) error {
	return u.engine.h.exclusive(func(object unsafe.Pointer) error {
		if err := u.check(); err != nil {
			return err
		}
		return call((*C.shard_engine)(object))
	})
}

// UnitParam is a parameter of a unit.
type UnitParam struct {
	Param  ParamID
	Values View
	Grad   View // None for a frozen parameter, and in a forward pass.
}

// Params gets all parameters of the unit, by ascending id, and in a backward pass
// their gradients.
func (u *Unit) Params() ([]UnitParam, error) {
	var found []UnitParam
	err := u.do(func(engine *C.shard_engine) (err error) {
		found, err = u.engine.unitParams(engine, u.id, u.pass != PassForward, u.life)
		return err
	})
	return found, err
}

// Param gets a view of one parameter of the unit, to read.
func (u *Unit) Param(id ParamID) (View, error) {
	return u.engine.view(id, param, func(types paramTypes) (DType, *lifetime, error) {
		return types.dtype, u.life.params, u.holds(id, types)
	})
}

// Grad gets a view of the gradient of one parameter of the unit, to write.
func (u *Unit) Grad(id ParamID) (View, error) {
	return u.engine.view(id, grad, func(types paramTypes) (DType, *lifetime, error) {
		return types.grad, u.life.grads, u.holds(id, types)
	})
}

// holds returns an error unless the parameter is in the unit, which is acquired.
func (u *Unit) holds(param ParamID, types paramTypes) error {
	if types.unit != u.id {
		return newError(InvalidArgument, "parameter %d is in unit %d, not in unit %d; acquire the unit "+
			"that it is in", param, types.unit, u.id)
	}
	return u.check()
}

// MarkGradsReady declares that the gradients of the unit are written, and that
// the program no longer touches them. Collective where something is reduced.
func (u *Unit) MarkGradsReady() error {
	return u.do(func(engine *C.shard_engine) error { return u.engine.markUnit(engine, u.id) })
}

// Release releases the unit and ends its views. A second Release is an error,
// even when the unit was acquired again.
func (u *Unit) Release() error {
	return u.do(func(engine *C.shard_engine) error {
		if err := takeError(C.shard_engine_unit_release(engine, C.int32_t(u.id))); err != nil {
			return err
		}
		u.life.params.end("the unit is released")
		delete(u.engine.state.units, u.id)
		return nil
	})
}

// UnitParams gets all parameters of a unit that need not be acquired, by
// ascending id, and with grads their gradients.
func (e *Engine) UnitParams(unit UnitID, grads bool) ([]UnitParam, error) {
	var found []UnitParam
	err := e.h.exclusive(func(object unsafe.Pointer) (err error) {
		life := &unitLifetimes{params: e.state.paramLifetime(unit), grads: e.state.gradLifetime(unit)}
		found, err = e.unitParams((*C.shard_engine)(object), unit, grads, life)
		return err
	})
	return found, err
}

// unitParams makes views with these lifetimes.
func (e *Engine) unitParams(engine *C.shard_engine, unit UnitID, grads bool, life *unitLifetimes) ([]UnitParam, error) {
	var count C.size_t
	err := takeError(C.shard_engine_unit_params(engine, C.int32_t(unit), nil, nil, nil, 0, &count))
	if err != nil || count == 0 {
		return nil, err
	}
	params := make([]C.int32_t, count)
	values := make([]unsafe.Pointer, count)
	gradients := make([]unsafe.Pointer, count)
	var firstGrad *unsafe.Pointer
	if grads {
		firstGrad = &gradients[0]
	}
	err = takeError(C.shard_engine_unit_params(engine, C.int32_t(unit), &params[0], &values[0], firstGrad,
		count, &count))
	if err != nil {
		return nil, err
	}
	found := make([]UnitParam, count)
	for i, id := range params {
		types, err := e.state.layout.types(ParamID(id))
		if err != nil {
			return nil, err
		}
		found[i] = UnitParam{Param: ParamID(id), Values: View{e, life.params, values[i], types.numel, types.dtype,
			e.state.placeOf(engine, id, values[i])}}
		if grads && types.grad != 0 {
			found[i].Grad = View{e, life.grads, gradients[i], types.numel, types.grad, e.state.place}
		}
	}
	return found, nil
}

// MarkUnitGradsReady declares that the gradients of a unit, which need not be
// acquired where gradients are whole, are written. Collective where something is
// reduced.
func (e *Engine) MarkUnitGradsReady(unit UnitID) error {
	return e.h.exclusive(func(object unsafe.Pointer) error { return e.markUnit((*C.shard_engine)(object), unit) })
}

func (e *Engine) markUnit(engine *C.shard_engine, unit UnitID) error {
	err := takeError(C.shard_engine_mark_unit_grads_ready(engine, C.int32_t(unit)))
	if err == nil {
		e.state.gradsReady(unit)
	}
	return err
}

func (s *engineState) gradsReady(unit UnitID) {
	if acquired := s.units[unit]; acquired != nil {
		acquired.grads.end("the unit's gradients are declared ready")
	}
}

// MarkParamGradReady declares the gradient of one parameter; the last one of a
// unit makes the unit ready. Collective where something is reduced.
func (e *Engine) MarkParamGradReady(param ParamID) error {
	return e.h.exclusive(func(object unsafe.Pointer) error {
		engine := (*C.shard_engine)(object)
		if err := takeError(C.shard_engine_mark_param_grad_ready(engine, C.int32_t(param))); err != nil {
			return err
		}
		return e.state.declare(param)
	})
}

// declare ends the views of a unit's gradients with the last one's declaration.
func (s *engineState) declare(param ParamID) error {
	types, err := s.layout.types(param)
	acquired := s.units[types.unit]
	if err != nil || acquired == nil {
		return err
	}
	acquired.declared[param] = true
	trainable, err := s.layout.trainable(types.unit)
	if err == nil && len(acquired.declared) == trainable {
		s.gradsReady(types.unit)
	}
	return err
}

// SetAccumulate sets whether another backward pass follows before the step for
// the gradients that become ready from here on. The same on every rank.
func (e *Engine) SetAccumulate(accumulate bool) error {
	return e.do(func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_set_accumulate(engine, flag(accumulate))
	})
}
