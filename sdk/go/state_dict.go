// SPDX-License-Identifier: Apache-2.0

package shard

// #include <stdlib.h>
// #include "callbacks.h"
import "C"

import (
	"context"
	"time"
	"unsafe"
)

// StateDictOptions are the options of StateDictGet and StateDictGather.
type StateDictOptions struct {
	Timeout time.Duration // Default: the engine's.
	Filter  StateFilter
	// StateDictGet only: tensors are copied. Default: they are views of the
	// engine, valid until the next call that changes the engine.
	Copy bool
}

// StateDict has named tensors and numbers, under the keys of checkpoints: this
// rank's part of an engine's state, or the state that a program loads into an
// engine.
type StateDict struct {
	h    *handle
	life *lifetime // The lifetime of the tensors.
	// The engine whose memory the tensors are, which lives as long; nil for copies.
	engine *Engine
	added  *addedTensors
}

// addedTensors are copies of the tensors of StateDict.Add, in C memory.
type addedTensors struct{ blocks []unsafe.Pointer }

func (a *arguments) stateDict(ctx context.Context, options *StateDictOptions) C.shard_state_dict_options {
	if options == nil {
		options = &StateDictOptions{}
	}
	return C.shard_state_dict_options{
		struct_size: C.sizeof_shard_state_dict_options,
		timeout:     timeout(ctx, options.Timeout),
		filter:      a.filter(options.Filter),
		copy:        flag(options.Copy),
	}
}

func newStateDict(object *C.shard_state_dict, within *lifetime, engine *Engine) *StateDict {
	life := newLifetime(within)
	added := &addedTensors{}
	h := newHandle("state dict", &guard{}, unsafe.Pointer(object), func() {
		life.end("the state dict is closed")
		C.shard_state_dict_free(object)
		for _, block := range added.blocks {
			C.free(block)
		}
	})
	return &StateDict{h, life, engine, added}
}

// StateDictGet gets the part of an engine's state that this rank owns. Local.
func StateDictGet(engine *Engine, options *StateDictOptions) (*StateDict, error) {
	if err := required("engine", engine); err != nil {
		return nil, err
	}
	var in arguments
	defer in.free()
	given := in.stateDict(context.Background(), options)
	var state *StateDict
	err := engine.h.exclusive(func(object unsafe.Pointer) error {
		var got *C.shard_state_dict
		err := takeError(C.shard_state_dict_get((*C.shard_engine)(object), &given, &got))
		switch {
		case err != nil:
		case given.copy != 0:
			state = newStateDict(got, nil, nil)
		default:
			if engine.state.values == nil {
				engine.state.values = newLifetime(engine.state.plan)
			}
			state = newStateDict(got, engine.state.values, engine)
		}
		return err
	})
	return state, err
}

// StateDictCreate creates an empty state dict, for a program to fill.
func StateDictCreate() (*StateDict, error) {
	if err := checkLibrary(); err != nil {
		return nil, err
	}
	var object *C.shard_state_dict
	if err := takeError(C.shard_state_dict_create(&object)); err != nil {
		return nil, err
	}
	return newStateDict(object, nil, nil), nil
}

// StateDictGather calls take with every tensor, whole, on one rank or, with -1,
// on all; elsewhere take may be nil. The view is valid during the call. An error
// ends the gathering on all ranks: Cancelled. Collective.
func StateDictGather(ctx context.Context, engine *Engine, options *StateDictOptions, rank int,
	take func(key string, info TensorInfo, data View) error) error {
	if err := required("engine", engine); err != nil {
		return err
	}
	var in arguments
	defer in.free()
	given := in.stateDict(ctx, options)
	on := in.int32("rank", rank)
	var function C.shard_tensor_fn
	var userData unsafe.Pointer
	var taking *callback
	if take != nil {
		taking = (&callback{name: "take", guard: engine.h.guard, take: take}).register()
		defer taking.delete()
		function, userData = C.shard_tensor_fn(C.shard_go_take), taking.userData()
	}
	return in.result(engine.h.collective(ctx, engine.state.comm, func(object unsafe.Pointer) error {
		return taking.result(takeError(C.shard_state_dict_gather((*C.shard_engine)(object), &given, on,
			function, userData)))
	}))
}

