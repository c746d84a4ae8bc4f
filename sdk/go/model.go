// SPDX-License-Identifier: Apache-2.0

package shard

// #include "shard/shard.h"
import "C"

import "unsafe"

// ModuleID is the number of a module; module 0 is the root.
type ModuleID int32

// ParamID is the number of a parameter, in the order of adding.
type ParamID int32

// ModelBufferID is the number of a buffer of Model.AddBuffer. Plan.BufferInfo is
// about flat buffers, which have a BufferID.
type ModelBufferID int32

// GroupID is the number of a param group; group 0 holds every parameter that is
// in no other group.
type GroupID int32

// Model is a tree of modules with named parameters and buffers.
type Model struct {
	h *handle
}

// ModelCreate creates a model whose root module has the class, or none for "".
func ModelCreate(className string) (*Model, error) {
	if err := checkLibrary(); err != nil {
		return nil, err
	}
	var in arguments
	defer in.free()
	var object *C.shard_model
	err := in.result(takeError(C.shard_model_create(in.option("class", className), &object)))
	if err != nil {
		C.shard_model_free(object)
		return nil, err
	}
	return &Model{newHandle("model", &guard{}, unsafe.Pointer(object), func() { C.shard_model_free(object) })}, nil
}

// do makes a call whose strings are checked before: no other rank waits for it.
func (m *Model) do(in *arguments, call func(model *C.shard_model) *C.shard_error) error {
	defer in.free()
	if in.wrong != nil {
		return in.wrong
	}
	return m.h.exclusive(func(object unsafe.Pointer) error {
		return takeError(call((*C.shard_model)(object)))
	})
}

// AddModule adds a module within parent. The name is one component of a path,
// without dots; className may be "".
func (m *Model) AddModule(parent ModuleID, name, className string) (ModuleID, error) {
	var in arguments
	var id C.int32_t
	text, class := in.text("name", name), in.option("class", className)
	err := m.do(&in, func(model *C.shard_model) *C.shard_error {
		return C.shard_model_add_module(model, C.int32_t(parent), text, class, &id)
	})
	return ModuleID(id), err
}

// AddParam adds a trainable parameter. A nil shape is a scalar.
func (m *Model) AddParam(module ModuleID, name string, dtype DType, shape []int64) (ParamID, error) {
	var in arguments
	var id C.int32_t
	text := in.text("name", name)
	err := m.do(&in, func(model *C.shard_model) *C.shard_error {
		return C.shard_model_add_param(model, C.int32_t(module), text, C.shard_dtype(dtype),
			dims(shape), C.size_t(len(shape)), &id)
	})
	return ParamID(id), err
}

// AddBuffer adds a tensor of the program that is neither stepped nor sharded,
// such as a running mean. A persistent one is in checkpoints.
func (m *Model) AddBuffer(module ModuleID, name string, dtype DType, shape []int64, persistent bool) (ModelBufferID, error) {
	var in arguments
	var id C.int32_t
	text := in.text("name", name)
	err := m.do(&in, func(model *C.shard_model) *C.shard_error {
		return C.shard_model_add_buffer(model, C.int32_t(module), text, C.shard_dtype(dtype),
			dims(shape), C.size_t(len(shape)), flag(persistent), &id)
	})
	return ModelBufferID(id), err
}

// Tie gives a parameter another name, for tied weights.
func (m *Model) Tie(module ModuleID, name string, param ParamID) error {
	var in arguments
	text := in.text("name", name)
	return m.do(&in, func(model *C.shard_model) *C.shard_error {
		return C.shard_model_tie(model, C.int32_t(module), text, C.int32_t(param))
	})
}

// Freeze makes a parameter keep its values: it has no gradient and no optimizer
// state.
func (m *Model) Freeze(param ParamID) error {
	return m.do(&arguments{}, func(model *C.shard_model) *C.shard_error {
		return C.shard_model_freeze(model, C.int32_t(param))
	})
}

// IgnoreParam leaves a parameter out of everything.
func (m *Model) IgnoreParam(param ParamID) error {
	return m.do(&arguments{}, func(model *C.shard_model) *C.shard_error {
		return C.shard_model_ignore_param(model, C.int32_t(param))
	})
}

// IgnoreModule leaves a module and all below it out of everything.
func (m *Model) IgnoreModule(module ModuleID) error {
	return m.do(&arguments{}, func(model *C.shard_model) *C.shard_error {
		return C.shard_model_ignore_module(model, C.int32_t(module))
	})
}

// AddParamGroup gives parameters an optimizer, or hyperparameters, of their own:
// "adamw?lr=1e-4", or "?weight_decay=0" for the plan's optimizer with another
// value.
func (m *Model) AddParamGroup(optimizer string, params []ParamID) (GroupID, error) {
	var in arguments
	var id C.int32_t
	text := in.text("optimizer", optimizer)
	err := m.do(&in, func(model *C.shard_model) *C.shard_error {
		return C.shard_model_add_param_group(model, text, ids(params), C.size_t(len(params)), &id)
	})
	return GroupID(id), err
}

// Close frees the model. Plans have copies.
func (m *Model) Close() error { return m.h.close() }
