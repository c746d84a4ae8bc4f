// SPDX-License-Identifier: Apache-2.0

package shard

// #include "shard/shard.h"
//
// // Pointers to results, which a call through cgo moves to Go's heap, would cost
// // as much as the call.
// typedef struct {
//   void* data;
//   shard_error* error;
// } tensor;
//
// static tensor get_param(shard_engine* engine, int32_t param) {
//   const void* data = NULL;
//   shard_error* error = shard_engine_param(engine, param, &data, NULL);
//   return (tensor){(void*)data, error};
// }
//
// static tensor get_writable_param(shard_engine* engine, int32_t param) {
//   tensor found = {NULL, NULL};
//   found.error = shard_engine_writable_param(engine, param, &found.data, NULL);
//   return found;
// }
//
// static tensor get_grad(shard_engine* engine, int32_t param) {
//   tensor found = {NULL, NULL};
//   found.error = shard_engine_grad(engine, param, &found.data, NULL);
//   return found;
// }
import "C"

import (
	"context"
	"unsafe"
)

// engineLayout is what views need to know of the plan in force.
type engineLayout struct {
	object       *C.shard_plan
	shardsParams bool
	shardsGrads  bool
	numBuffers   C.int32_t    // Flat buffers.
	params       []paramTypes // By ParamID; made when they are asked for.
	// The number of trainable parameters of each unit; made when it is asked for.
	numTrainable map[UnitID]int
}

type paramTypes struct {
	known       bool
	unit        UnitID
	numel       int64
	dtype, grad DType // grad is 0 for a frozen parameter.
}

func layoutOf(engine *C.shard_engine) (engineLayout, error) {
	var layout engineLayout
	if err := takeError(C.shard_engine_plan(engine, &layout.object)); err != nil {
		return engineLayout{}, err
	}
	info := C.shard_plan_info{struct_size: C.sizeof_shard_plan_info}
	if err := takeError(C.shard_plan_get_info(layout.object, &info)); err != nil {
		layout.free()
		return engineLayout{}, err
	}
	layout.shardsParams = info.shards_params != 0
	layout.shardsGrads = info.shards_grads != 0
	layout.numBuffers = info.num_buffers
	layout.params = make([]paramTypes, info.num_params)
	return layout, nil
}

func (l *engineLayout) free() {
	C.shard_plan_free(l.object)
	l.object = nil
}

// types returns the unit and the types of a parameter.
func (l *engineLayout) types(param ParamID) (paramTypes, error) {
	if param >= 0 && int(param) < len(l.params) && l.params[param].known {
		return l.params[param], nil
	}
	info := C.shard_param_info{struct_size: C.sizeof_shard_param_info}
	if err := takeError(C.shard_plan_param_info(l.object, C.int32_t(param), &info)); err != nil {
		return paramTypes{}, err
	}
	buffer := C.shard_buffer_info{struct_size: C.sizeof_shard_buffer_info}
	if err := takeError(C.shard_plan_buffer_info(l.object, info.buffer, &buffer)); err != nil {
		return paramTypes{}, err
	}
	l.params[param] = paramTypes{true, UnitID(info.unit), int64(info.numel), DType(info.dtype),
		DType(buffer.grad_dtype)}
	return l.params[param], nil
}

// trainable returns the number of a unit's parameters that have gradients.
func (l *engineLayout) trainable(unit UnitID) (int, error) {
	if l.numTrainable == nil {
		l.numTrainable = map[UnitID]int{}
		for b := C.int32_t(0); b < l.numBuffers; b++ {
			buffer := C.shard_buffer_info{struct_size: C.sizeof_shard_buffer_info}
			if err := takeError(C.shard_plan_buffer_info(l.object, b, &buffer)); err != nil {
				l.numTrainable = nil
				return 0, err
			}
			if buffer.trainable != 0 {
				l.numTrainable[UnitID(buffer.unit)] += int(buffer.num_params)
			}
		}
	}
	return l.numTrainable[unit], nil
}

// paramLifetime returns how long the memory of a parameter is valid: as long as
// the copies of full parameters, where there are some; until the unit's release
// where the plan shards parameters; else as long as the plan.
func (s *engineState) paramLifetime(unit UnitID) *lifetime {
	if s.summoned != nil {
		return s.summoned
	}
	if acquired := s.units[unit]; acquired != nil && s.layout.shardsParams {
		return acquired.params
	}
	return s.plan
}

// gradLifetime returns how long the memory of a gradient is valid: until it is
// declared ready where the plan shards gradients; else until it is bound to other
// memory, or the plan changes.
func (s *engineState) gradLifetime(unit UnitID) *lifetime {
	if acquired := s.units[unit]; acquired != nil && s.layout.shardsGrads {
		return acquired.grads
	}
	return s.grads
}

