# SPDX-License-Identifier: Apache-2.0
"""State dicts: named tensors and numbers in memory."""

import collections
import collections.abc
import ctypes

from . import _c, _calls
from ._arguments import int64_array
from ._errors import Code, Error, MissingKey, failed_precondition
from ._handles import Closable, Guard, Handle
from ._library import lib
from ._values import elements, shape_of
from ._views import HOST_MEMORY, View

def stale_state():
    return failed_precondition(
        "the engine has had another plan since this state dict was made: make"
        " another one, or make it with copy=True")


LocalTensor = collections.namedtuple("LocalTensor", "info begin data",
                                     module="shard")


class StateDict(Closable, collections.abc.Mapping):
    """A mapping from keys to tensors: Engine.state_dict() has this rank's part,
    and one that is made empty is filled with whole tensors (add, add_number),
    for Engine.load_state_dict. A value is a LocalTensor: info, and this rank's
    elements as an array `data` of one dimension from element `begin` on; a View
    where they lie in the memory of a GPU.

    `numbers` are those of "state.FQN.step" and "param_groups.FQN.lr"."""

    _noun = "state dict"
    # The engine whose memory the arrays show, and a mark of its plan.
    _engine = None
    _plan_mark = None

    def __init__(self):
        self._adopt(_calls.pointer(lib.shard_state_dict_create))

    def _adopt(self, pointer):
        self._guard = Guard("state dict")
        self._handle = Handle(pointer, lib.shard_state_dict_free, self._guard)

    @classmethod
    def _of(cls, pointer):
        state = cls.__new__(cls)
        state._adopt(pointer)
        return state

    def add(self, key, dtype, values, shape=None):
        """Adds a whole tensor: an array, whose floats are rounded to the dtype,
        or bytes and a shape. Its memory is kept."""
        shape = shape_of(values) if shape is None else tuple(shape)
        data = elements(values, dtype, shape, f"tensor {key!r}")
        shape = int64_array(shape)
        with self._guard:
            # Kept first: a signal handler may raise right after the call.
            tensors = self._c.keep.setdefault("tensors", [])
            tensors.append(data)
            try:
                lib.shard_state_dict_add(self._c, key, dtype, shape, len(shape),
                                         data.address, data.nbytes)
            except Error:
                tensors.pop()
                raise

    def add_number(self, key, value):
        """Adds a number, such as "param_groups.weight.lr"."""
        with self._guard:
            lib.shard_state_dict_add_number(self._c, key, value)

    def find(self, key):
        """Returns the number of a key's tensor. MissingKey when there is none.
        """
        try:
            with self._guard:
                return _calls.value(ctypes.c_int64, lib.shard_state_dict_find,
                                    self._c, key)
        except Error as error:
            if error.code != Code.NOT_FOUND:
                raise
            raise MissingKey(error.code, error.message) from None

    def __getitem__(self, key):
        tensor = self.find(key)
        begin, numel = ctypes.c_int64(), ctypes.c_int64()
        data = ctypes.c_void_p()
        kind, ordinal = ctypes.c_int32(), ctypes.c_int32()
        with self._guard:
            info = _calls.fetch(_c.shard_tensor_info,
                                lib.shard_state_dict_tensor, self._c, tensor)
            lib.shard_state_dict_local(self._c, tensor, ctypes.byref(begin),
                                       ctypes.byref(numel), ctypes.byref(data))
            lib.shard_state_dict_device(self._c, tensor, ctypes.byref(kind),
                                        ctypes.byref(ordinal))
            view = self._view(data.value, info, numel.value, key,
                              (kind.value, ordinal.value))
        on_host = view.device == HOST_MEMORY
        return LocalTensor(info, begin.value, view.array() if on_host else view)

    def _show(self, engine):
        """Makes arrays show the engine's memory, which they then keep."""
        self._engine = engine
        self._plan_mark = engine._lent
        self._c.keep["engine"] = engine._c

    def _stale(self):
        """Whether the engine's memory moved since the state dict was made."""
        return (self._engine is not None
                and self._engine._lent is not self._plan_mark)

    def _view(self, address, info, numel, key, device):
        if self._engine is None:
            return View(address, info.dtype, (numel,), self._c, False)
        with self._engine._guard:
            if self._stale():
                raise stale_state()
            return self._engine._lend(address, info.dtype, (numel,), False,
                                      f"those of {key!r}", device)

    def __contains__(self, key):
        try:
            self.find(key)
        except MissingKey:
            return False
        return True

    def __iter__(self):
        for tensor in range(len(self)):
            with self._guard:
                key = _calls.copied_text(lib.shard_state_dict_tensor_key,
                                         self._c, tensor)
            yield key

    def __len__(self):
        with self._guard:
            return lib.shard_state_dict_num_tensors(self._c)

    @property
    def numbers(self):
        """The numbers by their keys, as a dict."""
        numbers = {}
        with self._guard:
            for number in range(lib.shard_state_dict_num_numbers(self._c)):
                value = ctypes.c_double()
                key = _calls.copied_text(lib.shard_state_dict_number, self._c,
                                         number, ctypes.byref(value))
                numbers[key] = value.value
        return numbers

    __repr__ = Closable.__repr__
    __eq__ = object.__eq__
    __hash__ = object.__hash__
