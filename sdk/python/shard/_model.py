# SPDX-License-Identifier: Apache-2.0
"""Models: the modules, parameters and buffers that a program declares."""

import ctypes

from . import _calls
from ._arguments import int32_array, int64_array
from ._handles import Closable, Guard, Handle
from ._library import lib


class Model(Closable):
    """A tree of modules with named parameters and buffers. Modules, parameters
    and buffers have ids from 0 up, each in the order of adding; module 0 is the
    root.

        model = shard.Model("GPT")
        block = model.add_module(0, "block", "Block")
        weight = model.add_param(block, "weight", shard.DType.F32, (64, 64))
    """

    _noun = "model"

    def __init__(self, class_name=None):
        self._guard = Guard("model")
        self._handle = Handle(
            _calls.pointer(lib.shard_model_create, class_name),
            lib.shard_model_free, self._guard)

    def _new_id(self, function, *arguments):
        with self._guard:
            return _calls.value(ctypes.c_int32, function, self._c, *arguments)

    def _call(self, function, *arguments):
        with self._guard:
            function(self._c, *arguments)

    def add_module(self, parent, name, class_name=None):
        """Adds a module within `parent`; returns its id."""
        return self._new_id(lib.shard_model_add_module, parent, name,
                            class_name)

    def add_param(self, module, name, dtype, shape):
        """Adds a trainable parameter; returns its id."""
        shape = int64_array(shape)
        return self._new_id(lib.shard_model_add_param, module, name, dtype,
                            shape, len(shape))

    def add_buffer(self, module, name, dtype, shape, persistent=True):
        """Adds a buffer, which steps do not change: batch-norm statistics.
        Persistent ones are in checkpoints. Returns its id."""
        shape = int64_array(shape)
        return self._new_id(lib.shard_model_add_buffer, module, name, dtype,
                            shape, len(shape), persistent)

    def tie(self, module, name, param):
        """Gives a parameter another name, for tied weights."""
        self._call(lib.shard_model_tie, module, name, param)

    def freeze(self, param):
        """Freezes a parameter: it has no gradient and no optimizer state."""
        self._call(lib.shard_model_freeze, param)

    def ignore_param(self, param):
        """Leaves a parameter to the program alone."""
        self._call(lib.shard_model_ignore_param, param)

    def ignore_module(self, module):
        """Leaves a module, with all below it, to the program alone."""
        self._call(lib.shard_model_ignore_module, module)

    def add_param_group(self, optimizer, params):
        """Gives parameters an optimizer of their own, such as
        "?weight_decay=0"; returns the group's id."""
        params = int32_array(params)
        return self._new_id(lib.shard_model_add_param_group, optimizer, params,
                            len(params))
