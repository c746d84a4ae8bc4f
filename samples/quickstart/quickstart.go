// SPDX-License-Identifier: Apache-2.0

// The quickstart of libshard in Go: trains a small language model on any number
// of ranks, and saves a checkpoint from which the next run goes on.
//
//	go build quickstart.go                              # see docs/go.md
//	shardctl run -n 2 -- ./quickstart checkpoints 400   # trains 400 steps
//	shardctl run -n 3 -- ./quickstart checkpoints 600   # and 200 more
//
// Read train first. The model predicts each byte of a text from the bytes before
// it. README.md beside this file defines it to the bit, so that the quickstarts
// in all languages save the same checkpoints.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"os"

	"libshard/shard"
)

const (
	vocab  = 256 // A token is a byte.
	window = 4   // The bytes that a prediction reads.
	dim    = 16  // The numbers that describe a byte.
	batch  = 64  // Predictions per step, over all ranks.
	report = 50  // Steps from one line of output to the next.
)

// param is a parameter in memory of libshard: what the model reads, and what it
// writes in each step, after it has summed this rank's gradients in float64.
type param struct {
	name         string // The key in checkpoints.
	shape        []int64
	id           shard.ParamID
	values, grad []float32
	sums         [vocab * dim]float64
}

var (
	embed    = param{name: "embed", shape: []int64{vocab, dim}}
	position = param{name: "position", shape: []int64{window, dim}}
	out      = param{name: "out", shape: []int64{vocab, dim}}
	bias     = param{name: "bias", shape: []int64{vocab}}
	params   = []*param{&embed, &position, &out, &bias}
)

// check ends this rank after an error. The other ranks then get RANK_LOST.
func check(err error) {
	if err != nil {
		log.Fatal("quickstart: ", err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

// initialize sets the first values: small random numbers, and a bias of 0.
func initialize(ctx context.Context, engine *shard.Engine) error {
	n := uint32(0)
	for _, p := range params {
		values := make([]float32, must(engine.Grad(p.id)).Numel())
		for i := range values {
			random := n*2654435761 + 12345
			if n++; p != &bias {
				values[i] = float32(random>>8)*0x1p-24 - 0.5
			}
		}
		check(engine.SetParam(p.id, shard.Bytes(values)))
	}
	return engine.BroadcastParams(ctx)
}

// learn predicts the byte at next, adds the gradients of the loss to the sums, and
// returns the loss. A product within float64() is not fused with the addition.
func learn(text []byte, next int) float64 {
	var hidden, hiddenGrad [dim]float64
	for i := 0; i < window; i++ {
		from, to := int(text[next-1-i])*dim, i*dim
		for d := range hidden {
			hidden[d] += float64(float64(position.values[to+d]) * float64(embed.values[from+d]))
		}
	}
	var p, target [vocab]float64
	target[text[next]] = 1
	largest, total := math.Inf(-1), 0.0
	for v := range p {
		p[v] = float64(bias.values[v])
		for d, h := range hidden {
			p[v] += float64(h * float64(out.values[v*dim+d]))
		}
		largest = math.Max(largest, p[v])
	}
	for v := range p {
		e := 1 - (p[v]-largest)/1024
		for i := 0; i < 10; i++ {
			e *= e // 1/(1-x/1024)^1024 is nearly exp(x), with the same bits in every language.
		}
		p[v] = 1 / e
		total += p[v]
	}
	for v := range p {
		grad := (p[v]/total - target[v]) / batch
		bias.sums[v] += grad
		for d, h := range hidden {
			hiddenGrad[d] += float64(grad * float64(out.values[v*dim+d]))
			out.sums[v*dim+d] += float64(grad * h)
		}
	}
	for i := 0; i < window; i++ {
		from, to := int(text[next-1-i])*dim, i*dim
		for d, grad := range hiddenGrad {
			embed.sums[from+d] += float64(grad * float64(position.values[to+d]))
			position.sums[to+d] += float64(grad * float64(embed.values[from+d]))
		}
	}
	return -math.Log(p[text[next]] / total)
}

func train(ctx context.Context, folder string, steps int64, text []byte) {
	// Meet the other ranks, which `shardctl run` has started.
	comm := must(shard.CommOpen("env:", nil))
	defer comm.Close()

	// Declare the model, and decide how it is sharded. In stage 1 each rank keeps
	// the optimizer states of its part of the parameters, and steps that part.
	model := must(shard.ModelCreate("ByteModel"))
	defer model.Close()
	for _, p := range params {
		p.id = must(model.AddParam(0, p.name, shard.F32, p.shape))
	}
	plan := must(shard.PlanCreate(model, &shard.PlanOptions{
		Stage: 1, WorldSize: comm.WorldSize(), Optimizer: "adamw?lr=0.02&weight_decay=0"}))
	defer plan.Close()
	engine := must(shard.EngineCreate(ctx, plan, comm, nil))
	defer engine.Close()

	// Go on from the last checkpoint, or begin.
	loaded, err := shard.CheckpointLoad(ctx, engine, folder, nil)
	if errors.Is(err, shard.NotFound) {
		err = initialize(ctx, engine)
	}
	check(err)

	for _, p := range params {
		p.values = must(must(engine.Param(p.id)).Float32s())
		p.grad = must(must(engine.Grad(p.id)).Float32s())
	}
	loss := []float64{0}
	for step := loaded.Step; step < steps; step++ {
		for i := comm.Rank(); i < batch; i += comm.WorldSize() { // This rank's part.
			random := uint32(step*batch+int64(i)) * 2654435761
			loss[0] += learn(text, window+int(random)%(len(text)-window))
		}
		for _, p := range params {
			for i := range p.grad {
				p.grad[i], p.sums[i] = float32(p.sums[i]), 0
			}
		}
		must(engine.Step(ctx, &shard.StepOptions{GradDivisor: 1})) // learn has divided.
		if (step+1)%report == 0 {
			check(comm.Sum(ctx, loss)) // Over all ranks.
			if comm.Rank() == 0 {
				fmt.Printf("step %d: loss %.4f\n", step+1, loss[0]/(batch*report))
			}
			loss[0] = 0
		}
	}
	if loaded.Step < steps {
		check(shard.CheckpointSave(ctx, engine, folder, nil))
	}
	check(comm.Shutdown(ctx))
}

func main() {
	path, steps := "/usr/share/common-licenses/GPL-3", int64(0)
	if len(os.Args) > 3 {
		path = os.Args[3]
	}
	if len(os.Args) > 2 {
		fmt.Sscan(os.Args[2], &steps) // Leaves 0 where there is no number.
	}
	file, _ := os.Open(path)
	text, _ := io.ReadAll(io.LimitReader(file, 1<<20)) // Empty without a file.
	if len(os.Args) < 3 || len(os.Args) > 4 || steps < 1 || len(text) <= window {
		fmt.Fprintf(os.Stderr, "usage: quickstart FOLDER STEPS [TEXT], where STEPS is at "+
			"least 1 and TEXT ('%s') a file of more than %d bytes\n", path, window)
		os.Exit(2)
	}
	train(context.Background(), os.Args[1], steps, text)
}
