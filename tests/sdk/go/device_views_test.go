// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"testing"
	"unsafe"

	"libshard/shard"
)

const (
	deviceWeight = 0 // The root module's, 8 elements.
	deviceBias   = 1 // Module 1's, 100 elements.
)

// deviceEngine makes an engine whose parameters have no values yet.
func (r *rank) deviceEngine(device string) *shard.Engine {
	model := must(shard.ModelCreate("Net"))
	defer model.Close()
	block := must(model.AddModule(0, "block", "Block"))
	must(model.AddParam(0, "weight", shard.F32, []int64{4, 2}))
	must(model.AddParam(block, "bias", shard.F32, []int64{100}))
	must(model.AddBuffer(0, "mean", shard.F32, []int64{3}, true))
	plan := must(shard.PlanCreate(model, &shard.PlanOptions{WorldSize: 1, Optimizer: "sgd?momentum=0.9"}))
	defer plan.Close()
	engine := must(shard.EngineCreate(r.ctx, plan, r.comm, &shard.EngineOptions{Device: device}))
	check(engine.SetParam(deviceWeight, shard.Bytes([]float32{2, 2, 2, 2, 2, 2, 2, 2})))
	return engine
}

// expectOnGPU expects a view that has an address and no slices, and returns the
// address.
func expectOnGPU(t *testing.T, view shard.View) unsafe.Pointer {
	t.Helper()
	check(view.Err())
	kind, ordinal := view.Device()
	expectEqual(t, kind, shard.DeviceCUDA)
	expectEqual(t, ordinal, 0)
	words := []string{"in the memory of GPU 0, which the program cannot use", "Pointer", "StateDictGet with Copy"}
	_, err := view.Float32s()
	expectError(t, err, shard.FailedPrecondition, words...)
	// The bytes of a tensor are its memory too.
	_, err = view.Bytes()
	expectError(t, err, shard.FailedPrecondition, words...)
	at := must(view.Pointer())
	if at == nil {
		t.Error("a view without an address")
	}
	return at
}

// expectOnHost expects a view of elements with this value.
func expectOnHost(t *testing.T, view shard.View, value float32) {
	t.Helper()
	kind, ordinal := view.Device()
	expectEqual(t, kind, shard.DeviceCPU)
	expectEqual(t, ordinal, 0)
	elements := must(view.Float32s())
	expectEqual(t, unsafe.Pointer(&elements[0]), must(view.Pointer()))
	expectEqual(t, int64(len(elements)), view.Numel())
	for _, element := range elements {
		expectEqual(t, element, value)
	}
}

func fill(view shard.View, value float32) {
	elements := must(view.Float32s())
	for i := range elements {
		elements[i] = value
	}
}

// localOf returns the view that a state dict has of a tensor.
func localOf(state *shard.StateDict, key string) shard.View {
	_, view, err := state.Local(must(state.Find(key)))
	check(err)
	return view
}

// deviceOf returns where a state dict has a tensor.
func deviceOf(state *shard.StateDict, key string) shard.DeviceKind {
	kind, _, err := state.Device(must(state.Find(key)))
	check(err)
	return kind
}

func TestViewsOfAGPUHaveAddressesAndNoSlices(t *testing.T) {
	if !hasGPU(t) {
		return
	}
	onOneRank(t, func(r *rank) {
		engine := r.deviceEngine("cuda:0")
		defer engine.Close()
		writable := expectOnGPU(t, must(engine.WritableParam(deviceWeight)))
		check(engine.BroadcastParams(r.ctx))
		weight := must(engine.Param(deviceWeight))
		expectEqual(t, expectOnGPU(t, weight), writable)
		grad := expectOnGPU(t, must(engine.Grad(deviceWeight)))

		unit := must(engine.UnitAcquire(r.ctx, 0, shard.PassBackward))
		expectEqual(t, expectOnGPU(t, must(unit.Param(deviceWeight))), writable)
		expectEqual(t, expectOnGPU(t, must(unit.Grad(deviceWeight))), grad)
		first := must(unit.Params())[0]
		expectEqual(t, expectOnGPU(t, first.Values), writable)
		expectEqual(t, expectOnGPU(t, first.Grad), grad)
		check(unit.Release())
		_, err := first.Values.Pointer()
		expectError(t, err, shard.FailedPrecondition, "the unit is released")

		// Buffers of the model are in the host's memory on every device.
		mean := must(engine.Buffer(0))
		fill(mean, 5)
		expectOnHost(t, mean, 5)
	})
}

