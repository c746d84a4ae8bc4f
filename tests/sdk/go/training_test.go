// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"libshard/shard"
)

func TestEveryStageTrainsToTheSameBits(t *testing.T) {
	var mu sync.Mutex
	var expected []float32
	for stage := 0; stage <= 3; stage++ {
		for _, query := range []string{"", "&direct=0"} {
			onRanks(t, 2, query, func(r *rank) {
				engine := r.engineFor(shard.PlanOptions{Stage: stage, Deterministic: true, Prefetch: -1})
				defer engine.Close()
				for step := int64(1); step <= 3; step++ {
					report := r.trainStep(engine)
					expectEqual(r.T, report.Step, step)
					expectEqual(r.T, report.ActiveRanks, 2)
				}
				params := r.paramsOf(engine)
				check(r.comm.Shutdown(r.ctx))
				mu.Lock()
				defer mu.Unlock()
				if expected == nil {
					expected = params
				}
				if !reflect.DeepEqual(params, expected) {
					t.Errorf("stage %d%s, rank %d: %v..., not %v...", stage, query, r.comm.Rank(), params[:9], expected[:9])
				}
			})
		}
	}
	if len(expected) != blocks*(weightNumel+biasNumel) || expected[0] == 0 || expected[0] == 1 {
		t.Errorf("%v... were not trained", expected[:9])
	}
}

func TestTheLastReportAndTheStreamAreTheEngines(t *testing.T) {
	onRanks(t, 2, "", func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{Stage: 1})
		defer engine.Close()
		_, err := engine.LastReport()
		expectError(r.T, err, shard.FailedPrecondition, "last_report")
		kind, ordinal, err := engine.Device()
		check(err)
		expectEqual(r.T, kind, shard.DeviceCPU)
		expectEqual(r.T, ordinal, 0)
		text, err := engine.JSON()
		check(err)
		expectEqual(r.T, text, `{"device":"cpu","transport":"direct","sum_order":"ranks"}`)
		check(engine.SetStream(nil))
		var stream int64
		expectError(r.T, engine.SetStream(unsafe.Pointer(&stream)), shard.InvalidArgument, "'cpu'")
		expectError(r.T, engine.CaptureBegin(), shard.Unimplemented, "2 ranks")
		expectError(r.T, engine.CaptureEnd(), shard.FailedPrecondition, "capture_end")
		expectError(r.T, engine.BeforeReplay(r.ctx, nil), shard.FailedPrecondition, "before_replay")
		report := r.trainStep(engine)
		check(engine.Synchronize(r.ctx))
		expectEqual(r.T, must(engine.LastReport()), report)
		for u := shard.UnitID(1); u <= blocks; u++ {
			check(engine.MarkUnitGradsReady(u))
		}
		check(engine.StepWithoutReport(r.ctx, nil))
		expectEqual(r.T, must(engine.LastReport()).Step, report.Step+1)
		check(r.comm.Shutdown(r.ctx))
	})
}

func TestCountersSayWhatARankDoes(t *testing.T) {
	defer catch(t)
	folder := t.TempDir()
	comm := must(shard.CommOpen("local:", &shard.CommOptions{
		Trace: filepath.Join(folder, "trace.json"), Metrics: filepath.Join(folder, "shard.prom"),
		Dump: filepath.Join(folder, "dump.json"),
	}))
	check(comm.Barrier(context.Background()))
	if text := must(comm.Dump()); !strings.Contains(text, "\"operation\":\"barrier\"") {
		t.Errorf("no barrier in\n%s", text)
	}
	counter := must(comm.Counter("barrier"))
	expectEqual(t, counter.Calls, uint64(1))
	expectEqual(t, counter.Errors, uint64(0))
	if text := must(comm.Metrics()); !strings.Contains(text, "event=\"barrier\"} 1\n") {
		t.Errorf("no barrier in\n%s", text)
	}
	_, err := comm.Counter("barriers")
	expectError(t, err, shard.NotFound, "'barriers'", "reduce_scatter")
	check(comm.Close())
	must(os.Stat(filepath.Join(folder, "trace.json")))
	must(os.Stat(filepath.Join(folder, "shard.rank0.prom")))
	must(os.Stat(filepath.Join(folder, "dump.rank0.json")))
}

// The numbers in the text get more digits between the question for its length and
// the copy.
func TestMetricsAreReadWhileTheyGrow(t *testing.T) {
	onRanks(t, 2, "", func(r *rank) {
		ended := make(chan error, 1)
		go func() {
			var err error
			for i := 0; i < 1000 && err == nil; i++ {
				err = r.comm.Barrier(r.ctx)
			}
			ended <- err
		}()
		cut := 0
		for {
			select {
			case err := <-ended:
				check(err)
				expectEqual(r.T, cut, 0)
				return
			default:
				if text := must(r.comm.Metrics()); !strings.HasSuffix(text, "\n") {
					cut++
				}
			}
		}
	})
}

