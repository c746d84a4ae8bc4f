# SPDX-License-Identifier: Apache-2.0
"""An engine's tensors: parameters, gradients, buffers, bound memory."""

import collections
import ctypes
import gc
import weakref

from . import _calls
from ._arguments import int32_array
from ._dlpack import drop_unneeded
from ._errors import Error, failed_precondition
from ._handles import Closable
from ._library import lib
from ._plan import Plan
from ._values import elements, float32_elements, stored_tensor
from ._views import View, numpy

UnitParam = collections.namedtuple("UnitParam", "param data grad",
                                   module="shard")


class EngineTensors(Closable):
    """The part of Engine that gives out memory. Arrays show the engine's memory
    and keep it; what they show is another unit's once a unit was released."""

    _noun = "engine"

    def _call(self, function, *arguments):
        with self._guard:
            function(self._c, *arguments)

    def _value(self, kind, function, *arguments):
        with self._guard:
            return _calls.value(kind, function, self._c, *arguments)

    def _fetch(self, kind, function, *arguments):
        with self._guard:
            return _calls.fetch(kind, function, self._c, *arguments)

    # ---- The plan in force ---------------------------------------------------

    def plan(self):
        """Returns the plan that is in force."""
        with self._guard:
            return Plan._of(_calls.pointer(lib.shard_engine_plan, self._c))

    def _forget_plan(self):
        self._layout = None
        self._kinds = {}  # Parameter to (shape, dtype, gradient's dtype).
        self._lent = {}  # Id of memory to a weak reference to it.
        self._forget_arrays()

    def _forget_arrays(self):
        drop_unneeded()
        # Making an array takes ten times as long as taking a view of one.
        self._arrays = {}  # (parameter, is_grad) to (address, array).
        self._unit_pointers = {}  # Unit to arrays of C.
        self._unit_arrays = {}  # (unit, grads) to (pointers, UnitParams).

    def close(self):
        if not self.closed:
            with self._guard:
                self._forget_arrays()  # They keep the memory.
                self._handle = None

    def _plan(self):
        """Returns the plan in force; REQUIRES the guard."""
        if self._layout is None:
            self._layout = Plan._of(
                _calls.pointer(lib.shard_engine_plan, self._c))
        return self._layout

    def _kind(self, param):
        if param not in self._kinds:
            info = self._plan().param_info(param)
            buffer = self._plan().buffer_info(info.buffer)
            self._kinds[param] = info.shape, info.dtype, buffer.grad_dtype
        return self._kinds[param]

    def _replan(self, call, params):
        """Runs call(params), which replaces the plan, and so frees the memory
        of parameters and gradients. Where an array still shows this memory, it
        runs the call with a parameter that does not exist instead, so that all
        ranks get an error, and none waits."""
        with self._guard:
            self._forget_arrays()
            if self._lent:
                gc.collect()
            lent = [memory.what for memory in
                    (reference() for reference in self._lent.copy().values())
                    if memory is not None]
            if not lent:
                call(params)
                self._forget_plan()
                return
            try:
                call(int32_array([-1]))
            except Error as error:
                raise failed_precondition(
                    f"{len(lent)} arrays show memory that this call frees, the"
                    f" first {lent[0]}: delete them, or keep copies"
                ) from error

    def _lend(self, address, dtype, shape, writable, what, device=None):
        """Returns a view of memory that a new plan frees, by default of the
        engine's device."""
        view = View(address, dtype, shape, self._c, writable,
                    device or self._device)
        key = id(view.memory)
        view.memory.what = what
        self._lent[key] = weakref.ref(
            view.memory, lambda _, lent=self._lent: lent.pop(key, None))
        return view

    # ---- Parameters and gradients --------------------------------------------

    def param_view(self, param):
        """Returns a parameter's elements, to be read, as a View."""
        with self._guard:
            return self._lend_param(param, self._address(
                lib.shard_engine_param, param), False)

    def grad_view(self, param):
        """Returns this rank's gradient of a parameter as a View."""
        with self._guard:
            return self._lend_grad(param, self._address(
                lib.shard_engine_grad, param))

    def writable_param_view(self, param):
        """Returns a parameter's elements, to be written on rank 0 before the
        broadcast, as a View."""
        with self._guard:
            return self._lend_param(param, self._address(
                lib.shard_engine_writable_param, param), True)

    def _address(self, function, param):
        address = ctypes.c_void_p()
        function(self._c, param, ctypes.byref(address), None)
        return address.value

    def _is_copy(self, param, address):
        """Whether an address of a parameter is that of a copy of summon(). Only
        copies can be written then. REQUIRES the guard."""
        if not self._summoned:
            return False
        try:
            return address == self._address(lib.shard_engine_writable_param,
                                            param)
        except Error:
            return False

    def _lend_param(self, param, address, writable):
        if self._is_copy(param, address):
            raise failed_precondition(
                f"parameter {param} is summoned, and a view of the copy would"
                " outlive it; FullParams.param gives the copy as an array of"
                " your own")
        shape, dtype, _ = self._kind(param)
        return self._lend(address, dtype, shape, writable,
                          f"those of parameter {param}")

    def _lend_grad(self, param, address):
        shape, _, dtype = self._kind(param)
        return self._lend(address, dtype, shape, True,
                          f"the gradient of parameter {param}")

    def _array(self, param, address, is_grad):
        """Returns an array of a parameter or its gradient at an address."""
        known = self._arrays.get((param, is_grad))
        if known is None or known[0] != address:
            view = (self._lend_grad(param, address) if is_grad else
                    self._lend_param(param, address, False))
            known = address, view.array()
            if numpy is None:
                return known[1]
            self._arrays[param, is_grad] = known
        return known[1].view()

    def param(self, param):
        """Returns a parameter's elements as a read-only array of the engine's
        memory."""
        with self._guard:
            return self._array(param, self._address(lib.shard_engine_param,
                                                    param), False)

    def grad(self, param):
        """Returns this rank's gradient of a parameter as an array of the
        engine's memory, to be written between steps."""
        with self._guard:
            return self._array(param, self._address(lib.shard_engine_grad,
                                                    param), True)

    def writable_param(self, param):
        """Returns a parameter's elements as an array to be written: on rank 0,
        before broadcast_params."""
        return self.writable_param_view(param).array()

    def unit_params(self, unit, grads=True):
        """Returns a unit's parameters in one call: a list of UnitParam, each
        with the parameter's id, data and grad. With `grads` False, or for a
        frozen parameter, grad is None."""
        with self._guard:
            params, data, grad = self._pointers(unit)
            lib.shard_engine_unit_params(self._c, unit, params, data,
                                         grad if grads else None, len(params),
                                         None)
            pointers = bytes(data) + (bytes(grad) if grads else b"")
            known = self._unit_arrays.get((unit, grads))
            if known is None or known[0] != pointers:
                known = pointers, self._make_unit_arrays(params, data,
                                                         grads and grad)
                if numpy is None:
                    return known[1]
                self._unit_arrays[unit, grads] = known
        return [UnitParam(param, values.view(),
                          None if gradient is None else gradient.view())
                for param, values, gradient in known[1]]

    def _pointers(self, unit):
        """Returns arrays of C for a unit's ids, parameters and gradients."""
        if unit not in self._unit_pointers:
            count = ctypes.c_size_t()
            lib.shard_engine_unit_params(self._c, unit, None, None, None, 0,
                                         ctypes.byref(count))
            self._unit_pointers[unit] = (
                (ctypes.c_int32 * count.value)(),
                (ctypes.c_void_p * count.value)(),
                (ctypes.c_void_p * count.value)())
        return self._unit_pointers[unit]

    def _make_unit_arrays(self, params, data, grad):
        result = []
        for i, param in enumerate(params):
            values = self._array(param, data[i], False)
            gradient = None
            if grad and self._kind(param)[2]:  # 0: frozen.
                gradient = self._array(param, grad[i], True)
            result.append(UnitParam(param, values, gradient))
        return result

    def set_param(self, param, values):
        """Sets a parameter's first values, of which those of rank 0 count: an
        array of the parameter's shape, or its bytes."""
        with self._guard:
            shape, dtype, _ = self._kind(param)
            data = elements(values, dtype, shape, f"parameter {param}")
            lib.shard_engine_set_param(self._c, param, data.address,
                                       data.nbytes)

    def set_state(self, param, state, values):
        """Sets an optimizer state of a parameter, such as "exp_avg", to float32
        values of the whole tensor."""
        data = float32_elements(values)
        self._call(lib.shard_engine_set_state, param, state, data.address,
                   data.nbytes // 4)

    def broadcast_params(self, timeout=0):
        """Sends rank 0's parameters to all ranks; once, before the first step.
        COLLECTIVE."""
        self._call(lib.shard_engine_broadcast_params, timeout)

    # ---- Memory of the caller's own ------------------------------------------

    def bind_param(self, param, values=None, grad=None):
        """Binds arrays of the caller to a parameter and its gradient: steps
        copy the parameter to `values`, and read `grad`. None binds nothing. The
        engine keeps the arrays as long as it uses their memory. Tensors of other
        libraries, such as torch, are taken by DLPack; they lie on the engine's
        device."""
        with self._guard:
            _, dtype, grad_dtype = self._kind(param)
            if values is not None:
                values = self._bindable(values, dtype, "values")
            if grad is not None:
                grad = self._bindable(grad, grad_dtype or dtype, "grad")
            # Where the call fails, the memory bound before may stay in use, or
            # the new one be.
            bound = self._c.keep.setdefault(("bound", param), [])
            bound.append((values, grad))
            lib.shard_engine_bind_param(
                self._c, param,
                values.address if values else None,
                values.nbytes if values else 0,
                grad.address if grad else None, grad.nbytes if grad else 0)
            del bound[:-1]

    def _bindable(self, given, dtype, what):
        """Returns the memory of `given`, which is on the engine's device."""
        taken = stored_tensor(given, dtype, what)
        if taken.device != tuple(self.device):
            raise ValueError(
                f"{what} lies on the device {taken.device}, and the engine's"
                f" tensors on {tuple(self.device)} (type, number), in DLPack's"
                " codes")
        return taken

    # ---- Buffers -------------------------------------------------------------

    def buffer(self, buffer):
        """Returns this rank's copy of a buffer of the model as an array of the
        engine's memory, to be read and written."""
        return self.buffer_view(buffer).array()

    def buffer_view(self, buffer):
        """Returns this rank's copy of a buffer of the model as a View."""
        with self._guard:
            address = ctypes.c_void_p()
            lib.shard_engine_buffer(self._c, buffer, ctypes.byref(address),
                                    None)
            info = self._plan().model_buffer_info(buffer)
            # A new plan leaves buffers where they are.
            return View(address.value, info.dtype, info.shape, self._c, True)

    def broadcast_buffers(self, root=0, timeout=0):
        """Replaces the buffers of all ranks by those of one. COLLECTIVE."""
        self._call(lib.shard_engine_broadcast_buffers, root, timeout)
