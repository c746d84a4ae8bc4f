// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"context"
	"math"
	"reflect"
	"runtime"
	"testing"

	"libshard/shard"
	"libshard/tests/sdk/go/gpu"
)

const (
	capturedSteps = 100
	capturedNumel = 1000
)

// isSkipped returns whether a step has a gradient that is not a number.
func isSkipped(number int) bool { return number == 30 || number == 61 }

// outcome is the state after a training.
type outcome struct {
	steps   int64
	tensors map[string][]byte
	numbers map[string]float64
}

// gpuHost is a program that trains on a GPU, with a stream of its own.
type gpuHost struct {
	*rank
	gpu     *gpu.GPU
	engine  *shard.Engine
	options shard.StepOptions
}

func firstWeight() []float32 {
	values := make([]float32, capturedNumel)
	for i := range values {
		values[i] = 1
	}
	return values
}

func (r *rank) gpuHost(device *gpu.GPU) *gpuHost {
	model := must(shard.ModelCreate("Net"))
	defer model.Close()
	must(model.AddParam(0, "weight", shard.F32, []int64{capturedNumel}))
	plan := must(shard.PlanCreate(model, &shard.PlanOptions{WorldSize: 1, Optimizer: "adamw"}))
	defer plan.Close()
	engine := must(shard.EngineCreate(r.ctx, plan, r.comm, &shard.EngineOptions{Device: "cuda:0"}))
	check(engine.SetStream(device.Stream()))
	check(engine.SetParam(0, shard.Bytes(firstWeight())))
	check(engine.BroadcastParams(r.ctx))
	return &gpuHost{r, device, engine, shard.StepOptions{MaxGradNorm: 2, SkipNonfinite: true}}
}

func (h *gpuHost) setLR(number int) {
	check(h.engine.SetHyper(0, "lr", 0.1/float64(number)))
}

func (h *gpuHost) writeGrad(number int) {
	grad := h.gpu.Pinned()
	for i := range grad {
		grad[i] = float32(i%13-6) / float32(number)
	}
	if isSkipped(number) {
		grad[3] = float32(math.NaN())
	}
}

// copyGrad enqueues the copy, which reads the pinned memory when it runs.
func (h *gpuHost) copyGrad() error {
	return h.gpu.CopyTo(must(must(h.engine.Grad(0)).Pointer()))
}

// capture captures the copy of gradients and a step.
func (h *gpuHost) capture() gpu.Graph {
	graph := must(h.gpu.Capture(func() error {
		check(h.engine.CaptureBegin())
		check(h.copyGrad())
		check(h.engine.StepWithoutReport(h.ctx, &h.options))
		return h.engine.CaptureEnd()
	}))
	expectEqual(h.T, must(h.engine.CompletedSteps()), 0)
	return graph
}

func (h *gpuHost) replay(graph gpu.Graph, number int) {
	h.setLR(number)
	// The step before, which reads the pinned memory, has then ended.
	check(h.engine.BeforeReplay(h.ctx, &h.options))
	h.writeGrad(number)
	check(h.gpu.Launch(graph))
}

func (h *gpuHost) step(number int) {
	h.setLR(number)
	h.writeGrad(number)
	check(h.copyGrad())
	report := must(h.engine.Step(h.ctx, &h.options))
	expectEqual(h.T, report.Skipped, isSkipped(number))
}

func (h *gpuHost) outcome() outcome {
	check(h.engine.Synchronize(h.ctx))
	result := outcome{must(h.engine.CompletedSteps()), map[string][]byte{}, map[string]float64{}}
	state := must(shard.StateDictGet(h.engine, &shard.StateDictOptions{Copy: true}))
	defer state.Close()
	for i := int64(0); i < must(state.NumTensors()); i++ {
		_, data, err := state.Local(i)
		check(err)
		result.tensors[must(state.TensorKey(i))] = append([]byte(nil), must(data.Bytes())...)
	}
	for i := int64(0); i < must(state.NumNumbers()); i++ {
		key, value, err := state.Number(i)
		check(err)
		result.numbers[key] = value
	}
	return result
}

func TestAHundredReplaysHaveTheBitsOfPlainSteps(t *testing.T) {
	if !hasGPU(t) {
		return
	}
	var plain, replayed outcome
	onOneRank(t, func(r *rank) {
		// A thread has a context, and a capture is a thread's.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		device := must(gpu.Open(capturedNumel))
		host := r.gpuHost(device)
		for number := 1; number <= capturedSteps; number++ {
			host.step(number)
		}
		plain = host.outcome()
		check(host.engine.Close())

		host = r.gpuHost(device)
		graph := host.capture()
		for number := 1; number <= capturedSteps; number++ {
			host.replay(graph, number)
		}
		replayed = host.outcome()

		cancelled, cancel := context.WithCancel(r.ctx)
		cancel()
		expectError(t, host.engine.BeforeReplay(cancelled, nil), shard.Cancelled, "did not begin")
		state := must(shard.StateDictGet(host.engine, nil))
		_, weight, err := state.Local(0)
		check(err)
		check(weight.Err())
		check(host.engine.BeforeReplay(r.ctx, &host.options))
		expectError(t, weight.Err(), shard.FailedPrecondition, "BeforeReplay has changed the engine")
		check(state.Close())
		check(graph.Close())
		check(host.engine.Close())
		check(device.Close())
	})
	expectEqual(t, plain.steps, capturedSteps-2)
	expectEqual(t, replayed.steps, capturedSteps-2)
	// The parameter and its two moments.
	expectEqual(t, len(plain.tensors), 3)
	if !reflect.DeepEqual(replayed.tensors, plain.tensors) {
		t.Error("replays have other bits than plain steps")
	}
	expectEqual(t, replayed.numbers, plain.numbers)
	if reflect.DeepEqual(plain.tensors["weight"], shard.Bytes(firstWeight())) {
		t.Error("the weight was not trained")
	}
}