func TestViewsOfACPUHaveSlicesAndTheirAddresses(t *testing.T) {
	for _, device := range []string{"cpu", "cpu-async"} {
		onOneRank(t, func(r *rank) {
			engine := r.deviceEngine(device)
			defer engine.Close()
			expectOnHost(t, must(engine.WritableParam(deviceWeight)), 2)
			check(engine.BroadcastParams(r.ctx))
			expectOnHost(t, must(engine.Param(deviceWeight)), 2)
			expectOnHost(t, must(engine.Grad(deviceWeight)), 0)
			state := must(shard.StateDictGet(engine, nil))
			defer state.Close()
			expectOnHost(t, localOf(state, "weight"), 2)
			expectEqual(t, must(localOf(state, "weight").Pointer()), must(must(engine.Param(deviceWeight)).Pointer()))
		})
	}
}

func TestFullParamsOfAGPUAreInTheHostsMemory(t *testing.T) {
	if !hasGPU(t) {
		return
	}
	onOneRank(t, func(r *rank) {
		engine := r.deviceEngine("cuda:0")
		defer engine.Close()
		check(engine.BroadcastParams(r.ctx))
		full := must(engine.Summon(r.ctx, 1, -1))
		fill(must(full.WritableParam(deviceBias)), 7)
		expectOnHost(t, must(full.Param(deviceBias)), 7)
		expectOnHost(t, must(engine.Param(deviceBias)), 7)
		// The module has no copy of this one, and no gradient is a copy.
		expectOnGPU(t, must(full.Param(deviceWeight)))
		expectOnGPU(t, must(engine.Grad(deviceBias)))
		check(full.End(r.ctx, true))

		full = must(engine.Summon(r.ctx, 0, -1))
		expectOnHost(t, must(full.Param(deviceWeight)), 2)
		expectOnHost(t, must(full.Param(deviceBias)), 7)
		check(full.End(r.ctx, false))
		expectOnGPU(t, must(engine.Param(deviceBias)))
	})
}

func TestStateDictsOfAGPUSayWhatTheProgramCanUse(t *testing.T) {
	if !hasGPU(t) {
		return
	}
	const momentum = "state.weight.momentum_buffer"
	for _, device := range []string{"cuda:0", "cuda:0?offload=states"} {
		onOneRank(t, func(r *rank) {
			engine := r.deviceEngine(device)
			defer engine.Close()
			check(engine.BroadcastParams(r.ctx))
			check(engine.ZeroGrad())
			must(engine.Step(r.ctx, nil))
			fill(must(engine.Buffer(0)), 5)

			copied := must(shard.StateDictGet(engine, &shard.StateDictOptions{Copy: true}))
			defer copied.Close()
			expectOnHost(t, localOf(copied, "weight"), 2)
			expectOnHost(t, localOf(copied, momentum), 0)

			state := must(shard.StateDictGet(engine, nil))
			defer state.Close()
			expectEqual(t, expectOnGPU(t, localOf(state, "weight")),
				must(must(engine.Param(deviceWeight)).Pointer()))
			if device == "cuda:0" {
				expectOnGPU(t, localOf(state, momentum))
				expectEqual(t, deviceOf(state, momentum), shard.DeviceCUDA)
			} else {
				expectOnHost(t, localOf(state, momentum), 0)
				expectEqual(t, deviceOf(state, momentum), shard.DeviceCPU)
			}
			expectOnHost(t, localOf(state, "mean"), 5)
		})
	}
}
