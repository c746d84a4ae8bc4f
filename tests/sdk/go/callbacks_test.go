// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"libshard/shard"
)

var errStop = errors.New("the program wants to stop")

// expectPanic expects an error of a panic in a callback.
func expectPanic(t *testing.T, err error, callback string, value any) {
	t.Helper()
	var panicked *shard.PanicError
	var own *shard.Error
	if !errors.As(err, &panicked) || !errors.As(err, &own) {
		t.Errorf("%v, not a panic", err)
		return
	}
	expectEqual(t, panicked.Callback, callback)
	expectEqual(t, panicked.Value, value)
	if !strings.Contains(string(panicked.Stack), "callbacks_test.go") {
		t.Errorf("no stack of the callback: %s", panicked.Stack)
	}
}

func TestAPolicyOfTheProgramMakesUnits(t *testing.T) {
	defer catch(t)
	model := declare()
	defer model.Close()
	var asked []string
	plan := must(shard.PlanCreate(model, &shard.PlanOptions{
		WorldSize: 1,
		WrapPredicate: func(module shard.ModuleID, numel int64) bool {
			asked = append(asked, fmt.Sprint(module, ":", numel))
			return module == 2
		},
	}))
	defer plan.Close()
	expectEqual(t, must(plan.Info()).NumUnits, 2)
	unit, ok, err := plan.UnitOfModule(2)
	check(err)
	expectEqual(t, unit, 1)
	expectEqual(t, ok, true)
	_, ok, err = plan.UnitOfModule(1)
	check(err)
	expectEqual(t, ok, false)
	expectEqual(t, must(plan.UnitModule(1)), 2)
	expectEqual(t, must(plan.UnitOf(2)), 1)
	expectEqual(t, strings.Join(asked, " "), "1:6147 2:6147 3:6147")
}

func TestAPolicyThatPanicsIsAnError(t *testing.T) {
	defer catch(t)
	model := declare()
	defer model.Close()
	_, err := shard.PlanCreate(model, &shard.PlanOptions{
		WorldSize:     1,
		WrapPredicate: func(shard.ModuleID, int64) bool { panic("no policy") },
	})
	expectPanic(t, err, "WrapPredicate", "no policy")
}

func TestAPanicWithoutAValueIsAnErrorToo(t *testing.T) {
	defer catch(t)
	model := declare()
	defer model.Close()
	_, err := shard.PlanCreate(model, &shard.PlanOptions{
		WorldSize:     1,
		WrapPredicate: func(shard.ModuleID, int64) bool { panic(nil) },
	})
	expectPanic(t, err, "WrapPredicate", nil)
}

func TestAPolicyCannotChangeTheModel(t *testing.T) {
	defer catch(t)
	model := declare()
	defer model.Close()
	var refused, closed error
	plan := must(shard.PlanCreate(model, &shard.PlanOptions{
		WorldSize: 1,
		WrapPredicate: func(shard.ModuleID, int64) bool {
			_, refused = model.AddModule(0, "late", "")
			closed = model.Close()
			return false
		},
	}))
	defer plan.Close()
	expectError(t, refused, shard.FailedPrecondition, "callback")
	expectError(t, closed, shard.FailedPrecondition, "callback")
	must(model.AddModule(0, "late", ""))
}

func TestALogThatPanicsIsTheErrorOfTheCallThatLogged(t *testing.T) {
	defer catch(t)
	var quiet atomic.Bool
	var reentrant error
	var comm *shard.Comm
	quiet.Store(true)
	comm = must(shard.CommOpen("local:", &shard.CommOptions{
		LogLevel: shard.LogDebug,
		Log: func(level shard.LogLevel, message string) {
			if quiet.Load() {
				return
			}
			reentrant = comm.Barrier(context.Background())
			panic(message)
		},
	}))
	defer comm.Close()
	r := &rank{t, comm, context.Background()}
	plan := r.planFor(shard.PlanOptions{})
	defer plan.Close()
	root := t.TempDir()
	engine := must(shard.EngineCreate(r.ctx, plan, comm, nil))
	defer engine.Close()
	check(engine.BroadcastParams(r.ctx))
	check(shard.CheckpointSave(r.ctx, engine, root, nil))
	// A root whose LATEST names no checkpoint is loaded with a warning.
	check(os.WriteFile(filepath.Join(root, "LATEST"), []byte("step-000009\n"), 0o644))
	quiet.Store(false)
	_, err := shard.CheckpointLoad(r.ctx, engine, root, nil)
	quiet.Store(true)
	var panicked *shard.PanicError
	if !errors.As(err, &panicked) || panicked.Callback != "log" {
		t.Errorf("%v, not a panic of the log", err)
	}
	expectError(t, reentrant, shard.FailedPrecondition, "callback")
	must(shard.CheckpointLoad(r.ctx, engine, root, nil))
}

