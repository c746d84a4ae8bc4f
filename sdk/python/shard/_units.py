# SPDX-License-Identifier: Apache-2.0
"""Units in forward and backward passes, and full parameters, as scopes."""

import ctypes

from ._c import Pass
from ._errors import Code, Error, failed_precondition
from ._library import lib
from ._views import HOST_MEMORY, address_of, new_memory, shaped


_NEW = "is not acquired yet; use it in a with block"
_RELEASED = "was released; acquire it again"


class Unit:
    """A unit for one pass: acquired at the beginning of a `with` block,
    released at its end. Its accessors refuse other units' parameters, and all
    parameters once the unit was released."""

    def __init__(self, engine, unit, pass_, timeout):
        self._engine = engine
        self._unit = unit
        self._pass = pass_
        self._timeout = timeout
        self._problem = _NEW

    def __enter__(self):
        self._engine.unit_acquire(self._unit, self._pass, self._timeout)
        self._problem = ""
        return self

    def __exit__(self, kind, error, trace):
        if self._problem:
            return
        self._problem = _RELEASED
        try:
            self._engine.unit_release(self._unit)
        except Exception:
            if error is None:
                raise

    @property
    def id(self):
        return self._unit

    def release(self):
        """Releases the unit before the end of the block."""
        self._check()
        self._problem = _RELEASED
        self._engine.unit_release(self._unit)

    def params(self):
        """Returns all parameters of the unit: a list of UnitParam, whose grad
        is None in a forward pass."""
        self._check()
        return self._engine.unit_params(self._unit,
                                        grads=self._pass != Pass.FORWARD)

    def param(self, param):
        """Returns a parameter of the unit as a read-only array."""
        self._check(param)
        return self._engine.param(param)

    def grad(self, param):
        """Returns the gradient of a parameter of the unit as an array, which is
        to be written until it is declared ready."""
        self._check(param)
        return self._engine.grad(param)

    def mark_grads_ready(self):
        """Declares the unit's gradients written."""
        self._check()
        self._engine.mark_unit_grads_ready(self._unit)

    def mark_param_grad_ready(self, param):
        """Declares the gradient of one parameter of the unit written."""
        self._check(param)
        self._engine.mark_param_grad_ready(param)

    def _check(self, param=None):
        if self._problem:
            raise failed_precondition(f"unit {self._unit} {self._problem}")
        if param is not None:
            with self._engine._guard:
                unit = self._engine._plan().unit_of(param)
            if unit != self._unit:
                raise Error(
                    Code.INVALID_ARGUMENT,
                    f"parameter {param} is in unit {unit}, not in unit"
                    f" {self._unit}; acquire the unit that it is in")


_ENDED = "the full parameters were given back; summon them again"


class FullParams:
    """Whole copies of parameters, from Engine.summon to the end of the block, in
    the host's memory on every device.

    An array of param() is the caller's own: it may be changed, and stays valid.
    With write_back the end of the block writes the arrays to the parameters of
    all ranks. When the block raises on one rank, nothing is written; ranks that
    wanted to write get DESYNC and do not wait."""

    def __init__(self, engine, write_back, timeout):
        self._engine = engine
        self._write_back = write_back
        self._timeout = timeout
        self._taken = {}  # Parameter to its bytes.
        self._open = True

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if not self._open:
            return
        if error is None:
            self.end(self._write_back)
            return
        try:
            self.end(False)
        except Exception:
            pass  # The block's exception says more.

    def param(self, param):
        """Returns a parameter as an array of the caller's own, in its type:
        bf16 is uint16. A second call returns the same memory."""
        if not self._open:
            raise failed_precondition(_ENDED)
        engine = self._engine
        with engine._guard:
            shape, dtype, _ = engine._kind(param)
            if param not in self._taken:
                address, nbytes = self._place(lib.shard_engine_param, param)
                if (engine.device != HOST_MEMORY
                        and not engine._is_copy(param, address)):
                    raise failed_precondition(
                        f"parameter {param} is not summoned, and lies in the"
                        f" memory of GPU {engine.device[1]}, which the host"
                        " cannot read; summon a module that has it")
                memory = self._taken[param] = new_memory(nbytes)
                ctypes.memmove(address_of(memory), address, nbytes)
        return shaped(self._taken[param], dtype, shape)

    def end(self, write_back=False):
        """Frees the copies, and writes them to the parameters on request.
        COLLECTIVE."""
        if not self._open:
            raise failed_precondition(_ENDED)
        write_back = bool(write_back)
        self._open = False
        engine = self._engine
        with engine._guard:
            if write_back:
                for param, values in self._taken.items():
                    address, nbytes = self._place(
                        lib.shard_engine_writable_param, param)
                    ctypes.memmove(address, address_of(values), nbytes)
            # The copies are freed, whatever the call returns.
            engine._summoned = False
            lib.shard_engine_summon_end(engine._c, write_back, self._timeout)

    def _place(self, function, param):
        engine = self._engine
        address, numel = ctypes.c_void_p(), ctypes.c_int64()
        function(engine._c, param, ctypes.byref(address), ctypes.byref(numel))
        size = lib.shard_dtype_size(engine._kind(param)[1])
        return address.value, numel.value * size
