// SPDX-License-Identifier: Apache-2.0

// The training of tests/bench/ffi.cc in Go.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"libshard/shard"
)

const steps = 4

// forward visits a unit, and returns its part of the loss.
func forward(ctx context.Context, engine *shard.Engine, id shard.UnitID, params []shard.ParamID, loss float64) (float64, error) {
	unit, err := engine.UnitAcquire(ctx, id, shard.PassForward)
	if err != nil {
		return 0, err
	}
	for _, param := range params {
		view, err := unit.Param(param)
		if err != nil {
			return 0, err
		}
		values, err := view.Float32s()
		if err != nil {
			return 0, err
		}
		p := float64(values[0])
		loss += 0.5 * p * p
	}
	return loss, unit.Release()
}

// backward writes the gradients of a unit.
func backward(ctx context.Context, engine *shard.Engine, id shard.UnitID, params []shard.ParamID) error {
	unit, err := engine.UnitAcquire(ctx, id, shard.PassBackward)
	if err != nil {
		return err
	}
	for _, param := range params {
		view, err := unit.Param(param)
		if err != nil {
			return err
		}
		values, err := view.Float32s()
		if err != nil {
			return err
		}
		if view, err = unit.Grad(param); err != nil {
			return err
		}
		grad, err := view.Float32s()
		if err != nil {
			return err
		}
		grad[0] = values[0]
	}
	if err := unit.MarkGradsReady(); err != nil {
		return err
	}
	return unit.Release()
}

// train trains for a step, and returns the loss.
func train(ctx context.Context, engine *shard.Engine, units [][]shard.ParamID) (loss float64, err error) {
	for id, params := range units {
		if loss, err = forward(ctx, engine, shard.UnitID(id), params, loss); err != nil {
			return 0, err
		}
	}
	for id := len(units) - 1; id >= 0; id-- {
		if err := backward(ctx, engine, shard.UnitID(id), units[id]); err != nil {
			return 0, err
		}
	}
	_, err = engine.Step(ctx, nil)
	return loss, err
}

// create makes the engine of a plan, and lists the parameters of its units.
func create(ctx context.Context, path string) (*shard.Engine, [][]shard.ParamID, error) {
	bytes, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	plan, err := shard.PlanDecode(bytes)
	if err != nil {
		return nil, nil, err
	}
	comm, err := shard.CommOpen("local:", nil)
	if err != nil {
		return nil, nil, err
	}
	engine, err := shard.EngineCreate(ctx, plan, comm, nil)
	if err != nil {
		return nil, nil, err
	}
	info, err := plan.Info()
	if err != nil {
		return nil, nil, err
	}
	units := make([][]shard.ParamID, info.NumUnits)
	// One slice for all parameters: one for each leaves garbage that Go returns
	// to the system bit by bit, while the steps are measured.
	var all []float32
	for id := shard.ParamID(0); int(id) < info.NumParams; id++ {
		param, err := plan.ParamInfo(id)
		if err != nil {
			return nil, nil, err
		}
		if cap(all) < int(param.Numel) {
			all = make([]float32, param.Numel)
		}
		values := all[:param.Numel]
		for i := range values {
			values[i] = 1 + float32(id)/256
		}
		if err := engine.SetParam(id, shard.Bytes(values)); err != nil {
			return nil, nil, err
		}
		units[param.Unit] = append(units[param.Unit], id)
	}
	return engine, units, engine.BroadcastParams(ctx)
}

func run() error {
	ctx := context.Background()
	engine, units, err := create(ctx, os.Args[1])
	if err != nil {
		return err
	}
	loss := 0.0
	fmt.Println("peer: ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		answer := loss
		if lines.Text() == "train" {
			start := time.Now()
			for i := 0; i < steps; i++ {
				if loss, err = train(ctx, engine, units); err != nil {
					return err
				}
			}
			answer = time.Since(start).Seconds() * 1e3
		}
		fmt.Printf("peer: %.17g\n", answer)
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		log.Fatal("step_go: ", err)
	}
}
