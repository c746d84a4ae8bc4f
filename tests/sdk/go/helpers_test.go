// SPDX-License-Identifier: Apache-2.0

// Package sdk tests the Go package of libshard on ranks that are goroutines.
package sdk

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"libshard/shard"
)

// failure is what check panics with; catch makes it an error of the test.
type failure struct{ message string }

// check ends the test, or the rank, with the error and its line.
func check(err error) { checkAt(err, 2) }

// must returns the value, and ends the test or the rank with the error.
func must[T any](value T, err error) T {
	checkAt(err, 2)
	return value
}

func checkAt(err error, skip int) {
	if err != nil {
		_, file, line, _ := runtime.Caller(skip)
		panic(failure{fmt.Sprintf("%s:%d: %v", file[strings.LastIndexByte(file, '/')+1:], line, err)})
	}
}

// within returns the next value of the channel, and ends the test, or the rank,
// when none comes.
func within[T any](values <-chan T) (value T) {
	select {
	case value = <-values:
	case <-time.After(30 * time.Second):
		checkAt(errors.New("nothing has come for 30 seconds"), 2)
	}
	return value
}

// catch reports what check and must have ended.
func catch(t *testing.T) {
	switch value := recover().(type) {
	case nil:
	case failure:
		t.Error(value.message)
	default:
		panic(value)
	}
}

// expectError expects an error of a code whose message has all these words.
func expectError(t *testing.T, err error, code shard.Code, words ...string) {
	t.Helper()
	var found *shard.Error
	if !errors.As(err, &found) {
		t.Errorf("%v, not a *shard.Error of %v", err, code)
		return
	}
	if found.Code != code || !errors.Is(err, code) {
		t.Errorf("%v, not %v", err, code)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not say %q", err, word)
		}
	}
}

func expectEqual[T any](t *testing.T, got, expected T) {
	t.Helper()
	if !reflect.DeepEqual(got, expected) {
		t.Errorf("%v, not %v", got, expected)
	}
}

// rank is a rank of a test, on a goroutine of its own.
type rank struct {
	*testing.T
	comm *shard.Comm
	ctx  context.Context
}

var groups atomic.Int64

// onRanks runs a function on so many ranks, which are goroutines. The query is
// what follows the name in the URL: "&direct=0".
func onRanks(t *testing.T, ranks int, query string, run func(r *rank)) {
	t.Helper()
	url := fmt.Sprintf("threads:%d?name=go-%d%s", ranks, groups.Add(1), query)
	var all sync.WaitGroup
	for i := 0; i < ranks; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			comm, err := shard.CommOpen(url, &shard.CommOptions{Rank: i, WorldSize: ranks})
			if err != nil {
				t.Error(err)
				return
			}
			defer comm.Close()
			passed := false
			defer func() {
				if !passed {
					comm.Abort("this rank's test has failed")
				}
			}()
			defer catch(t)
			run(&rank{t, comm, context.Background()})
			passed = true
		}(i)
	}
	all.Wait()
}

// onOneRank runs a function on a rank that is alone.
func onOneRank(t *testing.T, run func(r *rank)) {
	t.Helper()
	onRanks(t, 1, "", run)
}

const (
	blocks      = 3
	weightNumel = 64 * 96 // Enough for every stage to shard it.
	biasNumel   = 3
)

// declare makes a model of blocks with a weight and a bias each. Parameter 2b is
// the weight of block b, 2b+1 its bias.
func declare() *shard.Model {
	model := must(shard.ModelCreate("Net"))
	for b := 0; b < blocks; b++ {
		module := must(model.AddModule(0, fmt.Sprintf("block%d", b), "Block"))
		must(model.AddParam(module, "weight", shard.F32, []int64{64, 96}))
		must(model.AddParam(module, "bias", shard.F32, []int64{biasNumel}))
	}
	return model
}

const numParams = 2 * blocks

func numelOf(param int) int {
	if param%2 == 0 {
		return weightNumel
	}
	return biasNumel
}

// planFor makes a plan of declare's model, with a unit for each block.
func (r *rank) planFor(options shard.PlanOptions) *shard.Plan {
	model := declare()
	defer model.Close()
	options.WorldSize = r.comm.WorldSize()
	options.Wrap = "class?names=Block"
	if options.Optimizer == "" {
		options.Optimizer = "adamw?lr=0.1"
	}
	return must(shard.PlanCreate(model, &options))
}

// engineFor makes an engine of such a plan, with parameters that have values.
func (r *rank) engineFor(options shard.PlanOptions) *shard.Engine {
	plan := r.planFor(options)
	defer plan.Close()
	engine := must(shard.EngineCreate(r.ctx, plan, r.comm, nil))
	for p := 0; p < numParams; p++ {
		values := make([]float32, numelOf(p))
		for i := range values {
			values[i] = float32(p) + float32(i)/16
		}
		check(engine.SetParam(shard.ParamID(p), shard.Bytes(values)))
	}
	check(engine.BroadcastParams(r.ctx))
	return engine
}

// trainStep trains one step towards a target of this rank's, unit by unit.
func (r *rank) trainStep(engine *shard.Engine) shard.StepReport {
	for u := shard.UnitID(1); u <= blocks; u++ {
		unit := must(engine.UnitAcquire(r.ctx, u, shard.PassForward))
		must(unit.Params())
		check(unit.Release())
	}
	for u := shard.UnitID(blocks); u >= 1; u-- {
		unit := must(engine.UnitAcquire(r.ctx, u, shard.PassBackward))
		for _, tensor := range must(unit.Params()) {
			values, grad := must(tensor.Values.Float32s()), must(tensor.Grad.Float32s())
			for i := range grad {
				grad[i] = values[i] - float32(r.comm.Rank())
			}
		}
		check(unit.MarkGradsReady())
		check(unit.Release())
	}
	return must(engine.Step(r.ctx, nil))
}

// paramsOf returns all parameters, whole.
func (r *rank) paramsOf(engine *shard.Engine) []float32 {
	full := must(engine.Summon(r.ctx, 0, -1))
	defer full.Close()
	var all []float32
	for p := shard.ParamID(0); p < numParams; p++ {
		all = append(all, must(must(full.Param(p)).Float32s())...)
	}
	check(full.End(r.ctx, false))
	return all
}
