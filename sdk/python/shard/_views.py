# SPDX-License-Identifier: Apache-2.0
"""Memory of the library as arrays.

Arrays are numpy's where numpy is installed, else memoryviews. The memory is not
converted: bf16 elements are uint16 (from_bf16 gives their values), and those of
8 bits are uint8. For a library that knows bf16, such as torch, a View has
DLPack's methods."""

import ctypes
import math
import struct

from ._c import DType
from ._dlpack import make_capsule

try:
    import numpy
except ImportError:
    numpy = None

# The types as letters of the struct module.
FORMATS = {
    DType.F32: "f", DType.F64: "d", DType.F16: "e", DType.BF16: "H",
    DType.Q8: "B", DType.F8_E4M3: "B", DType.F8_E5M2: "B",
    DType.I8: "b", DType.I16: "h", DType.I32: "i", DType.I64: "q",
    DType.U8: "B", DType.U16: "H", DType.U32: "I", DType.U64: "Q",
    DType.BOOL: "?",
}


# As __dlpack_device__ says it.
HOST_MEMORY = 1, 0


class _DeviceMemory:
    """The memory of a GPU, as an object that keeps its owner. It has no buffer:
    to read it would end the process."""


class View:
    """Elements in memory that `owner` keeps alive: dtype, shape, device, address
    and array(). The device is as __dlpack_device__ says it; the address is that
    of the first element in its memory.

    An array of a view keeps the memory alive, and nothing else: the values are
    those that the memory has now, and are another unit's once a unit was
    released."""

    def __init__(self, address, dtype, shape, owner, writable,
                 device=HOST_MEMORY):
        self.device = device
        self.dtype = dtype
        self.shape = tuple(shape)
        self.writable = writable
        size = math.prod(self.shape) * struct.calcsize(FORMATS[dtype])
        # Arrays refer to this object, and so to the owner.
        if device != HOST_MEMORY:
            self.memory = _DeviceMemory()
            self.address = address or 0
        else:
            self.memory = ((ctypes.c_char * size).from_address(address)
                           if size else (ctypes.c_char * 0)())
            self.address = ctypes.addressof(self.memory)
        self.memory.owner = owner

    def host_memory(self):
        """Returns the memory as an object with the buffer protocol. BufferError
        where it is a GPU's."""
        if self.device == HOST_MEMORY:
            return self.memory
        raise BufferError(
            f"the elements lie in the memory of GPU {self.device[1]}, which"
            " numpy cannot read; give a view (param_view, grad_view) to a"
            " library for GPUs, as torch.from_dlpack(view), or copy the values"
            " by state_dict(copy=True)")

    def array(self):
        """Returns the memory as a numpy array, or without numpy as a
        memoryview. BufferError where it is a GPU's."""
        memory = memoryview(self.host_memory()).cast("B")
        if not self.writable:
            memory = memory.toreadonly()
        return shaped(memory, self.dtype, self.shape)

    def __dlpack__(self, stream=None):
        """Returns a capsule for from_dlpack of torch, numpy and others. What
        they make of it is writable for them even where the view is not: do not
        write there."""
        return make_capsule(self)

    def __dlpack_device__(self):
        return self.device


def new_memory(nbytes):
    """Returns writable memory of the caller's own. numpy's is not set to zeros
    first, and is of huge pages: it is filled in a third of the time."""
    if numpy is None:
        return memoryview(bytearray(nbytes))
    return memoryview(numpy.empty(nbytes, "B"))


def address_of(memory):
    """Returns the address of writable memory; 0 where there is none."""
    if not memory.nbytes:
        return 0
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def shaped(memory, dtype, shape):
    """Returns bytes as an array of a type and shape."""
    letter = FORMATS[dtype]
    if numpy is not None:
        if not memory.nbytes:
            return numpy.empty(shape, letter)
        return numpy.frombuffer(memory, letter).reshape(shape)
    if letter == "e":
        letter = "H"  # A memoryview has no f16.
    return memory.cast(letter, tuple(shape)) if memory.nbytes else memory
