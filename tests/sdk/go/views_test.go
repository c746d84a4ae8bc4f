// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"testing"

	"libshard/shard"
)

// expectOver expects a view that is no longer valid, for this reason.
func expectOver(t *testing.T, view shard.View, reason string) {
	t.Helper()
	_, err := view.Float32s()
	expectError(t, err, shard.FailedPrecondition, "no longer valid", reason)
	_, err = view.Bytes()
	expectError(t, err, shard.FailedPrecondition, reason)
}

func TestViewsOfAUnitEndWithItsRelease(t *testing.T) {
	for _, query := range []string{"", "&direct=0"} {
		onRanks(t, 2, query, func(r *rank) {
			engine := r.engineFor(shard.PlanOptions{Stage: 3, Prefetch: -1, RequireSharding: true})
			defer engine.Close()
			unit := must(engine.UnitAcquire(r.ctx, 1, shard.PassForward))
			expectEqual(t, unit.ID(), 1)
			all := must(unit.Params())
			one := must(unit.Param(1))
			expectEqual(t, len(all), 2)
			expectEqual(t, all[1].Param, 1)
			expectEqual(t, one.Numel(), biasNumel)
			expectEqual(t, one.DType(), shard.F32)
			expectEqual(t, must(one.Float32s())[1], 1+1.0/16)
			expectEqual(t, must(all[1].Values.Float32s())[1], 1+1.0/16)
			expectError(t, all[0].Grad.Err(), shard.FailedPrecondition, "no tensor")
			check(unit.Release())
			expectOver(t, one, "the unit is released")
			expectOver(t, all[0].Values, "the unit is released")
			_, err := unit.Params()
			expectError(t, err, shard.FailedPrecondition, "unit 1 is not acquired any more")
			_, err = unit.Param(1)
			expectError(t, err, shard.FailedPrecondition)

			again := must(engine.UnitAcquire(r.ctx, 1, shard.PassForward))
			expectError(t, unit.Release(), shard.FailedPrecondition, "unit 1")
			expectOver(t, one, "the unit is released")
			check(again.Release())
		})
	}
}

func TestViewsOfShardedGradientsEndWhenTheyAreReady(t *testing.T) {
	onRanks(t, 2, "&direct=0", func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{Stage: 2, Prefetch: -1, RequireSharding: true})
		defer engine.Close()
		unit := must(engine.UnitAcquire(r.ctx, 1, shard.PassBackward))
		weight, bias := must(unit.Grad(0)), must(engine.Grad(1))
		values := must(unit.Param(0))
		check(engine.MarkParamGradReady(0))
		check(weight.Err())
		check(engine.MarkParamGradReady(1))
		expectOver(t, weight, "declared ready")
		expectOver(t, bias, "declared ready")
		check(values.Err())
		check(unit.Release())

		second := must(engine.UnitAcquire(r.ctx, 2, shard.PassBackward))
		grad := must(second.Grad(2))
		check(second.MarkGradsReady())
		expectOver(t, grad, "declared ready")
		check(second.Release())
	})
}

func TestAUnitGivesOnlyItsOwnParameters(t *testing.T) {
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		unit := must(engine.UnitAcquire(r.ctx, 1, shard.PassBackwardOverwrite))
		_, err := unit.Param(2)
		expectError(t, err, shard.InvalidArgument, "parameter 2 is in unit 2, not in unit 1")
		_, err = unit.Grad(2)
		expectError(t, err, shard.InvalidArgument, "unit 2")
		check(unit.Release())
	})
}

func TestUnitsNeedNotBeAcquiredWhereTensorsAreWhole(t *testing.T) {
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{Stage: 1})
		defer engine.Close()
		for u := shard.UnitID(0); u <= blocks; u++ {
			tensors := must(engine.UnitParams(u, true))
			for _, tensor := range tensors {
				grad := must(tensor.Grad.Float32s())
				grad[0] = 1
			}
			if len(tensors) > 0 {
				check(engine.MarkUnitGradsReady(u))
			}
		}
		must(engine.Step(r.ctx, nil))
		_, err := engine.UnitParams(99, false)
		expectError(t, err, shard.InvalidArgument, "99")
	})
}

func TestAChangeOfThePlanEndsViews(t *testing.T) {
	onRanks(t, 2, "", func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{Stage: 1})
		defer engine.Close()
		values, grad := must(engine.Param(0)), must(engine.Grad(0))
		check(engine.SetTrainable(r.ctx, []shard.ParamID{1, 3}, false))
		expectOver(t, values, "SetTrainable has replaced the plan")
		expectOver(t, grad, "SetTrainable has replaced the plan")
		_, err := engine.Grad(1)
		expectError(t, err, shard.FailedPrecondition)

		values = must(engine.Param(0))
		group := must(engine.AddParamGroup(r.ctx, "?lr=0.5", []shard.ParamID{3}))
		expectEqual(t, group, 1)
		expectOver(t, values, "AddParamGroup has replaced the plan")
		expectEqual(t, must(engine.Hyper(group, "lr")), 0.5)

		values = must(engine.Param(0))
		_, err = engine.AddParamGroup(r.ctx, "?lr=0.5", []shard.ParamID{99})
		expectError(t, err, shard.InvalidArgument, "99")
		check(values.Err())
	})
}