func TestThreeRanksGoOnWhereTwoHaveSaved(t *testing.T) {
	root := t.TempDir()
	saved := make([][]float32, 2)
	onRanks(t, 2, "", func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{Stage: 1})
		defer engine.Close()
		r.trainStep(engine)
		check(engine.SetBlob("samples", shard.BlobSummed, shard.Bytes([]int64{int64(r.comm.Rank()) + 1})))
		check(shard.CheckpointSave(r.ctx, engine, root, nil))
		saved[r.comm.Rank()] = r.paramsOf(engine)
	})
	onRanks(t, 3, "&direct=0", func(r *rank) {
		plan := r.planFor(shard.PlanOptions{Stage: 3, Prefetch: -1, RequireSharding: true})
		defer plan.Close()
		engine := must(shard.EngineCreate(r.ctx, plan, r.comm, nil))
		defer engine.Close()
		report := must(shard.CheckpointLoad(r.ctx, engine, root, nil))
		expectEqual(r.T, report.Step, int64(1))
		expectEqual(r.T, report.SavedWorldSize, 2)
		expectEqual(r.T, report.Missing+report.Unexpected, int64(0))
		expectEqual(r.T, must(engine.CompletedSteps()), 1)
		blob := must(engine.Blob("samples"))
		expected := []int64{1, 2, 0}[r.comm.Rank()]
		if !reflect.DeepEqual(blob, shard.Bytes([]int64{expected})) {
			t.Errorf("rank %d has blob %v", r.comm.Rank(), blob)
		}
		if params := r.paramsOf(engine); !reflect.DeepEqual(params, saved[0]) {
			t.Errorf("%v..., not %v...", params[:9], saved[0][:9])
		}
		expectEqual(r.T, r.trainStep(engine).Step, 2)
	})
}

func TestAMissingCheckpointLeavesTheEngineAsItWas(t *testing.T) {
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		_, err := shard.CheckpointLoad(r.ctx, engine, filepath.Join(t.TempDir(), "none"), nil)
		expectError(t, err, shard.NotFound, "none")
		r.trainStep(engine)
	})
}

func TestASaveInTheBackgroundEndsAfterItsEngine(t *testing.T) {
	root := t.TempDir()
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		var last, total uint64
		save := must(shard.CheckpointSaveAsync(r.ctx, engine, root, &shard.SaveOptions{
			Progress: func(done, all uint64) error {
				last, total = done, all
				return nil
			},
		}))
		defer save.Close()
		r.trainStep(engine)
		check(engine.Close())
		expectEqual(t, must(save.Done()), true)
		check(save.Wait(r.ctx))
		check(save.Wait(r.ctx))
		if total == 0 || last != total {
			t.Errorf("the last progress was %d of %d", last, total)
		}
	})
	if _, err := os.Stat(filepath.Join(root, "step-000000", "manifest.shard")); err != nil {
		t.Error(err)
	}
}

// blockedSave starts a save whose progress waits until the test lets it go on.
func (r *rank) blockedSave(engine *shard.Engine, root string) (save *shard.Save, goOn func()) {
	started, released := make(chan struct{}), make(chan struct{})
	var once sync.Once
	save = must(shard.CheckpointSaveAsync(r.ctx, engine, root, &shard.SaveOptions{
		Progress: func(done, total uint64) error {
			once.Do(func() { close(started) })
			<-released
			return nil
		},
	}))
	<-started
	return save, func() { close(released) }
}

func TestAContextEndsTheWaitAndNotTheSave(t *testing.T) {
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		save, goOn := r.blockedSave(engine, t.TempDir())
		expectEqual(t, must(save.Done()), false)
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		err := save.Wait(ctx)
		expectError(t, err, shard.Cancelled, "goes on")
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v is not context.Canceled", err)
		}
		goOn()
		check(save.Wait(r.ctx))
		check(save.Close())
		expectError(t, save.Wait(r.ctx), shard.FailedPrecondition, "save is closed")
	})
}

func TestTheCallbackOfASaveLivesWithoutItsHandle(t *testing.T) {
	root := t.TempDir()
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		save, goOn := r.blockedSave(engine, root)
		check(save.Close())
		save = nil
		collectGarbage()
		goOn()
		r.trainStep(engine)
		check(shard.CheckpointSave(r.ctx, engine, root, nil))
		check(engine.Close())
	})
}

func TestAStepReportsItsNormAndSkipsWhatIsNotFinite(t *testing.T) {
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		grad := must(must(engine.Grad(0)).Float32s())
		grad[0] = 3
		report := must(engine.Step(r.ctx, &shard.StepOptions{MaxGradNorm: 1}))
		expectEqual(t, report.GradNorm, 3)
		expectEqual(t, report.Skipped, false)
		check(engine.ZeroGrad())
		grad[0] = grad[0] / grad[1] // 0/0
		report = must(engine.Step(r.ctx, &shard.StepOptions{SkipNonfinite: true}))
		expectEqual(t, report.Skipped, true)
		expectEqual(t, report.Step, 1)
		check(engine.ZeroGrad())
		check(engine.BeginStep(r.ctx, &shard.StepOptions{GradDivisor: 2}))
		must(engine.Step(r.ctx, nil))
	})
}

