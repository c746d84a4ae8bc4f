# SPDX-License-Identifier: Apache-2.0
"""Tensors of a checkpoint, which are read when they are indexed."""

import ctypes
import operator
import struct

from . import _c, _calls
from ._c import DType
from ._errors import Code, Error
from ._library import lib
from ._values import from_stored
from ._views import FORMATS, View, address_of, new_memory, numpy

# The most bytes that one read takes into memory beside its result.
_PIECE = 16 << 20

_Operators = numpy.lib.mixins.NDArrayOperatorsMixin if numpy else object


class Tensor(_Operators):
    """A tensor in a file. Indexing it reads a range of rows: tensor[10:20]
    reads ten rows, tensor[...] everything. Where a checkpoint has checksums,
    the slices that the range lies in are read, of at most 64 MiB each. In
    numpy's functions and operators it stands for all its values.

    bf16 and float8 arrive as float32, which has all their values. `raw` reads
    the bytes that are stored."""

    def __init__(self, checkpoint, index):
        self._checkpoint = checkpoint
        self._index = index
        self._info = _calls.fetch(_c.shard_tensor_info,
                                  lib.shard_checkpoint_tensor, checkpoint,
                                  index)

    # ---- What it is ----------------------------------------------------------

    @property
    def key(self):
        return _calls.text(lib.shard_checkpoint_tensor_key, self._checkpoint,
                           self._index)

    @property
    def type(self):
        """The name of the element type: "bf16"; for DType.OPAQUE the name in
        the file."""
        return _calls.text(lib.shard_checkpoint_tensor_type, self._checkpoint,
                           self._index)

    @property
    def alias_of(self):
        """The key of the tensor that this one names again, or None."""
        if self._info.alias_of < 0:
            return None
        return _calls.text(lib.shard_checkpoint_tensor_key, self._checkpoint,
                           self._info.alias_of)

    info = property(lambda self: self._info, doc="All properties: TensorInfo.")
    dtype = property(lambda self: self._info.dtype)
    role = property(lambda self: self._info.role)
    shape = property(lambda self: self._info.shape)
    ndim = property(lambda self: self._info.ndim)
    size = property(lambda self: self._info.numel, doc="Number of elements.")
    nbytes = property(lambda self: self._info.bytes)
    step = property(lambda self: self._info.step)

    def __len__(self):
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def slices(self):
        """Returns the tensor's parts at their places in files: a list of
        TensorSlice."""
        return [_calls.fetch(_c.shard_tensor_slice, lib.shard_checkpoint_slice,
                             self._checkpoint, self._index, i)
                for i in range(self._info.num_slices)]

    def __repr__(self):
        return f"<shard.Tensor {self.key!r} {self.type} {list(self.shape)}>"

    # ---- Reading -------------------------------------------------------------

    def raw(self, begin=0, numel=None):
        """Reads elements from `begin` on as the bytes that are stored: a
        writable memoryview. Of DType.OPAQUE, `begin` and `numel` count
        bytes."""
        size = lib.shard_dtype_size(self.dtype) or 1
        stored = self.nbytes // size
        begin = operator.index(begin)
        numel = stored - begin if numel is None else operator.index(numel)
        if not 0 <= begin <= begin + numel <= stored:
            raise Error(Code.OUT_OF_RANGE, f"elements {begin} to"
                        f" {begin + numel} of {self.key!r}, which has"
                        f" {stored}")
        memory = new_memory(numel * size)
        lib.shard_checkpoint_read(self._checkpoint, self._index, begin, numel,
                                  address_of(memory), memory.nbytes)
        return memory

    def read(self, begin=0, numel=None):
        """Reads elements from `begin` on, row-major, as an array of one
        dimension; without numpy as a memoryview of what is stored."""
        if self.dtype == DType.Q8:
            raise TypeError(
                f"{self.key!r} is of type q8, whose values are a code and a"
                " scale: export() or convert(dtype=DType.F32) the checkpoint,"
                " or read the codes with raw()")
        # Opaque, or of a type that a newer library knows.
        if self.dtype not in FORMATS:
            raise TypeError(
                f"{self.key!r} is of type {self.type}, whose values are not"
                " read: read its bytes with raw()")
        memory = self.raw(begin, numel)
        size = struct.calcsize(FORMATS[self.dtype])
        return from_stored(memory, self.dtype, (memory.nbytes // size,))

    def _rows(self, begin, count):
        """Reads `count` of the first dimension's rows."""
        row = self.size // self.shape[0] if self.shape[0] else 0
        return self.read(begin * row, count * row).reshape(
            count, *self.shape[1:])

    def __getitem__(self, index):
        if numpy is None:
            raise TypeError("indexing a tensor needs numpy: install it, or use"
                            " read()")
        parts = index if isinstance(index, tuple) else (index,)
        if not parts or not self.shape or 0 in self.shape:
            return self.read().reshape(self.shape)[index]
        first, *rest = parts
        if isinstance(first, (int, numpy.integer)) and not isinstance(
                first, bool):
            row = range(self.shape[0])[first]
            return self._rows(row, 1)[(0, *rest)]
        if isinstance(first, slice) and all(_is_basic(part) for part in rest):
            return self._pick(range(self.shape[0])[first], tuple(rest))
        return self.read().reshape(self.shape)[index]

    def _pick(self, rows, rest):
        """Reads rows with a step, and what `rest` picks of each. Reads pieces
        of rows, so that memory stays that of the result; rows that are far
        apart one by one."""
        if not rows:
            return self._rows(0, 0)[(slice(None), *rest)]
        if rows.step == 1 and not rest:
            return self._rows(rows.start, len(rows))
        row_bytes = max(1, self.nbytes // self.shape[0])
        step = abs(rows.step)
        per_piece = max(1, _PIECE // (row_bytes * step))
        backwards = rows.step < 0
        ascending = rows[::-1] if backwards else rows
        parts = []
        for at in range(0, len(ascending), per_piece):
            piece = ascending[at:at + per_piece]
            span = self._rows(piece[0], piece[-1] - piece[0] + 1)
            parts.append(span[(slice(None, None, step), *rest)])
        result = parts[0] if len(parts) == 1 else numpy.concatenate(parts)
        return result[::-1] if backwards else result

    def __dlpack__(self, stream=None):
        """Reads everything, in the type that is stored, for from_dlpack of
        torch and others: bf16 stays bf16."""
        if self.dtype not in FORMATS:
            raise BufferError(f"DLPack has no {self.type}")
        memory = self.raw()
        return View(address_of(memory), self.dtype, self.shape, memory,
                    writable=True).__dlpack__()

    def __dlpack_device__(self):
        return 1, 0  # The host's memory.

    def __array__(self, dtype=None, copy=None):
        array = self[...]
        return array if dtype is None else array.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        inputs = [numpy.asarray(one) if isinstance(one, Tensor) else one
                  for one in inputs]
        return getattr(ufunc, method)(*inputs, **options)

    def __iter__(self):
        for row in range(len(self)):
            yield self[row]


def _is_basic(index):
    """Whether an index keeps the dimension of rows in front: numbers and
    slices, not arrays."""
    return (isinstance(index, (int, slice, numpy.integer))
            and not isinstance(index, bool))
