// SPDX-License-Identifier: Apache-2.0

package shard

// #include "shard/shard.h"
import "C"

import (
	"context"
	"time"
	"unsafe"
)

// MissingGrads is how a step treats parameters that got no gradient.
type MissingGrads int32

// The treatments of missing gradients.
const (
	MissingError MissingGrads = C.SHARD_MISSING_ERROR // The step is an error that names their units.
	MissingZero  MissingGrads = C.SHARD_MISSING_ZERO  // Their gradients are zeros.
	MissingSkip  MissingGrads = C.SHARD_MISSING_SKIP  // They are left as they are.
)

// EngineOptions are the options of EngineCreate. Zero fields have their
// defaults.
type EngineOptions struct {
	// The deadline of the creation, and the default of this engine's waits. Default: the
	// communicator's.
	Timeout      time.Duration
	LossScaling  string // "static?scale=1024", "dynamic?init_scale=65536".
	MissingGrads MissingGrads
	// Where ranks share no memory, a step returns while parameters are still on
	// their way: acquire each unit before you read its parameters.
	Overlap bool
	Device  string // "cpu", the default, "cpu-async", or "cuda:0" for a GPU.
}

// Engine is one rank's training.
type Engine struct {
	h     *handle
	state *engineState
}

// engineState is what changes in an Engine. The guard of the communicator guards
// it, or the engine's free function is the last to use it. It refers to no
// handle but the communicator's.
type engineState struct {
	comm  *handle
	place place     // The device of parameters and gradients.
	alive *lifetime // Until Close.
	// Until the engine has its first parameters: of those that can be written.
	initial *lifetime
	plan    *lifetime // Until the plan changes.
	grads   *lifetime // Until gradients are bound to other memory.
	// Until the next call that changes the engine's values: of the state dicts
	// since the last one; nil when there are none.
	values *lifetime
	// The lifetime of the copies of full parameters; nil when there are none.
	summoned *lifetime
	units    map[UnitID]*unitLifetimes // Those that are acquired.
	layout   engineLayout
	bound    map[ParamID]boundMemory
	// The memory bound by calls that failed for good: the library may use it.
	unbound []boundMemory
	saves   []runningSave
}

// EngineCreate allocates the engine's buffers and checks that all ranks hold the
// same plan and options. Collective. It keeps plan and communicator alive.
func EngineCreate(ctx context.Context, plan *Plan, comm *Comm, options *EngineOptions) (*Engine, error) {
	if err := required("communicator", comm); err != nil {
		return nil, err
	}
	if options == nil {
		options = &EngineOptions{}
	}
	var in arguments
	defer in.free()
	given := C.shard_engine_options{
		struct_size:   C.sizeof_shard_engine_options,
		timeout:       seconds(options.Timeout),
		loss_scaling:  in.option("LossScaling", options.LossScaling),
		missing_grads: C.shard_missing_grads(options.MissingGrads),
		overlap:       flag(options.Overlap),
		device:        in.option("Device", options.Device),
	}
	planObject, releasePlan := in.plan(plan)
	defer releasePlan()
	var engine *Engine
	err := comm.h.collective(ctx, comm.h, func(object unsafe.Pointer) error {
		var created *C.shard_engine
		err := in.result(takeError(C.shard_engine_create(planObject, (*C.shard_comm)(object), &given, &created)))
		if err == nil {
			engine, err = newEngine(created, comm.h)
		}
		if err != nil {
			C.shard_engine_free(created)
		}
		return err
	})
	if err != nil && engine != nil { // A log callback that panicked.
		engine.Close()
		engine = nil
	}
	return engine, err
}

// plan returns a plan that lives until release; NULL for none, which the library
// refuses on all ranks.
func (a *arguments) plan(plan *Plan) (object *C.shard_plan, release func()) {
	if a.wrong = required("plan", plan); a.wrong != nil {
		return nil, func() {}
	}
	pointer, err := plan.h.retain()
	if err != nil {
		a.wrong = err
		return nil, func() {}
	}
	return (*C.shard_plan)(pointer), plan.h.release
}

