// SPDX-License-Identifier: Apache-2.0
//
// The engine of host.c in Go: see there what it computes and prints. The loops
// convert each product to float32: otherwise Go may fuse x*y + z on processors
// that can.

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"os"

	"libshard/shard"
)

const (
	dim   = 6
	batch = 4
	steps = 10
)

var shapes = [][]int64{{dim, dim}, {dim}, {dim}, {dim}}

func value(i uint32) float32 {
	hash := i*2654435761 + 12345
	return float32(float32(hash>>8)*(1.0/16777216.0)) - 0.5
}

type tensors struct {
	weight, bias, scale, outBias []float32
}

func trainBatch(p, g *tensors, rank int) float32 {
	var loss float32
	for e := 0; e < batch; e++ {
		var x, t, r, s, dy [dim]float32
		for i := range x {
			x[i] = value(uint32(1000 + (rank*batch+e)*dim + i))
		}
		for i := range t {
			t[i] = x[(i+1)%dim]
		}
		for i := range r {
			h := p.bias[i]
			for j := range x {
				h = h + float32(p.weight[i*dim+j]*x[j])
			}
			if h > 0 {
				r[i] = h
			}
			s[i] = float32(r[i] * p.scale[i])
		}
		for i := range dy {
			y := p.outBias[i]
			for j := range s {
				y = y + float32(p.weight[i*dim+j]*s[j])
			}
			d := y - t[i]
			loss = loss + float32(d*d)
			dy[i] = float32(d * (2.0 / batch))
		}
		for i := range dy {
			g.outBias[i] = g.outBias[i] + dy[i]
			for j := range s {
				g.weight[i*dim+j] = g.weight[i*dim+j] + float32(dy[i]*s[j])
			}
		}
		for i := range r {
			var ds, dh float32
			for k := range dy {
				ds = ds + float32(p.weight[k*dim+i]*dy[k])
			}
			if r[i] > 0 {
				dh = float32(ds * p.scale[i])
			}
			g.bias[i] = g.bias[i] + dh
			for j := range x {
				g.weight[i*dim+j] = g.weight[i*dim+j] + float32(dh*x[j])
			}
		}
	}
	return loss
}

func declare() (*shard.Model, error) {
	model, err := shard.ModelCreate("Net")
	if err != nil {
		return nil, err
	}
	if err := addParams(model); err != nil {
		model.Close()
		return nil, err
	}
	return model, nil
}

func addParams(model *shard.Model) error {
	encoder, err := model.AddModule(0, "encoder", "Linear")
	if err != nil {
		return err
	}
	decoder, err := model.AddModule(0, "decoder", "Linear")
	if err != nil {
		return err
	}
	modules := []shard.ModuleID{encoder, encoder, decoder, decoder}
	for i, name := range []string{"weight", "bias", "scale", "out_bias"} {
		if _, err := model.AddParam(modules[i], name, shard.F32, shapes[i]); err != nil {
			return err
		}
	}
	if err := model.Tie(decoder, "weight", 0); err != nil {
		return err
	}
	return model.Freeze(2)
}

func planFor(model *shard.Model, worldSize int, optimizer string) (*shard.Plan, error) {
	return shard.PlanCreate(model, &shard.PlanOptions{Stage: 1, WorldSize: worldSize, Optimizer: optimizer})
}

func fill(ctx context.Context, engine *shard.Engine) error {
	for p, shape := range shapes {
		numel := int64(1)
		for _, size := range shape {
			numel *= size
		}
		data := make([]float32, numel)
		for i := range data {
			data[i] = value(uint32(100*p + i))
			if p == 2 {
				data[i]++
			}
		}
		if err := engine.SetParam(shard.ParamID(p), shard.Bytes(data)); err != nil {
			return err
		}
	}
	return engine.BroadcastParams(ctx)
}

// floats sets out to libshard's memory as a slice, valid as long as the engine.
func floats(view func(shard.ParamID) (shard.View, error), param int, out *[]float32) error {
	tensor, err := view(shard.ParamID(param))
	if err != nil {
		return err
	}
	*out, err = tensor.Float32s()
	return err
}