func TestProgressThatFailsCancelsALoad(t *testing.T) {
	root := t.TempDir()
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		check(shard.CheckpointSave(r.ctx, engine, root, nil))
		_, err := shard.CheckpointLoad(r.ctx, engine, root, &shard.LoadOptions{
			Progress: func(done, total uint64) error { return errStop },
		})
		expectError(t, err, shard.Cancelled, errStop.Error())
		if !errors.Is(err, errStop) {
			t.Errorf("%v does not wrap the program's error", err)
		}
	})
}

func TestProgressThatPanicsCancelsASaveInTheBackground(t *testing.T) {
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		save := must(shard.CheckpointSaveAsync(r.ctx, engine, t.TempDir(), &shard.SaveOptions{
			Progress: func(done, total uint64) error { panic(errStop) },
		}))
		defer save.Close()
		for i := 0; i < 2; i++ {
			err := save.Wait(r.ctx)
			expectError(t, err, shard.Cancelled)
			expectPanic(t, err, "progress", errStop)
			if !errors.Is(err, errStop) {
				t.Errorf("%v does not wrap the panic's error", err)
			}
		}
		r.trainStep(engine)
	})
}

func TestACallbackCannotCallBackIntoItsEngine(t *testing.T) {
	root := t.TempDir()
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		calls := 0
		expectRefused := func(err error) {
			calls++
			expectError(t, err, shard.FailedPrecondition, "callback")
		}
		var save *shard.Save
		progress := func(done, total uint64) error {
			_, err := engine.CompletedSteps()
			expectRefused(err)
			expectRefused(r.comm.Barrier(r.ctx))
			expectRefused(engine.Close())
			expectRefused(r.comm.Close())
			must(r.comm.Describe())
			return nil
		}
		check(shard.CheckpointSave(r.ctx, engine, root, &shard.SaveOptions{Progress: progress}))
		must(shard.CheckpointLoad(r.ctx, engine, root, &shard.LoadOptions{Progress: progress}))
		if calls < 8 {
			t.Errorf("%d calls were tried", calls)
		}
		ready := make(chan struct{})
		save = must(shard.CheckpointSaveAsync(r.ctx, engine, root, &shard.SaveOptions{
			Overwrite: true,
			Progress: func(done, total uint64) error {
				<-ready
				expectRefused(save.Wait(r.ctx))
				return progress(done, total)
			},
		}))
		close(ready)
		check(save.Wait(r.ctx))
		check(save.Close())
	})
}

func TestALogMayAskForTheCountersInEveryCall(t *testing.T) {
	defer catch(t)
	folder := filepath.Join(t.TempDir(), "metrics")
	check(os.Mkdir(folder, 0o700))
	var comm *shard.Comm
	var answers []error
	comm = must(shard.CommOpen("local:", &shard.CommOptions{
		LogLevel: shard.LogInfo,
		Log: func(shard.LogLevel, string) {
			if comm != nil { // CommOpen logs as well.
				_, err := comm.Counter("step")
				answers = append(answers, err)
			}
		},
		Metrics: filepath.Join(folder, "shard.prom"),
	}))
	check(comm.Abort("enough"))
	expectEqual(t, answers, []error{nil})
	// The last metrics cannot be written, which is a warning.
	check(os.RemoveAll(folder))
	check(comm.Close())
	expectEqual(t, len(answers), 2)
	expectError(t, answers[1], shard.FailedPrecondition, "closed")
}