// newEngine makes an engine on a communicator whose guard is entered.
func newEngine(object *C.shard_engine, comm *handle) (*Engine, error) {
	var kind C.shard_device_kind
	var ordinal C.int32_t
	if err := takeError(C.shard_engine_device(object, &kind, &ordinal)); err != nil {
		return nil, err
	}
	state := &engineState{
		comm:  comm,
		place: place{DeviceKind(kind), int(ordinal)},
		alive: newLifetime(nil),
		units: map[UnitID]*unitLifetimes{},
		bound: map[ParamID]boundMemory{},
	}
	if err := state.takePlan(object); err != nil {
		return nil, err
	}
	state.initial = newLifetime(state.plan)
	if _, err := comm.retain(); err != nil {
		state.layout.free()
		return nil, err
	}
	free := func() {
		state.alive.end("the engine is closed")
		C.shard_engine_free(object) // Waits for a save in the background.
		state.free()
	}
	return &Engine{newHandle("engine", comm.guard, unsafe.Pointer(object), free), state}, nil
}

// takePlan follows the engine to the plan that is in force.
func (s *engineState) takePlan(object *C.shard_engine) error {
	layout, err := layoutOf(object)
	if err != nil {
		return err
	}
	s.layout.free()
	s.layout = layout
	s.plan = newLifetime(s.alive)
	s.grads = newLifetime(s.plan)
	s.values = nil
	return nil
}

// free gives back what lives as long as the library's engine, which is freed.
func (s *engineState) free() {
	for _, save := range s.saves {
		save.free()
	}
	for _, memory := range s.bound {
		memory.release()
	}
	for _, memory := range s.unbound {
		memory.release()
	}
	s.layout.free()
	s.comm.release()
}

// do makes a call that changes no values.
func (e *Engine) do(call func(engine *C.shard_engine) *C.shard_error) error {
	return e.h.exclusive(func(object unsafe.Pointer) error {
		return takeError(call((*C.shard_engine)(object)))
	})
}

// change makes a local call after which state dicts are no longer valid.
func (e *Engine) change(what string, call func(engine *C.shard_engine) *C.shard_error) error {
	return e.do(func(engine *C.shard_engine) *C.shard_error {
		e.state.changed(what)
		return call(engine)
	})
}

// collective makes a call in which ranks wait for each other, and after which
// state dicts are no longer valid.
func (e *Engine) collective(ctx context.Context, what string, call func(engine *C.shard_engine) *C.shard_error) error {
	return e.h.collective(ctx, e.state.comm, func(object unsafe.Pointer) error {
		e.state.changed(what)
		return takeError(call((*C.shard_engine)(object)))
	})
}

func (s *engineState) changed(what string) {
	if s.values != nil {
		s.values.end(what + " has changed the engine")
		s.values = nil
	}
}

// Plan gets the plan that is in force, which the caller closes.
func (e *Engine) Plan() (*Plan, error) {
	var plan *C.shard_plan
	err := e.do(func(engine *C.shard_engine) *C.shard_error { return C.shard_engine_plan(engine, &plan) })
	return newPlan(plan, err)
}

// SetHyper sets a hyperparameter of a param group, or of every group that has
// the key with -1. Every rank sets the same.
func (e *Engine) SetHyper(group GroupID, key string, value float64) error {
	var in arguments
	defer in.free()
	text := in.text("key", key)
	return in.result(e.change("SetHyper", func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_set_hyper(engine, C.int32_t(group), text, C.double(value))
	}))
}

// Hyper gets a hyperparameter of a param group.
func (e *Engine) Hyper(group GroupID, key string) (float64, error) {
	var in arguments
	defer in.free()
	var value C.double
	text := in.text("key", key)
	err := in.result(e.do(func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_hyper(engine, C.int32_t(group), text, &value)
	}))
	return float64(value), err
}