func TestCloseEndsViews(t *testing.T) {
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		values, grad := must(engine.Param(0)), must(engine.Grad(0))
		unit := must(engine.UnitAcquire(r.ctx, 1, shard.PassForward))
		one := must(unit.Param(1))
		check(engine.Close())
		for _, view := range []shard.View{values, grad, one} {
			expectOver(t, view, "the engine is closed")
		}
		_, err := unit.Params()
		expectError(t, err, shard.FailedPrecondition, "the engine is closed")
		expectError(t, unit.Release(), shard.FailedPrecondition, "the engine is closed")
	})
}

func TestAViewOfAnotherTypeIsAnError(t *testing.T) {
	onOneRank(t, func(r *rank) {
		plan := r.planFor(shard.PlanOptions{ParamDType: shard.BF16, F32Grads: true})
		defer plan.Close()
		engine := must(shard.EngineCreate(r.ctx, plan, r.comm, nil))
		defer engine.Close()
		values, grad := must(engine.Param(0)), must(engine.Grad(0))
		_, err := values.Float32s()
		expectError(t, err, shard.InvalidArgument, "bf16", "float32")
		expectEqual(t, len(must(shard.Elements[uint16](values))), weightNumel)
		expectEqual(t, len(must(values.Bytes())), 2*weightNumel)
		expectEqual(t, len(must(grad.Float32s())), weightNumel)
		_, err = shard.Elements[int64](grad)
		expectError(t, err, shard.InvalidArgument, "f32", "int64")
	})
}

func TestFullParametersAreChangedWhenTheyAreWrittenBack(t *testing.T) {
	onRanks(t, 2, "&direct=0", func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{Stage: 3, Prefetch: -1, RequireSharding: true})
		defer engine.Close()
		full := must(engine.Summon(r.ctx, 0, 0))
		if r.comm.Rank() == 0 {
			view := must(full.WritableParam(0))
			must(view.Float32s())[5] = 77
		} else {
			_, err := full.Param(0)
			expectError(t, err, shard.FailedPrecondition)
		}
		check(full.End(r.ctx, true))
		_, err := full.Param(0)
		expectError(t, err, shard.FailedPrecondition)
		expectError(t, full.End(r.ctx, false), shard.FailedPrecondition, "End has freed them")
		check(full.Close())
		expectEqual(t, r.paramsOf(engine)[5], 77)
	})
}

func TestARankThatReturnsEarlyFromFullParametersHoldsUpNobody(t *testing.T) {
	onRanks(t, 2, "", func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{Stage: 1})
		defer engine.Close()
		look := func() (view shard.View) {
			full := must(engine.Summon(r.ctx, 0, -1))
			defer full.Close()
			view = must(full.Param(0))
			if r.comm.Rank() == 1 {
				return view
			}
			check(full.End(r.ctx, false))
			return view
		}
		expectOver(t, look(), "End has freed them")
		r.trainStep(engine)
	})
}

func TestBoundMemoryOfTheProgramIsTrained(t *testing.T) {
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{Optimizer: "sgd?lr=1"})
		defer engine.Close()
		values, grads := must(shard.HostMemoryCreate(4*biasNumel)), must(shard.HostMemoryCreate(4*biasNumel))
		before := must(engine.Grad(1))
		check(engine.BindParam(1, values, grads))
		expectOver(t, before, "BindParam")
		bound, gradients := must(values.View(shard.F32)), must(grads.View(shard.F32))
		// The engine uses the memory as long as it is bound.
		check(values.Close())
		check(grads.Close())
		for i := range must(gradients.Float32s()) {
			must(gradients.Float32s())[i] = 1
		}
		first := must(bound.Float32s())[0]
		must(engine.Step(r.ctx, nil))
		expectEqual(t, must(bound.Float32s())[0], first-1)
		check(engine.BindParam(1, nil, nil))
		expectOver(t, bound, "the host memory is closed")

		small := must(shard.HostMemoryCreate(4))
		defer small.Close()
		expectError(t, engine.BindParam(1, small, nil), shard.InvalidArgument)
		expectError(t, engine.BindParam(99, nil, nil), shard.InvalidArgument, "99")
		_, err := small.View(shard.F64)
		expectError(t, err, shard.InvalidArgument, "4 bytes")
	})
}

func TestInitialParametersMayBeWrittenInPlace(t *testing.T) {
	onOneRank(t, func(r *rank) {
		plan := r.planFor(shard.PlanOptions{})
		defer plan.Close()
		engine := must(shard.EngineCreate(r.ctx, plan, r.comm, nil))
		defer engine.Close()
		expectError(t, engine.SetParam(1, shard.Bytes([]float32{1, 2})), shard.InvalidArgument, "8", "12")
		expectError(t, engine.SetParam(1, nil), shard.InvalidArgument)
		expectError(t, engine.SetParam(99, shard.Bytes([]float32{1})), shard.InvalidArgument, "99")
		initial := must(engine.WritableParam(1))
		must(initial.Float32s())[2] = 8
		check(engine.BroadcastParams(r.ctx))
		expectOver(t, initial, "BroadcastParams")
		expectEqual(t, must(must(engine.Param(1)).Float32s())[2], 8)
		_, err := engine.WritableParam(1)
		expectError(t, err, shard.FailedPrecondition)
		expectError(t, engine.SetParam(1, shard.Bytes([]float32{1, 2, 3})), shard.FailedPrecondition)
	})
}