func TestARankWithoutInputJoins(t *testing.T) {
	onRanks(t, 2, "", func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{Stage: 2})
		defer engine.Close()
		if r.comm.Rank() == 0 {
			r.trainStep(engine)
			r.trainStep(engine)
		}
		steps := must(engine.Join(r.ctx))
		expectEqual(t, steps, int64(2*r.comm.Rank()))
	})
}

func TestGradientsAccumulateOverPasses(t *testing.T) {
	onRanks(t, 2, "&direct=0", func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{Stage: 2, Optimizer: "sgd?lr=1", Prefetch: -1, RequireSharding: true})
		defer engine.Close()
		before := r.paramsOf(engine)
		for pass := 0; pass < 2; pass++ {
			check(engine.SetAccumulate(pass == 0))
			for u := shard.UnitID(1); u <= blocks; u++ {
				unit := must(engine.UnitAcquire(r.ctx, u, shard.PassBackward))
				for _, tensor := range must(unit.Params()) {
					grad := must(tensor.Grad.Float32s())
					for i := range grad {
						grad[i]++
					}
					check(engine.MarkParamGradReady(tensor.Param))
				}
				check(unit.Release())
			}
		}
		must(engine.Step(r.ctx, nil))
		for i, value := range r.paramsOf(engine) {
			if value != before[i]-2 {
				r.Errorf("element %d went from %v to %v", i, before[i], value)
				break
			}
		}
	})
}

func TestHyperparametersStatesAndNumbersCanBeSet(t *testing.T) {
	onOneRank(t, func(r *rank) {
		plan := r.planFor(shard.PlanOptions{Optimizer: "adamw?lr=0.5"})
		defer plan.Close()
		engine := must(shard.EngineCreate(r.ctx, plan, r.comm, &shard.EngineOptions{
			LossScaling:  "dynamic?init_scale=1024",
			MissingGrads: shard.MissingZero,
		}))
		defer engine.Close()
		check(engine.BroadcastParams(r.ctx))
		check(engine.SetHyper(-1, "lr", 0.25))
		expectEqual(t, must(engine.Hyper(0, "lr")), 0.25)
		expectEqual(t, must(engine.GroupText(0))[:13], "adamw?lr=0.25")
		check(engine.SetState(1, "exp_avg", []float32{1, 2, 3}))
		expectError(t, engine.SetState(1, "momentum", []float32{1, 2, 3}), shard.NotFound, "exp_avg")
		expectError(t, engine.SetState(1, "exp_avg", nil), shard.InvalidArgument)
		check(engine.SetCompletedSteps(41))
		expectEqual(t, must(engine.CompletedSteps()), 41)
		expectEqual(t, must(engine.LossScale()), 1024)
		check(engine.SetLossScale(512, 7))
		expectEqual(t, must(engine.LossScale()), 512)
		expectEqual(t, must(engine.GrowthTracker()), 7)
		memory := must(engine.Memory())
		expectEqual(t, memory, must(plan.Memory(nil)))
		inForce := must(engine.Plan())
		defer inForce.Close()
		expectEqual(t, must(inForce.Info()).Fingerprint, must(plan.Info()).Fingerprint)
	})
}

func TestSchedulesAreComputed(t *testing.T) {
	defer catch(t)
	if devices := must(shard.DevicesJSON()); !strings.HasPrefix(devices, `{"cuda":{"driver":`) {
		t.Error(devices)
	}
	expectEqual(t, must(shard.ScheduleLR("linear?lr=1&warmup=10&total=20", 5)), 0.5)
	_, err := shard.ScheduleLR("linear?lr=1&warmup=30&total=20", 5)
	expectError(t, err, shard.InvalidArgument, "warmup")
}

func TestBuffersAreBroadcast(t *testing.T) {
	onRanks(t, 2, "", func(r *rank) {
		model := declare()
		defer model.Close()
		count := must(model.AddBuffer(1, "num_batches_tracked", shard.I64, nil, true))
		plan := must(shard.PlanCreate(model, &shard.PlanOptions{WorldSize: 2}))
		defer plan.Close()
		info := must(plan.ModelBufferInfo(count))
		expectEqual(t, fmt.Sprint(info), "{1 [] i64 1 true}")
		expectEqual(t, must(plan.ModelBufferName(count)), "block0.num_batches_tracked")
		engine := must(shard.EngineCreate(r.ctx, plan, r.comm, nil))
		defer engine.Close()
		tracked := must(engine.Buffer(count))
		elements := must(shard.Elements[int64](tracked))
		elements[0] = int64(r.comm.Rank()) + 10
		check(engine.BroadcastBuffers(r.ctx, 1))
		expectEqual(t, elements[0], 11)
		check(engine.Close())
		_, err := shard.Elements[int64](tracked)
		expectError(t, err, shard.FailedPrecondition, "the engine is closed")
	})
}
