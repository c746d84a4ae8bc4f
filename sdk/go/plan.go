// SPDX-License-Identifier: Apache-2.0

package shard

// #include <stdlib.h>
// #include "shard/shard.h"
import "C"

import "unsafe"

// UnitID is the number of a unit; unit 0 is the root.
type UnitID int32

// BufferID is the number of a flat buffer of a plan.
type BufferID int32

// Plan is how a model is sharded over ranks. It does not change: any goroutine.
type Plan struct {
	h *handle
}

// newPlan takes a plan of the library over, or frees it where the call failed.
func newPlan(object *C.shard_plan, err error) (*Plan, error) {
	if err != nil {
		C.shard_plan_free(object)
		return nil, err
	}
	return &Plan{newHandle("plan", nil, unsafe.Pointer(object), func() { C.shard_plan_free(object) })}, nil
}

// PlanDecode makes a plan from the bytes of Plan.Encode.
func PlanDecode(data []byte) (*Plan, error) {
	if err := checkLibrary(); err != nil {
		return nil, err
	}
	var object *C.shard_plan
	first := nonEmpty(data)
	err := takeError(C.shard_plan_decode(unsafe.Pointer(&first[0]), C.size_t(len(data)), &object))
	return newPlan(object, err)
}

func (p *Plan) do(call func(plan *C.shard_plan) *C.shard_error) error {
	return p.h.shared(func(object unsafe.Pointer) error {
		return takeError(call((*C.shard_plan)(object)))
	})
}

// text calls a function that gives text of the plan's own.
func (p *Plan) text(call func(plan *C.shard_plan, text **C.char) *C.shard_error) (string, error) {
	var copied string
	err := p.h.shared(func(object unsafe.Pointer) error {
		var text *C.char
		err := takeError(call((*C.shard_plan)(object), &text))
		copied = C.GoString(text)
		return err
	})
	return copied, err
}

// PlanInfo is the plan's decisions, and the number of its parameters, units and
// so on.
type PlanInfo struct {
	Fingerprint      uint64 // Equal on two ranks exactly when their plans are.
	Stage            int
	ShardsGrads      bool // A rank keeps the sums of its own part.
	ShardsParams     bool // Where ranks share no memory, a rank keeps its own part.
	WorldSize        int
	NumParams        int
	NumModules       int
	NumNames         int
	NumGroups        int
	NumUnits         int
	NumBuffers       int // Flat buffers.
	ShardGroupSize   int
	KeepAfterForward bool
	NumModelBuffers  int
}

// Info gets the plan's decisions and counts.
func (p *Plan) Info() (PlanInfo, error) {
	info := C.shard_plan_info{struct_size: C.sizeof_shard_plan_info}
	err := p.do(func(plan *C.shard_plan) *C.shard_error { return C.shard_plan_get_info(plan, &info) })
	if err != nil {
		return PlanInfo{}, err
	}
	return PlanInfo{
		Fingerprint:      uint64(info.fingerprint),
		Stage:            int(info.stage),
		ShardsGrads:      info.shards_grads != 0,
		ShardsParams:     info.shards_params != 0,
		WorldSize:        int(info.world_size),
		NumParams:        int(info.num_params),
		NumModules:       int(info.num_modules),
		NumNames:         int(info.num_names),
		NumGroups:        int(info.num_groups),
		NumUnits:         int(info.num_units),
		NumBuffers:       int(info.num_buffers),
		ShardGroupSize:   int(info.shard_group_size),
		KeepAfterForward: info.keep_after_forward != 0,
		NumModelBuffers:  int(info.num_model_buffers),
	}, nil
}

// UnitOf gets the unit that a parameter is in.
func (p *Plan) UnitOf(param ParamID) (UnitID, error) {
	var unit C.int32_t
	err := p.do(func(plan *C.shard_plan) *C.shard_error {
		return C.shard_plan_unit_of(plan, C.int32_t(param), &unit)
	})
	return UnitID(unit), err
}

// UnitOfModule gets the unit whose outermost module is this one, and whether
// there is one.
func (p *Plan) UnitOfModule(module ModuleID) (unit UnitID, ok bool, err error) {
	var found C.int32_t
	err = p.do(func(plan *C.shard_plan) *C.shard_error {
		return C.shard_plan_unit_of_module(plan, C.int32_t(module), &found)
	})
	if err != nil || found < 0 {
		return 0, false, err
	}
	return UnitID(found), true, nil
}

