# SPDX-License-Identifier: Apache-2.0
"""Engines: one rank's training."""

import ctypes
import json

from . import _c, _calls
from ._arguments import instance, int32_array
from ._comm import Comm
from ._dlpack import drop_unneeded
from ._engine_state import EngineState
from ._engine_tensors import EngineTensors
from ._handles import Handle
from ._library import lib
from ._plan import Plan
from ._units import FullParams, Unit


class Engine(EngineTensors, EngineState):
    """One rank's training: parameters, gradients, steps, saves and loads.

        with shard.Engine(plan, comm) as engine:
            engine.broadcast_params()
            p, g = engine.param(weight), engine.grad(weight)
            for batch in batches:
                g[...] = backward(p, batch)
                report = engine.step(max_grad_norm=1.0)

    Options are the fields of shard_engine_options (engine.h): timeout,
    loss_scaling, missing_grads, overlap, device. Calls on a communicator and
    its engines run one after the other. COLLECTIVE."""

    def __init__(self, plan, comm, **options):
        options = _calls.fill(_c.shard_engine_options, options)
        instance(Plan, plan, "plan")
        self._comm = instance(Comm, comm, "comm")
        self._guard = comm._guard
        # An engine that was closed ends with the last tensor of a consumer, and its
        # memory may be needed.
        drop_unneeded()
        with self._guard:
            self._handle = Handle(
                _calls.pointer(lib.shard_engine_create, plan._c, comm._c,
                               ctypes.byref(options)),
                lib.shard_engine_free, self._guard)
        kind, ordinal = ctypes.c_int32(), ctypes.c_int32()
        self._call(lib.shard_engine_device, ctypes.byref(kind),
                   ctypes.byref(ordinal))
        self._device = kind.value, ordinal.value
        self._summoned = False  # Whether there are copies of full parameters.
        self._forget_plan()

    @property
    def comm(self):
        """The communicator that the engine was made with."""
        return self._comm

    def memory(self):
        """Returns the bytes that this engine has allocated: Memory."""
        return self._fetch(_c.shard_memory, lib.shard_engine_memory)

    # ---- Hyperparameters and counters ----------------------------------------

    def set_hyper(self, group, key, value):
        """Sets a hyperparameter of a param group from the next step on; group
        -1 means every group that has the key. The same on every rank."""
        self._call(lib.shard_engine_set_hyper, group, key, value)

    def hyper(self, group, key):
        """Returns a hyperparameter of a param group."""
        return self._value(ctypes.c_double, lib.shard_engine_hyper, group,
                           key)

    def group_text(self, group):
        """Returns a group's optimizer with all values: "sgd?lr=0.1&..."."""
        with self._guard:
            return _calls.copied_text(lib.shard_engine_group_text, self._c,
                                      group)

    def completed_steps(self):
        """Returns the number of completed steps."""
        return self._value(ctypes.c_int64, lib.shard_engine_completed_steps)

    def set_completed_steps(self, step):
        """Sets the number of completed steps, the same on every rank."""
        self._call(lib.shard_engine_set_completed_steps, step)

    def loss_scale(self):
        """Returns the factor of the loss for the next backward pass."""
        return self._value(ctypes.c_double, lib.shard_engine_loss_scale)

    def growth_tracker(self):
        """Returns the number of good steps in a row at this loss scale."""
        return self._value(ctypes.c_int64, lib.shard_engine_growth_tracker)

    def set_loss_scale(self, scale, good_steps=0):
        """Sets the loss scale and the growth tracker. The same on every rank.
        """
        self._call(lib.shard_engine_set_loss_scale, scale, good_steps)

    # ---- Steps ---------------------------------------------------------------

    def step(self, report=True, **options):
        """Reduces the gradients of all ranks, updates the parameters, and
        publishes them. Options are the fields of shard_step_options:
        max_grad_norm, grad_divisor, loss_scale, timeout, skip_nonfinite,
        average_active, grad_norm_type, clip_value. Returns a StepReport; None
        where report is False, which on a device with streams may return once
        the step is enqueued: after set_stream(). COLLECTIVE."""
        options = _calls.fill(_c.shard_step_options, options)
        if not report:
            return self._call(lib.shard_engine_step, ctypes.byref(options),
                              None)
        return self._fetch(_c.shard_step_report, lib.shard_engine_step,
                           ctypes.byref(options))

    def last_report(self):
        """Returns the StepReport of the last finished step."""
        return self._fetch(_c.shard_step_report, lib.shard_engine_last_report)

    @property
    def device(self):
        """Where the engine's tensors lie, as __dlpack_device__ says it:
        (1, 0) is the host's memory, (2, N) that of GPU N."""
        return self._device

    def json(self):
        """Returns how the engine works as a dict: shard_engine_json in engine.h
        has its keys."""
        with self._guard:
            return json.loads(_calls.copied_text(lib.shard_engine_json,
                                                 self._c))

    def set_stream(self, stream=None):
        """Sets the stream on which the program enqueues its own work: its
        address, such as torch.cuda.Stream.cuda_stream; None is the device's
        usual stream. The stream must live until the engine is closed, or
        another one is set."""
        self._call(lib.shard_engine_set_stream, stream)

    def capture_begin(self):
        """Begins a capture: until capture_end(), zero_grad() and one
        step(report=False) become part of the CUDA graph that the program
        captures on the stream of set_stream()."""
        self._call(lib.shard_engine_capture_begin)

    def capture_end(self):
        """Ends the capture; call it before the program ends its own. COLLECTIVE
        where several ranks have captured a step."""
        self._call(lib.shard_engine_capture_end)

    def before_replay(self, **options):
        """Gives the captured step the values of the next one: before each
        launch of the graph, with the options of step(). Waits for the step
        before. COLLECTIVE."""
        options = _calls.fill(_c.shard_step_options, options)
        self._call(lib.shard_engine_before_replay, ctypes.byref(options))

    def synchronize(self, timeout=0):
        """Waits until everything that the engine was given has run."""
        self._call(lib.shard_engine_synchronize, timeout)

    def begin_step(self, **options):
        """Announces the options of the next step before the backward pass, so
        that units are updated as their gradients become ready. COLLECTIVE."""
        options = _calls.fill(_c.shard_step_options, options)
        self._call(lib.shard_engine_begin_step, ctypes.byref(options))

    def join(self, timeout=0):
        """Takes part in the other ranks' steps, without gradients, until every
        rank has joined. Returns the number of these steps. COLLECTIVE."""
        return self._value(ctypes.c_int64, lib.shard_engine_join, timeout)

    def zero_grad(self):
        """Sets this rank's gradients to zero."""
        self._call(lib.shard_engine_zero_grad)

    # ---- Units ---------------------------------------------------------------

    def unit(self, unit, pass_, timeout=0):
        """Returns a unit for a pass, a Pass: a context manager that acquires
        and releases the unit.

            with engine.unit(0, shard.Pass.BACKWARD) as unit:
                unit.grad(weight)[...] = ...
                unit.mark_grads_ready()
        """
        return Unit(self, unit, pass_, timeout)

    def unit_acquire(self, unit, pass_, timeout=0):
        """Acquires a unit for a pass. COLLECTIVE where it gathers."""
        self._call(lib.shard_engine_unit_acquire, unit, pass_, timeout)

    def unit_release(self, unit):
        """Releases an acquired unit."""
        self._call(lib.shard_engine_unit_release, unit)

    def mark_unit_grads_ready(self, unit):
        """Declares this rank's gradients of a unit written."""
        self._call(lib.shard_engine_mark_unit_grads_ready, unit)

    def mark_param_grad_ready(self, param):
        """Declares this rank's gradient of one parameter written."""
        self._call(lib.shard_engine_mark_param_grad_ready, param)

    def set_accumulate(self, accumulate):
        """Sets whether another backward pass follows before the step."""
        self._call(lib.shard_engine_set_accumulate, accumulate)

    # ---- Full parameters, and changes at run time ----------------------------

    def summon(self, module=0, rank=-1, *, write_back=False, timeout=0):
        """Makes whole copies of the parameters in a module and below, on one
        rank or, with -1, on all. Returns FullParams, a context manager.

            with engine.summon(write_back=True) as full:
                full.param(weight)[...] *= 0.5

        COLLECTIVE; so is the end of the block."""
        with self._guard:
            before, self._summoned = self._summoned, True
            try:
                lib.shard_engine_summon(self._c, module, rank, timeout)
            except BaseException:
                self._summoned = before
                raise
        return FullParams(self, write_back, timeout)

    def add_param_group(self, optimizer, params, timeout=0):
        """Gives parameters, which are frozen or in the default group, a group
        of their own; returns its id. Replaces the plan: arrays of parameters
        and gradients must be gone. COLLECTIVE."""
        group = ctypes.c_int32()
        self._replan(
            lambda params: lib.shard_engine_add_param_group(
                self._c, optimizer, params, len(params), timeout,
                ctypes.byref(group)), int32_array(params))
        return group.value

    def set_trainable(self, params, trainable=True, timeout=0):
        """Freezes or trains parameters from here on. Replaces the plan: arrays
        of parameters and gradients must be gone. COLLECTIVE."""
        self._replan(
            lambda params: lib.shard_engine_set_trainable(
                self._c, params, len(params), trainable, timeout),
            int32_array(params))