// StateDictLoad loads a state dict as CheckpointLoad does a checkpoint. With
// fromRank0 rank 0's is loaded, and state may be nil on other ranks; else every
// rank gives the same tensors, whole or with the elements that it owns.
// Collective.
func StateDictLoad(ctx context.Context, engine *Engine, state *StateDict, options *LoadOptions,
	fromRank0 bool) (LoadReport, error) {
	var in arguments
	defer in.free()
	report, err := engine.load(ctx, &in, options,
		func(engine *C.shard_engine, options *C.shard_load_options, report *C.shard_load_report) *C.shard_error {
			object, leave := in.stateDictObject(state)
			defer leave()
			return C.shard_state_dict_load(engine, object, options, flag(fromRank0), report)
		})
	return report, in.result(err)
}

// stateDictObject enters the guard of a state dict until leave. One that is
// closed, or whose tensors are no longer valid, becomes NULL. REQUIRES: the
// engine's guard is entered, as it is where StateDictGather's function adds to a
// state dict: in the other order the two would wait for each other.
func (a *arguments) stateDictObject(state *StateDict) (object *C.shard_state_dict, leave func()) {
	if state == nil {
		return nil, func() {}
	}
	if a.wrong = state.h.guard.enter(); a.wrong != nil {
		return nil, func() {}
	}
	pointer, err := state.h.open()
	if reason := state.life.over(); err == nil && reason != "" {
		err = newError(FailedPrecondition, "the state dict's tensors are no longer valid: %s; make another one, "+
			"or make it with Copy", reason)
	}
	if err != nil {
		a.wrong, pointer = err, nil
	}
	return (*C.shard_state_dict)(pointer), state.h.guard.leave
}

func (s *StateDict) do(call func(state *C.shard_state_dict) *C.shard_error) error {
	return s.h.exclusive(func(object unsafe.Pointer) error {
		return takeError(call((*C.shard_state_dict)(object)))
	})
}

// NumTensors returns the number of tensors, aliases among them.
func (s *StateDict) NumTensors() (int64, error) {
	var count int64
	err := s.do(func(state *C.shard_state_dict) *C.shard_error {
		count = int64(C.shard_state_dict_num_tensors(state))
		return nil
	})
	return count, err
}

// Tensor gets a tensor's type and shape.
func (s *StateDict) Tensor(tensor int64) (TensorInfo, error) {
	info := C.shard_tensor_info{struct_size: C.sizeof_shard_tensor_info}
	err := s.do(func(state *C.shard_state_dict) *C.shard_error {
		return C.shard_state_dict_tensor(state, C.int64_t(tensor), &info)
	})
	if err != nil {
		return TensorInfo{}, err
	}
	return tensorInfo(&info), nil
}

// TensorKey gets a tensor's key.
func (s *StateDict) TensorKey(tensor int64) (key string, err error) {
	err = s.h.exclusive(func(object unsafe.Pointer) error {
		key, err = readText(func(buffer *C.char, capacity C.size_t, length *C.size_t) error {
			return takeError(C.shard_state_dict_tensor_key((*C.shard_state_dict)(object), C.int64_t(tensor),
				buffer, capacity, length))
		})
		return err
	})
	return key, err
}

