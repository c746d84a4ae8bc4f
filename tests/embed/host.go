// SPDX-License-Identifier: Apache-2.0
//
// The engine of host.c in Go, by cgo and not by the Go package: these hosts show
// what the C interface alone asks of a language; tests/sdk/go tests the package.
// A shard_error becomes a Go error and is freed at once. The loops convert each
// product to float32: otherwise Go may fuse x*y + z on processors that can.

package main

/*
#include <stdlib.h>
#include "shard/shard.h"
*/
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"unsafe"
)

// ---- Errors ----------------------------------------------------------------

// Error is the code and the message of a failed call of libshard.
type Error struct {
	Code    int
	Name    string
	Message string
	Rank    int // The rank that the error is about, or -1.
}

func (e *Error) Error() string { return e.Name + ": " + e.Message }

// check takes the C error over. NULL becomes nil.
func check(err *C.shard_error) error {
	if err == nil {
		return nil
	}
	defer C.shard_error_free(err)
	code := C.shard_error_code(err)
	return &Error{
		Code:    int(code),
		Name:    C.GoString(C.shard_code_name(code)),
		Message: C.GoString(C.shard_error_message(err)),
		Rank:    int(C.shard_error_rank(err)),
	}
}

// withString calls f with a C copy of s.
func withString(s string, f func(*C.char) *C.shard_error) error {
	text := C.CString(s)
	defer C.free(unsafe.Pointer(text))
	return check(f(text))
}

// ---- Numbers ---------------------------------------------------------------

const (
	dim   = 6
	batch = 4
	steps = 10
)

var shapes = [][]C.int64_t{{dim, dim}, {dim}, {dim}, {dim}}

func value(i uint32) float32 {
	hash := i*2654435761 + 12345
	return float32(float32(hash>>8)*(1.0/16777216.0)) - 0.5
}

// ---- The engine ------------------------------------------------------------

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

func declare() (*C.shard_model, error) {
	var model *C.shard_model
	if err := check(C.shard_model_create(nil, &model)); err != nil {
		return nil, err
	}
	fail := func(err error) (*C.shard_model, error) {
		C.shard_model_free(model)
		return nil, err
	}
	var modules [2]C.int32_t
	for i, name := range []string{"encoder", "decoder"} {
		err := withString(name, func(s *C.char) *C.shard_error {
			return C.shard_model_add_module(model, 0, s, nil, &modules[i])
		})
		if err != nil {
			return fail(err)
		}
	}
	for i, name := range []string{"weight", "bias", "scale", "out_bias"} {
		var param C.int32_t
		err := withString(name, func(s *C.char) *C.shard_error {
			return C.shard_model_add_param(model, modules[i/2], s, C.SHARD_F32,
				&shapes[i][0], C.size_t(len(shapes[i])), &param)
		})
		if err != nil {
			return fail(err)
		}
	}
	err := withString("weight", func(s *C.char) *C.shard_error {
		return C.shard_model_tie(model, modules[1], s, 0)
	})
	if err != nil {
		return fail(err)
	}
	if err := check(C.shard_model_freeze(model, 2)); err != nil {
		return fail(err)
	}
	return model, nil
}

func planFor(model *C.shard_model, worldSize C.int32_t, optimizer string) (*C.shard_plan, error) {
	var plan *C.shard_plan
	err := withString(optimizer, func(s *C.char) *C.shard_error {
		options := C.shard_plan_options{stage: 1, world_size: worldSize, optimizer: s}
		options.struct_size = C.size_t(unsafe.Sizeof(options))
		return C.shard_plan_create(model, &options, &plan)
	})
	return plan, err
}

func fill(engine *C.shard_engine) error {
	for p, shape := range shapes {
		numel := 1
		for _, size := range shape {
			numel *= int(size)
		}
		data := make([]float32, numel)
		for i := range data {
			data[i] = value(uint32(100*p + i))
			if p == 2 {
				data[i]++
			}
		}
		err := check(C.shard_engine_set_param(engine, C.int32_t(p),
			unsafe.Pointer(&data[0]), C.size_t(4*numel)))
		if err != nil {
			return err
		}
	}
	return check(C.shard_engine_broadcast_params(engine, 0))
}

type access func(*C.shard_engine, C.int32_t, *unsafe.Pointer, *C.int64_t) *C.shard_error

