// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"libshard/shard"
)

// cancelledInCall is a context that is cancelled after a call has asked once.
type cancelledInCall struct {
	context.Context
	asked atomic.Bool
}

func (c *cancelledInCall) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

func (c *cancelledInCall) Err() error {
	if c.asked.Swap(true) {
		return context.Canceled
	}
	return nil
}

func TestACancelledContextEndsAWaitForOtherRanks(t *testing.T) {
	waits := make(chan struct{})
	onRanks(t, 2, "", func(r *rank) {
		if r.comm.Rank() == 1 {
			<-waits
			expectError(t, r.comm.Barrier(r.ctx), shard.Poisoned, "the context of a call on this rank ended")
			return
		}
		defer close(waits)
		err := r.comm.Barrier(&cancelledInCall{Context: r.ctx})
		expectError(t, err, shard.Poisoned, "context canceled")
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v is not context.Canceled", err)
		}
	})
}

func TestADeadlineIsTheTimeoutOfACall(t *testing.T) {
	waits := make(chan struct{})
	onRanks(t, 2, "", func(r *rank) {
		if r.comm.Rank() == 1 {
			<-waits
			return
		}
		defer close(waits)
		ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
		defer cancel()
		err := r.comm.Sum(ctx, []float64{1})
		expectError(t, err, shard.DeadlineExceeded, "rank")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v is not context.DeadlineExceeded", err)
		}
	})
}

// The time that is left of a deadline is another one on each rank.
func TestRanksSaveAndLoadBeforeADeadline(t *testing.T) {
	root := t.TempDir()
	onRanks(t, 2, "", func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		ctx, cancel := context.WithTimeout(r.ctx, time.Duration(100+r.comm.Rank())*time.Second)
		defer cancel()
		check(shard.CheckpointSave(ctx, engine, root, nil))
		must(shard.CheckpointLoad(ctx, engine, root, nil))
		must(shard.StateDictLoad(ctx, engine, must(shard.StateDictGet(engine, nil)), nil, false))
	})
}

func TestADeadlineEndsALoadToWhichARankDoesNotCome(t *testing.T) {
	waits := make(chan struct{})
	onRanks(t, 2, "", func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		if r.comm.Rank() == 1 {
			<-waits
			return
		}
		defer close(waits)
		ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
		defer cancel()
		_, err := shard.CheckpointLoad(ctx, engine, t.TempDir(), nil)
		expectError(t, err, shard.DeadlineExceeded, "rank")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v is not context.DeadlineExceeded", err)
		}
	})
}

func TestAContextThatIsDoneChangesNothing(t *testing.T) {
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		_, err := engine.Step(ctx, nil)
		expectError(t, err, shard.Cancelled, "nothing was done")
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v is not context.Canceled", err)
		}
		expectEqual(t, must(engine.CompletedSteps()), 0)
		r.trainStep(engine)
	})
}

func TestACancelledContextEndsALoadWithoutRanks(t *testing.T) {
	root := t.TempDir()
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		check(shard.CheckpointSave(r.ctx, engine, root, nil))
		checkpoint := must(shard.CheckpointOpen(root))
		defer checkpoint.Close()
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		err := checkpoint.Verify(ctx, nil)
		expectError(t, err, shard.Cancelled)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v is not context.Canceled", err)
		}
		check(checkpoint.Verify(r.ctx, nil))
	})
}

func TestAbortReachesARankThatWaits(t *testing.T) {
	onRanks(t, 2, "", func(r *rank) {
		if r.comm.Rank() == 0 {
			expectError(t, r.comm.Abort("a\x00b"), shard.InvalidArgument, "NUL")
			check(r.comm.Abort("the data is gone"))
			return
		}
		expectError(t, r.comm.Barrier(r.ctx), shard.Poisoned, "the data is gone")
	})
}

func TestRanksMeetSumAndBroadcast(t *testing.T) {
	onRanks(t, 2, "", func(r *rank) {
		expectEqual(t, r.comm.LocalRank(), r.comm.Rank())
		expectEqual(t, r.comm.LocalWorldSize(), 2)
		values := []float64{1, float64(r.comm.Rank())}
		check(r.comm.Sum(r.ctx, values))
		expectEqual(t, values[0]*10+values[1], 21)
		check(r.comm.Sum(r.ctx, nil))
		expectError(t, r.comm.CheckDevice(r.ctx, "cpu"), shard.InvalidArgument, "is no GPU")
		data := []byte{byte(r.comm.Rank())}
		check(r.comm.Broadcast(r.ctx, data, 1))
		expectEqual(t, data[0], 1)
		check(r.comm.Broadcast(r.ctx, nil, 0))
		root := 0
		if r.comm.Rank() == 1 {
			root = 1 << 40
		}
		err := r.comm.Broadcast(r.ctx, data, root)
		expectError(t, err, shard.InvalidArgument, "root")
		check(r.comm.Shutdown(r.ctx))
	})
}
