// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"libshard/shard"
)

// collectGarbage returns when the garbage collector runs finalizers.
func collectGarbage() {
	for i := 0; i < 2; i++ {
		finalized := make(chan struct{})
		runtime.SetFinalizer(new([1]*int), func(*[1]*int) { close(finalized) })
		runtime.GC()
		<-finalized
	}
}

// count returns the number of entries of a folder such as /proc/self/fd.
func count(folder string) int { return len(must(os.ReadDir(folder))) }

func TestAUseAfterCloseIsAnError(t *testing.T) {
	defer catch(t)
	comm := must(shard.CommOpen("local:", nil))
	model := declare()
	plan := must(shard.PlanCreate(model, &shard.PlanOptions{WorldSize: 1}))
	ctx := context.Background()
	engine := must(shard.EngineCreate(ctx, plan, comm, nil))
	state := must(shard.StateDictCreate())
	memory := must(shard.HostMemoryCreate(4))
	for name, object := range map[string]interface{ Close() error }{
		"model": model, "plan": plan, "communicator": comm, "engine": engine, "state dict": state,
		"host memory": memory,
	} {
		if err := object.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := object.Close(); err != nil {
			t.Errorf("a second Close of the %s: %v", name, err)
		}
	}
	closed := func(err error, name string) {
		t.Helper()
		expectError(t, err, shard.FailedPrecondition, "the "+name+" is closed")
	}
	_, err := model.AddModule(0, "late", "")
	closed(err, "model")
	_, err = shard.PlanCreate(model, nil)
	closed(err, "model")
	_, err = plan.Info()
	closed(err, "plan")
	_, err = shard.EngineCreate(ctx, plan, comm, nil)
	closed(err, "communicator")
	closed(comm.Barrier(ctx), "communicator")
	closed(comm.Abort("late"), "communicator")
	_, err = comm.Describe()
	closed(err, "communicator")
	_, err = comm.Counter("step")
	closed(err, "communicator")
	_, err = comm.Metrics()
	closed(err, "communicator")
	_, err = comm.Dump()
	closed(err, "communicator")
	_, err = engine.Step(ctx, nil)
	closed(err, "engine")
	_, err = engine.Param(0)
	closed(err, "engine")
	_, err = shard.CheckpointSaveAsync(ctx, engine, t.TempDir(), nil)
	closed(err, "engine")
	closed(engine.BindParam(0, nil, nil), "engine")
	closed(state.AddNumber("late", 1), "state dict")
	_, err = memory.View(shard.F32)
	closed(err, "host memory")
	expectEqual(t, comm.WorldSize(), 1)
}

func TestAnObjectThatIsNilIsAnError(t *testing.T) {
	ctx := context.Background()
	refused := func(err error, name string) {
		t.Helper()
		expectError(t, err, shard.InvalidArgument, "the "+name+" is nil")
	}
	_, err := shard.PlanCreate(nil, nil)
	refused(err, "model")
	_, err = shard.EngineCreate(ctx, nil, nil, nil)
	refused(err, "communicator")
	refused(shard.CheckpointSave(ctx, nil, t.TempDir(), nil), "engine")
	_, err = shard.CheckpointLoad(ctx, nil, t.TempDir(), nil)
	refused(err, "engine")
	_, err = shard.StateDictGet(nil, nil)
	refused(err, "engine")
	refused(shard.StateDictGather(ctx, nil, nil, 0, nil), "engine")
	_, err = shard.StateDictLoad(ctx, nil, nil, nil, false)
	refused(err, "engine")
	_, err = shard.ParamView[float32](nil, 0, nil)
	refused(err, "plan")
}

func TestAnEngineOutlivesItsPlanModelAndCommunicator(t *testing.T) {
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		check(r.comm.Close())
		collectGarbage()
		r.trainStep(engine)
	})
}