// GroupText writes the group's optimizer with the present value of every key.
func (e *Engine) GroupText(group GroupID) (text string, err error) {
	err = e.h.exclusive(func(object unsafe.Pointer) error {
		text, err = readText(func(buffer *C.char, capacity C.size_t, length *C.size_t) error {
			return takeError(C.shard_engine_group_text((*C.shard_engine)(object), C.int32_t(group),
				buffer, capacity, length))
		})
		return err
	})
	return text, err
}

// SetState sets an optimizer state of a parameter, such as "exp_avg", for a run
// that began in another program. The values are those of the whole tensor.
func (e *Engine) SetState(param ParamID, state string, values []float32) error {
	var in arguments
	defer in.free()
	text := in.text("state", state)
	return in.result(e.change("SetState", func(engine *C.shard_engine) *C.shard_error {
		var first *C.float
		if len(values) > 0 {
			first = (*C.float)(unsafe.Pointer(&values[0]))
		}
		return C.shard_engine_set_state(engine, C.int32_t(param), text, first, C.size_t(len(values)))
	}))
}

// CompletedSteps gets the number of completed steps; skipped steps do not count.
func (e *Engine) CompletedSteps() (int64, error) {
	var step C.int64_t
	err := e.do(func(engine *C.shard_engine) *C.shard_error { return C.shard_engine_completed_steps(engine, &step) })
	return int64(step), err
}

// SetCompletedSteps sets the number of completed steps. Every rank sets the same.
func (e *Engine) SetCompletedSteps(step int64) error {
	return e.change("SetCompletedSteps", func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_set_completed_steps(engine, C.int64_t(step))
	})
}

// LossScale gets the factor of the loss for the next backward pass.
func (e *Engine) LossScale() (float64, error) {
	var scale C.double
	err := e.do(func(engine *C.shard_engine) *C.shard_error { return C.shard_engine_loss_scale(engine, &scale) })
	return float64(scale), err
}

// GrowthTracker gets the number of good steps in a row since the loss scale
// changed or a step was skipped.
func (e *Engine) GrowthTracker() (int64, error) {
	var steps C.int64_t
	err := e.do(func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_growth_tracker(engine, &steps)
	})
	return int64(steps), err
}

// SetLossScale sets the loss scale and the growth tracker. Every rank sets the
// same.
func (e *Engine) SetLossScale(scale float64, goodSteps int64) error {
	return e.change("SetLossScale", func(engine *C.shard_engine) *C.shard_error {
		return C.shard_engine_set_loss_scale(engine, C.double(scale), C.int64_t(goodSteps))
	})
}

// Memory gets the bytes that this engine has allocated, which Plan.Memory
// predicts.
func (e *Engine) Memory() (Memory, error) {
	memory := C.shard_memory{struct_size: C.sizeof_shard_memory}
	err := e.do(func(engine *C.shard_engine) *C.shard_error { return C.shard_engine_memory(engine, &memory) })
	if err != nil {
		return Memory{}, err
	}
	return memoryOf(&memory), nil
}

// Close frees the engine, after a save in the background has ended. All views of
// its tensors end. Local.
func (e *Engine) Close() error { return e.h.close() }

// DevicesJSON describes the accelerators of this machine, and why one cannot be
// used, for programs: engine.h has the keys. It opens each for a moment.
func DevicesJSON() (string, error) {
	if err := checkLibrary(); err != nil {
		return "", err
	}
	return readText(func(buffer *C.char, capacity C.size_t, length *C.size_t) error {
		return takeError(C.shard_devices_json(buffer, capacity, length))
	})
}

// ScheduleLR computes the learning rate of a step, which counts from 1, such as
// of "cosine?lr=3e-4&warmup=2000&total=100000".
func ScheduleLR(schedule string, step int64) (float64, error) {
	if err := checkLibrary(); err != nil {
		return 0, err
	}
	var in arguments
	defer in.free()
	var rate C.double
	err := in.result(takeError(C.shard_schedule_lr(in.text("schedule", schedule), C.int64_t(step), &rate)))
	return float64(rate), err
}