// Local gets the elements that this rank holds, from begin on; a view of none for
// an alias. Without Copy they are in the memory of the engine's device, but for
// buffers of the model and states that the device offloads.
func (s *StateDict) Local(tensor int64) (begin int64, data View, err error) {
	err = s.h.exclusive(func(object unsafe.Pointer) error {
		state := (*C.shard_state_dict)(object)
		info := C.shard_tensor_info{struct_size: C.sizeof_shard_tensor_info}
		if err := takeError(C.shard_state_dict_tensor(state, C.int64_t(tensor), &info)); err != nil {
			return err
		}
		var first, numel C.int64_t
		var at unsafe.Pointer
		err := takeError(C.shard_state_dict_local(state, C.int64_t(tensor), &first, &numel, &at))
		if err == nil && info.alias_of < 0 {
			begin, data = int64(first), View{s, s.life, at, int64(numel), DType(info.dtype), place{}}
			data.place, err = placeOf(state, C.int64_t(tensor))
		}
		return err
	})
	return begin, data, err
}

// Device gets where these elements lie: the kind, and the number of the device among
// those of its kind. A tensor without elements here is in the host's memory.
func (s *StateDict) Device(tensor int64) (kind DeviceKind, ordinal int, err error) {
	err = s.h.exclusive(func(object unsafe.Pointer) error {
		var found place
		found, err = placeOf((*C.shard_state_dict)(object), C.int64_t(tensor))
		kind, ordinal = found.kind, found.ordinal
		return err
	})
	return kind, ordinal, err
}

// placeOf returns where the elements of a tensor lie.
func placeOf(state *C.shard_state_dict, tensor C.int64_t) (place, error) {
	var kind C.shard_device_kind
	var ordinal C.int32_t
	err := takeError(C.shard_state_dict_device(state, tensor, &kind, &ordinal))
	return place{DeviceKind(kind), int(ordinal)}, err
}

// Find finds the tensor of a key.
func (s *StateDict) Find(key string) (int64, error) {
	var in arguments
	defer in.free()
	var tensor C.int64_t
	text := in.text("key", key)
	err := in.result(s.do(func(state *C.shard_state_dict) *C.shard_error {
		return C.shard_state_dict_find(state, text, &tensor)
	}))
	return int64(tensor), err
}

// NumNumbers returns how many numbers there are.
func (s *StateDict) NumNumbers() (int64, error) {
	var count int64
	err := s.do(func(state *C.shard_state_dict) *C.shard_error {
		count = int64(C.shard_state_dict_num_numbers(state))
		return nil
	})
	return count, err
}

// Number gets a number and its key; numbers are ordered by key.
func (s *StateDict) Number(number int64) (key string, value float64, err error) {
	var got C.double
	err = s.h.exclusive(func(object unsafe.Pointer) error {
		key, err = readText(func(buffer *C.char, capacity C.size_t, length *C.size_t) error {
			return takeError(C.shard_state_dict_number((*C.shard_state_dict)(object), C.int64_t(number), &got,
				buffer, capacity, length))
		})
		return err
	})
	return key, float64(got), err
}

// Add adds a whole tensor, of which the state dict keeps a copy until Close.
func (s *StateDict) Add(key string, dtype DType, shape []int64, data []byte) error {
	var in arguments
	defer in.free()
	text := in.text("key", key)
	return in.result(s.do(func(state *C.shard_state_dict) *C.shard_error {
		block := C.CBytes(nonEmpty(data))
		err := C.shard_state_dict_add(state, text, C.shard_dtype(dtype), dims(shape), C.size_t(len(shape)),
			block, C.size_t(len(data)))
		if err == nil {
			s.added.blocks = append(s.added.blocks, block)
		} else {
			C.free(block)
		}
		return err
	}))
}

// AddNumber adds a number. A second one of the same key replaces the first.
func (s *StateDict) AddNumber(key string, value float64) error {
	var in arguments
	defer in.free()
	text := in.text("key", key)
	return in.result(s.do(func(state *C.shard_state_dict) *C.shard_error {
		return C.shard_state_dict_add_number(state, text, C.double(value))
	}))
}

// Close frees the state dict.
func (s *StateDict) Close() error { return s.h.close() }