func findTensors(engine *shard.Engine) (p, g tensors, err error) {
	values := []*[]float32{&p.weight, &p.bias, &p.scale, &p.outBias}
	// The parameter without a gradient is frozen.
	grads := []*[]float32{&g.weight, &g.bias, nil, &g.outBias}
	for i := range values {
		if err = floats(engine.Param, i, values[i]); err != nil {
			return
		}
		if grads[i] == nil {
			continue
		}
		if err = floats(engine.Grad, i, grads[i]); err != nil {
			return
		}
	}
	return
}

// trainStep makes a forward and a backward pass and the step, and returns the sum
// of all ranks' losses.
func trainStep(ctx context.Context, comm *shard.Comm, engine *shard.Engine, p, g *tensors, step int) (float64, error) {
	if err := engine.ZeroGrad(); err != nil {
		return 0, err
	}
	loss := []float64{float64(trainBatch(p, g, comm.Rank()))}
	if err := comm.Sum(ctx, loss); err != nil {
		return 0, err
	}
	if step == 5 {
		if err := engine.SetHyper(-1, "lr", 0.02); err != nil {
			return 0, err
		}
	}
	options := shard.StepOptions{}
	if step%2 == 1 {
		options.MaxGradNorm = 0.5
	}
	report, err := engine.Step(ctx, &options)
	if err != nil {
		return 0, err
	}
	if report.Step != int64(step)+1 || report.Skipped {
		return 0, fmt.Errorf("step %d was not done", step)
	}
	return loss[0], nil
}

func train(ctx context.Context, comm *shard.Comm, engine *shard.Engine) error {
	p, g, err := findTensors(engine)
	if err != nil {
		return err
	}
	var first, last float64
	for step := 0; step < steps; step++ {
		if last, err = trainStep(ctx, comm, engine, &p, &g, step); err != nil {
			return err
		}
		if step == 0 {
			first = last
		}
	}
	if !(last < first) {
		return fmt.Errorf("the loss went from %g to %g", first, last)
	}
	fmt.Printf("first %016x last %016x params %016x\n",
		math.Float64bits(first), math.Float64bits(last), hashOf(&p))
	return nil
}

func hashOf(p *tensors) uint64 {
	hash := fnv.New64a()
	for _, values := range [][]float32{p.weight, p.bias, p.scale, p.outBias} {
		var bytes [4]byte
		for _, x := range values {
			binary.LittleEndian.PutUint32(bytes[:], math.Float32bits(x))
			hash.Write(bytes[:])
		}
	}
	return hash.Sum64()
}

// use loads the checkpoint in folder, or fills, trains and saves there.
func use(ctx context.Context, comm *shard.Comm, engine *shard.Engine, folder string) error {
	_, err := shard.CheckpointLoad(ctx, engine, folder, nil)
	if errors.Is(err, shard.NotFound) {
		if err := fill(ctx, engine); err != nil {
			return err
		}
		if err := train(ctx, comm, engine); err != nil {
			return err
		}
		return shard.CheckpointSave(ctx, engine, folder, nil)
	}
	if err != nil {
		return err
	}
	p, _, err := findTensors(engine)
	if err != nil {
		return err
	}
	fmt.Printf("loaded params %016x\n", hashOf(&p))
	return nil
}

func run(ctx context.Context, folder string) error {
	comm, err := shard.CommOpen("env:", nil)
	if err != nil {
		return err
	}
	defer comm.Close()
	model, err := declare()
	if err != nil {
		return err
	}
	defer model.Close()
	_, err = planFor(model, 1, "adamx")
	if err == nil {
		return errors.New("'adamx' was accepted")
	}
	fmt.Println(err)
	plan, err := planFor(model, comm.WorldSize(), "adamw?lr=0.05&weight_decay=0.01")
	if err != nil {
		return err
	}
	defer plan.Close()
	engine, err := shard.EngineCreate(ctx, plan, comm, nil)
	if err != nil {
		return err
	}
	defer engine.Close()
	if err := use(ctx, comm, engine, folder); err != nil {
		return err
	}
	return comm.Shutdown(ctx)
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: host FOLDER")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "host.go:", err)
		os.Exit(1)
	}
}