// placeOf returns where a parameter or a gradient is that lies at this address.
// Copies of full parameters are in the host's memory on every device; they are the
// only parameters that the program may then write.
func (s *engineState) placeOf(engine *C.shard_engine, param C.int32_t, data unsafe.Pointer) place {
	if s.place.kind == DeviceCPU || s.summoned == nil {
		return s.place
	}
	full := C.get_writable_param(engine, param)
	if err := takeError(full.error); err == nil && full.data == data {
		return place{}
	}
	return s.place
}

// tensor is one of the functions that give a pointer to a tensor.
type tensor func(engine *C.shard_engine, param C.int32_t) C.tensor

func param(engine *C.shard_engine, param C.int32_t) C.tensor { return C.get_param(engine, param) }

func writableParam(engine *C.shard_engine, param C.int32_t) C.tensor {
	return C.get_writable_param(engine, param)
}

func grad(engine *C.shard_engine, param C.int32_t) C.tensor { return C.get_grad(engine, param) }

// view makes a view of a tensor, whose type and lifetime kind returns.
func (e *Engine) view(param ParamID, get tensor, kind func(paramTypes) (DType, *lifetime, error)) (View, error) {
	var view View
	err := e.h.exclusive(func(object unsafe.Pointer) error {
		found := get((*C.shard_engine)(object), C.int32_t(param))
		if err := takeError(found.error); err != nil {
			return err
		}
		types, err := e.state.layout.types(param)
		if err != nil {
			return err
		}
		dtype, life, err := kind(types)
		if err != nil {
			return err
		}
		view = View{e, life, found.data, types.numel, dtype,
			e.state.placeOf((*C.shard_engine)(object), C.int32_t(param), found.data)}
		return nil
	})
	return view, err
}

func (e *Engine) ofParam(types paramTypes) (DType, *lifetime, error) {
	return types.dtype, e.state.paramLifetime(types.unit), nil
}

func (e *Engine) ofWritableParam(types paramTypes) (DType, *lifetime, error) {
	if e.state.summoned != nil {
		return types.dtype, e.state.summoned, nil
	}
	return types.dtype, e.state.initial, nil
}

func (e *Engine) ofGrad(types paramTypes) (DType, *lifetime, error) {
	return types.grad, e.state.gradLifetime(types.unit), nil
}

// Param gets a view of a parameter's elements, to read. Ranks that share a
// host's memory all read the same copy.
func (e *Engine) Param(id ParamID) (View, error) { return e.view(id, param, e.ofParam) }

// WritableParam gets a view of a parameter's elements, to write: on rank 0
// before BroadcastParams, which ends the view, and in the copies of Summon.
func (e *Engine) WritableParam(id ParamID) (View, error) {
	return e.view(id, writableParam, e.ofWritableParam)
}

// Grad gets a view of this rank's gradient of a parameter, to write.
func (e *Engine) Grad(id ParamID) (View, error) { return e.view(id, grad, e.ofGrad) }

// SetParam copies a parameter's initial values into the engine: Bytes(values).
// Only rank 0's count.
func (e *Engine) SetParam(param ParamID, values []byte) error {
	return e.change("SetParam", func(engine *C.shard_engine) *C.shard_error {
		first := nonEmpty(values)
		return C.shard_engine_set_param(engine, C.int32_t(param), unsafe.Pointer(&first[0]), C.size_t(len(values)))
	})
}

// BroadcastParams sends rank 0's parameters to all ranks; once, before the first
// step. Collective.
func (e *Engine) BroadcastParams(ctx context.Context) error {
	return e.collective(ctx, "BroadcastParams", func(engine *C.shard_engine) *C.shard_error {
		e.state.initial.end("BroadcastParams has sent the initial parameters")
		return C.shard_engine_broadcast_params(engine, timeout(ctx, 0))
	})
}

// ZeroGrad sets this rank's gradients to zero.
func (e *Engine) ZeroGrad() error {
	return e.do(func(engine *C.shard_engine) *C.shard_error { return C.shard_engine_zero_grad(engine) })
}

// Buffer gets a view of this rank's copy of a buffer of the model, to read and
// write. It is valid until Close.
func (e *Engine) Buffer(buffer ModelBufferID) (View, error) {
	var view View
	err := e.h.exclusive(func(object unsafe.Pointer) error {
		var data unsafe.Pointer
		var numel C.int64_t
		err := takeError(C.shard_engine_buffer((*C.shard_engine)(object), C.int32_t(buffer), &data, &numel))
		if err != nil {
			return err
		}
		info := C.shard_model_buffer_info{struct_size: C.sizeof_shard_model_buffer_info}
		err = takeError(C.shard_plan_model_buffer_info(e.state.layout.object, C.int32_t(buffer), &info))
		view = View{owner: e, life: e.state.alive, data: data, numel: int64(numel), dtype: DType(info.dtype)}
		return err
	})
	return view, err
}

// BroadcastBuffers replaces the buffers of all ranks by those of rank root.
// Collective.
func (e *Engine) BroadcastBuffers(ctx context.Context, root int) error {
	var in arguments
	from := in.int32("root", root)
	return in.result(e.collective(ctx, "BroadcastBuffers", func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_broadcast_buffers(engine, from, timeout(ctx, 0))
	}))
}