func TestAWrongArgumentOfOneRankIsToldToAll(t *testing.T) {
	onRanks(t, 2, "", func(r *rank) {
		plan := r.planFor(shard.PlanOptions{})
		given := plan
		if r.comm.Rank() == 1 {
			check(plan.Close())
		}
		_, err := shard.EngineCreate(r.ctx, given, r.comm, nil)
		expectError(t, err, []shard.Code{shard.InvalidArgument, shard.FailedPrecondition}[r.comm.Rank()], "plan")
		options := shard.EngineOptions{}
		if r.comm.Rank() == 1 {
			options.Device = "cpu\x00"
		}
		plan = r.planFor(shard.PlanOptions{})
		defer plan.Close()
		_, err = shard.EngineCreate(r.ctx, plan, r.comm, &options)
		expectError(t, err, shard.InvalidArgument)

		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		root := t.TempDir()
		if r.comm.Rank() == 0 {
			root += "\x00"
		}
		expectError(t, shard.CheckpointSave(r.ctx, engine, root, nil), shard.InvalidArgument, "root")
		_, err = shard.CheckpointLoad(r.ctx, engine, root, nil)
		expectError(t, err, shard.InvalidArgument, "path")
		_, err = engine.Summon(r.ctx, 0, 2*r.comm.Rank())
		expectError(t, err, shard.InvalidArgument)
		r.trainStep(engine)
	})
}

func TestCallsOfTwoGoroutinesOnOneEngineWaitForEachOther(t *testing.T) {
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := 0; i < 50; i++ {
				if _, err := engine.CompletedSteps(); err != nil {
					t.Error(err)
				}
			}
		}()
		for i := 0; i < 10; i++ {
			r.trainStep(engine)
		}
		<-done
	})
}

// The function of a gathering waits for a state dict while it holds the engine,
// so a load must not wait for the engine while it holds the state dict.
func TestAStateDictIsLoadedWhileAGatheringAddsToIt(t *testing.T) {
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		state := must(shard.StateDictCreate())
		defer state.Close()
		loaded := make(chan struct{})
		go func() {
			defer close(loaded)
			for i := 0; i < 100; i++ {
				_, err := shard.StateDictLoad(r.ctx, engine, state, &shard.LoadOptions{AllowMismatch: true}, false)
				if err != nil {
					t.Error(err)
				}
			}
		}()
		for i := 0; i < 100; i++ {
			check(shard.StateDictGather(r.ctx, engine, nil, 0,
				func(key string, info shard.TensorInfo, data shard.View) error {
					return state.AddNumber(fmt.Sprint("number", i), 1)
				}))
		}
		<-loaded
	})
}

func TestGoroutinesShareWhatDoesNotChange(t *testing.T) {
	defer catch(t)
	checkpoint := savedCheckpoint(t)
	defer checkpoint.Close()
	model := declare()
	defer model.Close()
	plan := must(shard.PlanCreate(model, &shard.PlanOptions{WorldSize: 2}))
	defer plan.Close()
	tensor := must(checkpoint.Find("block0.bias"))
	values := make([]float32, biasNumel)
	check(checkpoint.Read(tensor, 0, biasNumel, shard.Bytes(values)))
	bytes := must(plan.Encode())
	var names atomic.Int64
	var all sync.WaitGroup
	for i := 0; i < 8; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			defer catch(t)
			for i := 0; i < 20; i++ {
				read := make([]float32, biasNumel)
				check(checkpoint.Read(tensor, 0, biasNumel, shard.Bytes(read)))
				expectEqual(t, read, values)
				expectEqual(t, must(plan.Encode()), bytes)
				expectEqual(t, must(plan.ParamName(1, 0)), "block0.bias")
				must(model.AddModule(0, fmt.Sprint("late", names.Add(1)), ""))
			}
		}()
	}
	all.Wait()
}

func TestACloseDuringCallsIsAnErrorOfLaterCallsOnly(t *testing.T) {
	defer catch(t)
	model := declare()
	defer model.Close()
	plan := must(shard.PlanCreate(model, &shard.PlanOptions{WorldSize: 2}))
	var all sync.WaitGroup
	for i := 0; i < 8; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for {
				if _, err := plan.Text(); err != nil {
					expectError(t, err, shard.FailedPrecondition, "the plan is closed")
					return
				}
			}
		}()
	}
	check(plan.Close())
	all.Wait()
}

