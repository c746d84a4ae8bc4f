# SPDX-License-Identifier: Apache-2.0
"""Plans: how a model is sharded over ranks, a pure computation."""

import ctypes
import json

from . import _c, _calls
from ._arguments import instance
from ._buffers import Buffer
from ._handles import Callback, Closable, Handle
from ._library import lib
from ._model import Model
from ._views import View


class Plan(Closable):
    """Decides every unit, flat buffer, slot and owner.

        plan = shard.Plan(model, stage=1, world_size=2,
                          optimizer="adamw?lr=1e-3")

    Options are the fields of shard_plan_options (plan.h): stage, world_size
    (required), partition, owners, optimizer, wrap, param_dtype and so on.
    wrap_predicate is a function of a module's id and its number of elements
    that returns whether it is a unit. Immutable: any thread."""

    _noun = "plan"

    def __init__(self, model, *, wrap_predicate=None, **options):
        instance(Model, model, "model")
        options = _calls.fill(_c.shard_plan_options, options)
        predicate = Callback(_c.shard_wrap_fn, wrap_predicate,
                             guards=[model._guard], give=bool, failed=0)
        options.wrap_predicate = predicate.c
        with predicate, model._guard:
            self._adopt(_calls.pointer(lib.shard_plan_create, model._c,
                                       ctypes.byref(options)))

    def _adopt(self, pointer):
        self._handle = Handle(pointer, lib.shard_plan_free)

    @classmethod
    def _of(cls, pointer):
        plan = cls.__new__(cls)
        plan._adopt(pointer)
        return plan

    @classmethod
    def decode(cls, data):
        """Makes a plan from the bytes of encode()."""
        buffer = Buffer(data)
        return cls._of(_calls.pointer(lib.shard_plan_decode, buffer.address,
                                      buffer.nbytes))

    def encode(self):
        """Returns the plan as bytes, for another process or a file."""
        return _calls.copied(lib.shard_plan_encode, self._c, closing=0)

    # ---- Decisions -----------------------------------------------------------

    def info(self):
        """Returns the decisions and counts: PlanInfo."""
        return _calls.fetch(_c.shard_plan_info, lib.shard_plan_get_info,
                            self._c)

    def unit_of(self, param):
        """Returns the unit that a parameter is in."""
        return self._number(lib.shard_plan_unit_of, param)

    def unit_of_module(self, module):
        """Returns the unit whose outermost module this is, or None."""
        unit = self._number(lib.shard_plan_unit_of_module, module)
        return None if unit < 0 else unit

    def unit_module(self, unit):
        """Returns a unit's outermost module."""
        return self._number(lib.shard_plan_unit_module, unit)

    def memory(self, **placement):
        """Predicts the bytes of the plan's engines: Memory. Options are
        ranks_per_host, separate_memory and device."""
        placement = _calls.fill(_c.shard_placement, placement)
        return _calls.fetch(_c.shard_memory, lib.shard_plan_memory, self._c,
                            ctypes.byref(placement))

    def text(self):
        """Returns the plan for people."""
        return _calls.copied_text(lib.shard_plan_text, self._c)

    def json(self):
        """Returns the plan as a dict."""
        return json.loads(_calls.copied_text(lib.shard_plan_json, self._c))

    def warnings(self):
        """Returns a list of warnings."""
        return _calls.text(lib.shard_plan_warnings, self._c).splitlines()

    # ---- Layout --------------------------------------------------------------

    def param_info(self, param):
        """Returns where a parameter is, and of what kind: ParamInfo."""
        return _calls.fetch(_c.shard_param_info, lib.shard_plan_param_info,
                            self._c, param)

    def param_name(self, param, index=0):
        """Returns a parameter's FQN, or with an index above 0 an alias."""
        return _calls.text(lib.shard_plan_param_name, self._c, param, index)

    def find_param(self, fqn):
        """Returns the id of the parameter with this FQN or alias."""
        return self._number(lib.shard_plan_find_param, fqn)

    def buffer_info(self, buffer):
        """Returns the size and kind of a flat buffer: BufferInfo."""
        return _calls.fetch(_c.shard_buffer_info, lib.shard_plan_buffer_info,
                            self._c, buffer)

    def buffer_param(self, buffer, index):
        """Returns the parameter at a place of a flat buffer."""
        return self._number(lib.shard_plan_buffer_param, buffer, index)

    def rank_range(self, buffer, rank):
        """Returns the range of a flat buffer that a rank owns: Range."""
        return _calls.fetch(_c.shard_range, lib.shard_plan_rank_range, self._c,
                            buffer, rank)

    def slices(self, buffer, begin, numel):
        """Returns the parts of parameters that lie in a range of a flat buffer:
        a list of Slice."""
        count = ctypes.c_size_t()
        arguments = self._c, buffer, begin, numel
        lib.shard_plan_slices(*arguments, None, 0, ctypes.byref(count))
        slices = (_c.shard_slice * count.value)()
        if count.value:
            slices[0].struct_size = ctypes.sizeof(_c.shard_slice)
            lib.shard_plan_slices(*arguments, slices, count.value,
                                  ctypes.byref(count))
        return [_calls.as_result(slice) for slice in slices]

    def param_view(self, param, data):
        """Returns the array of a parameter within `data`, the caller's own copy
        of its whole flat buffer: an array or other buffer of that dtype. The
        result shows the memory of `data`."""
        info = self.param_info(param)
        buffer = Buffer(data)
        numel, rest = divmod(buffer.nbytes, lib.shard_dtype_size(info.dtype))
        if rest:
            raise ValueError(f"{buffer.nbytes} bytes are no whole number of"
                             f" {info.dtype.name} elements")
        address = _calls.pointer(lib.shard_plan_param_view, self._c, param,
                                 buffer.address, numel)
        return View(address, info.dtype, info.shape, buffer,
                    writable=not buffer.readonly).array()

    # ---- Names, modules, buffers of the model --------------------------------

    def name_info(self, name):
        """Returns the parameter and the module of a name: NameInfo."""
        return _calls.fetch(_c.shard_name_info, lib.shard_plan_name_info,
                            self._c, name)

    def module_info(self, index):
        """Returns the module at a place of the module walk: ModuleInfo."""
        return _calls.fetch(_c.shard_module_info, lib.shard_plan_module_info,
                            self._c, index)

    def module_name(self, module):
        """Returns a module's FQN; "" is the root's."""
        return _calls.text(lib.shard_plan_module_name, self._c, module)

    def module_class(self, module):
        """Returns a module's class name."""
        return _calls.text(lib.shard_plan_module_class, self._c, module)

    def model_buffer_info(self, buffer):
        """Returns the declaration of a buffer of the model: ModelBufferInfo."""
        return _calls.fetch(_c.shard_model_buffer_info,
                            lib.shard_plan_model_buffer_info, self._c, buffer)

    def model_buffer_name(self, buffer):
        """Returns the FQN of a buffer of the model."""
        return _calls.text(lib.shard_plan_model_buffer_name, self._c, buffer)

    def _number(self, function, *arguments):
        return _calls.value(ctypes.c_int32, function, self._c, *arguments)
