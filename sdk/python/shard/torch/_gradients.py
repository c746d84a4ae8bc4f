# SPDX-License-Identifier: Apache-2.0
"""The way of gradients from autograd into libshard's memory.

A hook runs when autograd has set or added to a parameter's .grad. None of this
waits for other ranks, but where a unit's gradients are handed over."""

import contextlib
import functools
import weakref

import torch

from .._c import MissingGrads, Pass
from ._modules import tensor_of


class _Gradients:
    """Calls arrived(id) for each trainable parameter whose gradient arrives."""

    def __init__(self, engine, params):
        self.engine = engine
        self.params = params
        # A node lives as long as somebody refers to it.
        self._nodes = []
        self._handles = []
        for number, param in self.trainable():
            with torch.enable_grad():
                node = param.expand_as(param).grad_fn.next_functions[0][0]
            self._nodes.append(node)
            self._handles.append(node.register_hook(
                functools.partial(_call_arrived, weakref.ref(self), number)))

    def trainable(self):
        return [(number, param) for number, param in enumerate(self.params)
                if param.requires_grad]

    def remove(self):
        """Removes the hooks, and what shows the engine's memory."""
        for handle in self._handles:
            handle.remove()
        self._nodes.clear()

    @contextlib.contextmanager
    def accumulate(self):
        yield


def _call_arrived(gradients, number, *_):
    gradients = gradients()
    if gradients is not None:
        gradients.arrived(number)


def _copy(target, grad):
    target.copy_(grad.to_dense() if grad.is_sparse else grad)


class WholeGradients(_Gradients):
    """Gradients that every rank keeps whole: .grad is a view of libshard's
    memory from its arrival on. They are declared in the step, so programs may
    change them before it."""

    def __init__(self, engine, params):
        super().__init__(engine, params)
        self._views = {number: tensor_of(engine.grad_view(number))
                       for number, _ in self.trainable()}
        plan = engine.plan()
        self._units = {}
        for number, _ in self.trainable():
            self._units.setdefault(plan.unit_of(number), []).append(number)
        # From the first use of a unit on, only declared gradients count.
        for unit in list(self._units)[:1]:
            with engine.unit(unit, Pass.BACKWARD):
                pass

    def arrived(self, number):
        param, view = self.params[number], self._views[number]
        if param.grad is not view:
            with torch.no_grad():
                _copy(view, param.grad)
            param.grad = view

    def declare(self):
        """Declares the gradients that there are."""
        for unit, numbers in self._units.items():
            present = [number for number in numbers
                       if self.params[number].grad is not None]
            for number in present:
                self.arrived(number)  # Those that the program has set itself.
            if len(present) == len(numbers):
                self.engine.mark_unit_grads_ready(unit)
            else:
                for number in present:
                    self.engine.mark_param_grad_ready(number)

    def zero(self, set_to_none):
        for _, param in self.trainable():
            if set_to_none:
                param.grad = None
            elif param.grad is not None:
                with torch.no_grad():
                    param.grad.zero_()

    def remove(self):
        super().remove()
        self._views.clear()


class ShardedGradients(_Gradients):
    """Gradients of which a rank keeps its own part. A unit's are handed over,
    and .grad is None again, when all of them have arrived, those of the other
    units in order: last unit first, on all ranks alike."""

    def __init__(self, engine, params, missing_grads):
        super().__init__(engine, params)
        self._may_miss = missing_grads not in (None, 0, MissingGrads.ERROR)
        plan = engine.plan()
        units = {}
        for number, _ in self.trainable():
            units.setdefault(plan.unit_of(number), []).append(number)
        self._units = sorted(units.items(), reverse=True)
        self._place = {number: place
                       for place, (_, numbers) in enumerate(self._units)
                       for number in numbers}
        self._in_pass = False
        self._accumulating = False
        self._declared = False  # In a pass since the last step.

    @contextlib.contextmanager
    def accumulate(self):
        self.engine.set_accumulate(True)
        self._accumulating = True
        try:
            yield
        finally:
            self._accumulating = False
            self.engine.set_accumulate(False)

    def arrived(self, number):
        if not self._in_pass:
            self._begin_pass()
            torch.autograd.Variable._execution_engine.queue_callback(
                self._end_pass)
        place = self._place[number]
        if place < self._next:
            raise RuntimeError(
                f"a gradient of parameter {number} arrived after the gradients"
                " of its unit were reduced: checkpoint modules with"
                " use_reentrant=False")
        self._waiting[place].discard(number)
        while self._next < len(self._units) and not self._waiting[self._next]:
            self._hand_over()

    def _begin_pass(self):
        if self._declared == "last":
            raise RuntimeError(
                "a second backward pass since the last step: run all but the"
                " last one in `with optimizer.accumulate():`, or call"
                " zero_grad")
        self._in_pass = True
        self._next = 0
        self._waiting = [set(numbers) for _, numbers in self._units]
        self._declared = "accumulating" if self._accumulating else "last"

    def _end_pass(self):
        try:
            while self._next < len(self._units):
                self._hand_over()
        finally:
            self._in_pass = False

    def _hand_over(self):
        unit, numbers = self._units[self._next]
        self._next += 1
        present = [number for number in numbers
                   if self.params[number].grad is not None]
        if not present and not self._may_miss:
            return  # The step names the unit.
        whole = len(present) == len(numbers)
        with self.engine.unit(unit, Pass.BACKWARD if self._may_miss or not whole
                              else Pass.BACKWARD_OVERWRITE):
            for number in present:
                param = self.params[number]
                _copy(tensor_of(self.engine.grad_view(number)), param.grad)
                param.grad = None
            if whole:
                self.engine.mark_unit_grads_ready(unit)
            else:
                for number in present:
                    self.engine.mark_param_grad_ready(number)

    def declare(self):
        """Hands over what no backward pass has."""
        if self._declared != "last":
            self._begin_pass()
            self._end_pass()
        self._declared = False

    def zero(self, set_to_none):
        for _, param in self.trainable():
            param.grad = None
        self._in_pass = False  # A pass may have ended with an exception.
        if self._declared:
            self._declared = False
            self.engine.zero_grad()