func TestACommunicatorIsClosedWhileOthersAskForItsCounters(t *testing.T) {
	defer catch(t)
	comm := must(shard.CommOpen("local:", nil))
	var all sync.WaitGroup
	for i := 0; i < 8; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for {
				if _, err := comm.Counter("step"); err != nil {
					expectError(t, err, shard.FailedPrecondition, "the communicator is closed")
					return
				}
			}
		}()
	}
	check(comm.Close())
	all.Wait()
}

// leak makes objects that nobody closes.
func leak(t *testing.T, root string) {
	onOneRank(t, func(r *rank) {
		comm := must(shard.CommOpen("local:", &shard.CommOptions{Log: func(shard.LogLevel, string) {}}))
		engine := (&rank{t, comm, r.ctx}).engineFor(shard.PlanOptions{})
		must(shard.StateDictGet(engine, nil))
		check(shard.CheckpointSave(r.ctx, engine, root, &shard.SaveOptions{Overwrite: true}))
		must(shard.CheckpointOpen(root))
	})
}

func TestTheGarbageCollectorFreesWhatIsNotClosed(t *testing.T) {
	root := t.TempDir()
	func() {
		defer catch(t)
		leak(t, root)
		collectGarbage()
		before := count("/proc/self/fd")
		for i := 0; i < 8; i++ {
			leak(t, root)
		}
		deadline := time.Now().Add(10 * time.Second)
		for count("/proc/self/fd") > before {
			if time.Now().After(deadline) {
				t.Errorf("%d descriptors, not %d", count("/proc/self/fd"), before)
				return
			}
			collectGarbage()
		}
	}()
}

func TestAThousandRoundsLeaveNothingBehind(t *testing.T) {
	defer catch(t)
	ctx := context.Background()
	round := func() {
		comm := must(shard.CommOpen("local:", nil))
		model := must(shard.ModelCreate(""))
		param := must(model.AddParam(0, "p", shard.F32, []int64{2}))
		plan := must(shard.PlanCreate(model, &shard.PlanOptions{WorldSize: 1}))
		engine := must(shard.EngineCreate(ctx, plan, comm, nil))
		check(engine.BroadcastParams(ctx))
		must(must(engine.Grad(param)).Float32s())[0] = 1
		must(engine.Step(ctx, nil))
		for _, object := range []interface{ Close() error }{engine, plan, model, comm} {
			check(object.Close())
		}
	}
	// rounds makes so many on each of eight goroutines.
	rounds := func(each int) {
		var all sync.WaitGroup
		for i := 0; i < 8; i++ {
			all.Add(1)
			go func() {
				defer all.Done()
				defer catch(t)
				for i := 0; i < each; i++ {
					round()
				}
			}()
		}
		all.Wait()
	}
	rounds(5)
	descriptors, threads := count("/proc/self/fd"), count("/proc/self/task")
	rounds(125)
	expectEqual(t, count("/proc/self/fd"), descriptors)
	// Go starts a thread now and then, for its own reasons.
	if now := count("/proc/self/task"); now > threads+8 {
		t.Errorf("%d threads, not %d", now, threads)
	}
}

func TestErrorsCarryTheRankAndWrapNothingByThemselves(t *testing.T) {
	lost := make(chan struct{})
	onRanks(t, 2, "", func(r *rank) {
		if r.comm.Rank() == 1 {
			check(r.comm.Barrier(r.ctx))
			check(r.comm.Close())
			close(lost)
			return
		}
		check(r.comm.Barrier(r.ctx))
		<-lost
		err := r.comm.Barrier(r.ctx)
		expectError(t, err, shard.RankLost, "rank 1")
		expectEqual(t, err.(*shard.Error).Rank, 1)
		expectEqual(t, errors.Unwrap(err), nil)
	})
}