// A stale folder that is too deep to be deleted is a warning of the save's
// thread, which outlives the engine here.
func TestALogMayAskForTheCountersUntilItsCommunicatorIsClosed(t *testing.T) {
	defer catch(t)
	root := t.TempDir()
	stale := filepath.Join(root, "step-000009.tmp-0123456789abcdef")
	check(os.MkdirAll(filepath.Join(stale, strings.Repeat("d/", 20)), 0o700))
	entered, engineClosed, asking := make(chan struct{}), make(chan struct{}), make(chan struct{})
	answer := make(chan error)
	var save *shard.Save
	var comm *shard.Comm
	comm = must(shard.CommOpen("local:", &shard.CommOptions{
		Log: func(_ shard.LogLevel, message string) {
			if !strings.Contains(message, "folders deep") {
				return
			}
			close(entered)
			<-engineClosed
			check(save.Close())
			_, err := comm.Metrics()
			for close(asking); err == nil; {
				_, err = comm.Metrics()
			}
			go func() { answer <- err }()
		},
	}))
	r := &rank{t, comm, context.Background()}
	engine := r.engineFor(shard.PlanOptions{})
	save = must(shard.CheckpointSaveAsync(r.ctx, engine, root, &shard.SaveOptions{Timeout: time.Second}))
	within(entered)
	check(engine.Close()) // Waits until the save's timeout.
	close(engineClosed)
	within(asking)
	closed := make(chan error)
	go func() { closed <- comm.Close() }()
	expectError(t, within(answer), shard.FailedPrecondition, "closed")
	check(within(closed))
}

func TestAGatheringCallsBackWithEveryTensor(t *testing.T) {
	onRanks(t, 2, "", func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{Stage: 1, Optimizer: "sgd"})
		defer engine.Close()
		var keys []string
		var kept shard.View
		var take func(key string, info shard.TensorInfo, data shard.View) error
		if r.comm.Rank() == 1 {
			take = func(key string, info shard.TensorInfo, data shard.View) error {
				keys = append(keys, key)
				expectEqual(t, len(must(data.Float32s())), int(info.Numel))
				kept = data
				return nil
			}
		}
		check(shard.StateDictGather(r.ctx, engine, &shard.StateDictOptions{
			Filter: shard.StateFilter{Submodules: []shard.ModuleID{1}, StripPrefix: true},
		}, 1, take))
		if r.comm.Rank() == 1 {
			expectEqual(t, strings.Join(keys, " "), "weight bias")
			expectOver(t, kept, "the callback that it was given to has returned")
		}

		err := shard.StateDictGather(r.ctx, engine, nil, -1, func(string, shard.TensorInfo, shard.View) error {
			if r.comm.Rank() == 1 {
				panic("enough")
			}
			return nil
		})
		expectError(t, err, shard.Cancelled)
		if r.comm.Rank() == 1 {
			expectPanic(t, err, "take", "enough")
		}
	})
}

func TestACallbackMayUseOtherObjects(t *testing.T) {
	root := t.TempDir()
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		state := must(shard.StateDictCreate())
		defer state.Close()
		check(shard.StateDictGather(r.ctx, engine, nil, 0,
			func(key string, info shard.TensorInfo, data shard.View) error {
				return state.Add(key, info.DType, info.Shape, must(data.Bytes()))
			}))
		if count := must(state.NumTensors()); count < numParams {
			t.Errorf("%d tensors", count)
		}
		check(shard.CheckpointSave(r.ctx, engine, root, nil))
		checkpoint := must(shard.CheckpointOpen(root))
		// Closed at the end of the call that is in progress.
		check(checkpoint.Verify(r.ctx, &shard.VerifyOptions{Threads: 1,
			Progress: func(done, total uint64) error {
				must(checkpoint.Info())
				if done == total {
					check(checkpoint.Close())
				}
				return nil
			}}))
		_, err := checkpoint.Info()
		expectError(t, err, shard.FailedPrecondition, "checkpoint is closed")
	})
}