func param(e *C.shard_engine, p C.int32_t, data *unsafe.Pointer, n *C.int64_t) *C.shard_error {
	return C.shard_engine_param(e, p, data, n)
}

func grad(e *C.shard_engine, p C.int32_t, data *unsafe.Pointer, n *C.int64_t) *C.shard_error {
	return C.shard_engine_grad(e, p, data, n)
}

// floats sets out to libshard's memory as a slice, valid as long as the engine.
func floats(get access, engine *C.shard_engine, p C.int32_t, out *[]float32) error {
	var data unsafe.Pointer
	var numel C.int64_t
	if err := check(get(engine, p, &data, &numel)); err != nil {
		return err
	}
	*out = unsafe.Slice((*float32)(data), int(numel))
	return nil
}

func findTensors(engine *C.shard_engine) (p, g tensors, err error) {
	values := []*[]float32{&p.weight, &p.bias, &p.scale, &p.outBias}
	grads := []*[]float32{&g.weight, &g.bias, nil, &g.outBias}
	for i := range values {
		if err = floats(param, engine, C.int32_t(i), values[i]); err != nil {
			return
		}
		// The parameter is frozen: it has no gradient.
		if grads[i] == nil {
			continue
		}
		if err = floats(grad, engine, C.int32_t(i), grads[i]); err != nil {
			return
		}
	}
	return
}

func train(comm *C.shard_comm, engine *C.shard_engine) error {
	p, g, err := findTensors(engine)
	if err != nil {
		return err
	}
	var first, last float64
	for step := 0; step < steps; step++ {
		if err := check(C.shard_engine_zero_grad(engine)); err != nil {
			return err
		}
		loss := C.double(trainBatch(&p, &g, int(C.shard_comm_rank(comm))))
		if err := check(C.shard_comm_sum(comm, &loss, 1, 0)); err != nil {
			return err
		}
		last = float64(loss)
		if step == 0 {
			first = last
		}
		var options C.shard_step_options
		options.struct_size = C.size_t(unsafe.Sizeof(options))
		if step%2 == 1 {
			options.max_grad_norm = 0.5
		}
		if step == 5 {
			err := withString("lr", func(key *C.char) *C.shard_error {
				return C.shard_engine_set_hyper(engine, -1, key, 0.02)
			})
			if err != nil {
				return err
			}
		}
		var report C.shard_step_report
		report.struct_size = C.size_t(unsafe.Sizeof(report))
		if err := check(C.shard_engine_step(engine, &options, &report)); err != nil {
			return err
		}
		if int(report.step) != step+1 || report.skipped != 0 {
			return fmt.Errorf("step %d was not done", step)
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
func use(comm *C.shard_comm, engine *C.shard_engine, folder string) error {
	err := withString(folder, func(s *C.char) *C.shard_error {
		return C.shard_checkpoint_load(engine, s, nil, nil)
	})
	var missing *Error
	if errors.As(err, &missing) && missing.Code == C.SHARD_NOT_FOUND {
		if err := fill(engine); err != nil {
			return err
		}
		if err := train(comm, engine); err != nil {
			return err
		}
		return withString(folder, func(s *C.char) *C.shard_error {
			return C.shard_checkpoint_save(engine, s, nil, nil)
		})
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

func run() error {
	var comm *C.shard_comm
	err := withString("env:", func(s *C.char) *C.shard_error {
		return C.shard_comm_open(s, nil, &comm)
	})
	if err != nil {
		return err
	}
	defer C.shard_comm_free(comm)
	model, err := declare()
	if err != nil {
		return err
	}
	defer C.shard_model_free(model)
	if _, err := planFor(model, 1, "adamx"); err == nil {
		return fmt.Errorf("'adamx' was accepted")
	} else {
		fmt.Println(err)
	}
	plan, err := planFor(model, C.shard_comm_world_size(comm), "adamw?lr=0.05&weight_decay=0.01")
	if err != nil {
		return err
	}
	defer C.shard_plan_free(plan)
	var engine *C.shard_engine
	if err := check(C.shard_engine_create(plan, comm, nil, &engine)); err != nil {
		return err
	}
	defer C.shard_engine_free(engine)
	if err := use(comm, engine, os.Args[1]); err != nil {
		return err
	}
	return check(C.shard_comm_shutdown(comm, 0))
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "host.go:", err)
		os.Exit(1)
	}
}