// UnitModule gets a unit's outermost module.
func (p *Plan) UnitModule(unit UnitID) (ModuleID, error) {
	var module C.int32_t
	err := p.do(func(plan *C.shard_plan) *C.shard_error {
		return C.shard_plan_unit_module(plan, C.int32_t(unit), &module)
	})
	return ModuleID(module), err
}

// Placement is where the ranks of a plan run. Zero fields have their defaults.
type Placement struct {
	RanksPerHost   int    // Default: all on one host.
	SeparateMemory bool   // Ranks of one host share no memory either.
	Device         string // As in EngineOptions.
}

// Memory is the memory of an engine in bytes; shard_memory in shard/plan.h says
// what is per rank and what per host.
type Memory struct {
	ParamBytes       uint64
	GradBytes        uint64
	StateBytes       uint64
	WorkspaceBytes   uint64
	TransientBytes   uint64
	DeviceBytes      uint64
	HostBytes        uint64
	PinnedBytes      uint64
	ControlBytes     uint64
	ModelBufferBytes uint64
}

func memoryOf(memory *C.shard_memory) Memory {
	return Memory{
		ParamBytes:       uint64(memory.param_bytes),
		GradBytes:        uint64(memory.grad_bytes),
		StateBytes:       uint64(memory.state_bytes),
		WorkspaceBytes:   uint64(memory.workspace_bytes),
		TransientBytes:   uint64(memory.transient_bytes),
		DeviceBytes:      uint64(memory.device_bytes),
		HostBytes:        uint64(memory.host_bytes),
		PinnedBytes:      uint64(memory.pinned_bytes),
		ControlBytes:     uint64(memory.control_bytes),
		ModelBufferBytes: uint64(memory.model_buffer_bytes),
	}
}

// Memory predicts the memory of the plan's engines. A nil placement is all ranks
// on one host.
func (p *Plan) Memory(placement *Placement) (Memory, error) {
	if placement == nil {
		placement = &Placement{}
	}
	var in arguments
	defer in.free()
	given := C.shard_placement{
		struct_size:     C.sizeof_shard_placement,
		ranks_per_host:  in.int32("RanksPerHost", placement.RanksPerHost),
		separate_memory: flag(placement.SeparateMemory),
		device:          in.option("Device", placement.Device),
	}
	memory := C.shard_memory{struct_size: C.sizeof_shard_memory}
	err := in.result(p.do(func(plan *C.shard_plan) *C.shard_error {
		return C.shard_plan_memory(plan, &given, &memory)
	}))
	if err != nil {
		return Memory{}, err
	}
	return memoryOf(&memory), nil
}

// Text writes the plan for people.
func (p *Plan) Text() (text string, err error) {
	err = p.h.shared(func(object unsafe.Pointer) error {
		text, err = readText(func(buffer *C.char, capacity C.size_t, length *C.size_t) error {
			return takeError(C.shard_plan_text((*C.shard_plan)(object), buffer, capacity, length))
		})
		return err
	})
	return text, err
}

// JSON writes the plan for programs.
func (p *Plan) JSON() (text string, err error) {
	err = p.h.shared(func(object unsafe.Pointer) error {
		text, err = readText(func(buffer *C.char, capacity C.size_t, length *C.size_t) error {
			return takeError(C.shard_plan_json((*C.shard_plan)(object), buffer, capacity, length))
		})
		return err
	})
	return text, err
}

// Warnings gets the plan's warnings, a line each, or "".
func (p *Plan) Warnings() (string, error) {
	return p.text(func(plan *C.shard_plan, text **C.char) *C.shard_error {
		return C.shard_plan_warnings(plan, text)
	})
}

// Encode writes the plan as bytes, for PlanDecode on other ranks.
func (p *Plan) Encode() (data []byte, err error) {
	err = p.h.shared(func(object unsafe.Pointer) error {
		data, err = readBytes(func(buffer unsafe.Pointer, capacity C.size_t, length *C.size_t) error {
			return takeError(C.shard_plan_encode((*C.shard_plan)(object), buffer, capacity, length))
		})
		return err
	})
	return data, err
}

// Close frees the plan. Engines keep it alive.
func (p *Plan) Close() error { return p.h.close() }
