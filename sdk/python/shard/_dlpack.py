# SPDX-License-Identifier: Apache-2.0
"""Views as DLPack capsules (dlpack.h, version 0), and those of other libraries as
memory, in plain ctypes."""

import ctypes
import gc
import sys

from ._c import DType

_BFLOAT, _FLOAT, _INT, _UINT, _BOOL = 4, 2, 0, 1, 6

# The types that DLPack has, as (code, bits).
_TYPES = {
    DType.F32: (_FLOAT, 32), DType.F64: (_FLOAT, 64), DType.F16: (_FLOAT, 16),
    DType.BF16: (_BFLOAT, 16),
    DType.I8: (_INT, 8), DType.I16: (_INT, 16), DType.I32: (_INT, 32),
    DType.I64: (_INT, 64),
    DType.U8: (_UINT, 8), DType.U16: (_UINT, 16), DType.U32: (_UINT, 32),
    DType.U64: (_UINT, 64), DType.BOOL: (_BOOL, 8),
}


class _Tensor(ctypes.Structure):
    """DLTensor, and behind it the deleter of DLManagedTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


def _function(name, result, *arguments):
    """Returns a function of Python's C interface with types of our own: those of
    ctypes.pythonapi's attributes are the whole program's to set."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new = _function("PyCapsule_New", ctypes.py_object, ctypes.c_void_p,
                 ctypes.c_char_p, ctypes.c_void_p)
_is_valid = _function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object,
                      ctypes.c_char_p)
_pointer_of = _function("PyCapsule_GetPointer", ctypes.c_void_p,
                        ctypes.py_object, ctypes.c_char_p)
_set_name = _function("PyCapsule_SetName", ctypes.c_int, ctypes.py_object,
                      ctypes.c_char_p)

class _Exported(ctypes.Union):
    """A tensor in memory that a deleter of C may write: see _DELETER."""

    _fields_ = [("tensor", _Tensor), ("written", ctypes.c_uint8 * 128)]


# The C function that a consumer calls when it needs the tensor no more. It sets
# the tensor's data to NULL, and drop_unneeded frees the tensor then. A function of
# Python must not be called there: a consumer is often freed while an exception
# leaves the function that has it, and the exception would be lost. sigemptyset
# writes zeros where its argument points, up to a sigset_t, which has 128 bytes.
_DELETER = ctypes.cast(ctypes.CDLL(None).sigemptyset, ctypes.c_void_p)

_NAME = b"dltensor"
_TAKEN = b"used_dltensor"
# Address of a tensor to the tensor, to what it needs, and to its capsule.
_alive = {}


def _references(entry):
    return sys.getrefcount(entry[-1])


_UNSHARED = _references((object(),))


def drop_unneeded():
    """Frees tensors that consumers have deleted, and those whose capsules nobody
    took, and nobody has any more. A capsule with a destructor would free its
    tensor at once, but consumers that refuse a tensor drop the capsule with their
    exception set, and no function of Python can run then."""
    # A copy, which is made at once: to list the items makes tuples, for which the
    # collector may run, and so this function.
    for address, entry in _alive.copy().items():
        is_deleted = not entry[0].tensor.data
        # A consumer renames the capsule.
        if is_deleted or (_references(entry) <= _UNSHARED
                          and _is_valid(entry[-1], _NAME)):
            _alive.pop(address, None)


def _collected(phase, info):
    """Called by the garbage collector, which runs while no exception is set: memory
    that consumers have deleted does not wait for the next capsule."""
    if phase == "start" and info["generation"] > 0 and _alive:
        drop_unneeded()


gc.callbacks.append(_collected)


def make_capsule(view):
    """Returns a view as a capsule that keeps the view's memory alive."""
    drop_unneeded()
    if view.dtype not in _TYPES:
        raise BufferError(f"DLPack has no {view.dtype.name}")
    code, bits = _TYPES[view.dtype]
    shape = (ctypes.c_int64 * len(view.shape))(*view.shape)
    exported = _Exported()
    address = ctypes.addressof(exported)
    # NULL is for tensors that were deleted. One without elements has any address.
    exported.tensor = _Tensor(
        data=view.address or address, device_type=view.device[0],
        device_id=view.device[1], ndim=len(shape), code=code, bits=bits,
        lanes=1, shape=shape, deleter=_DELETER)
    capsule = _new(address, _NAME, None)
    _alive[address] = exported, shape, view.memory, capsule
    return capsule


class TakenTensor:
    """The memory of another library's tensor, which stays where it is as long as
    this lives: address, nbytes, device. It must be contiguous, row-major."""

    def __init__(self, source, dtype, what):
        self.device = tuple(map(int, source.__dlpack_device__()))
        # -1: the source need not wait for anybody's stream.
        capsule = (source.__dlpack__() if self.device == (1, 0)
                   else source.__dlpack__(stream=-1))
        self._tensor = _Tensor.from_address(_pointer_of(capsule, _NAME))
        _set_name(capsule, _TAKEN)
        tensor = self._tensor
        kind = tensor.code, tensor.bits
        if kind != _TYPES[dtype] or tensor.lanes != 1:
            raise TypeError(f"{what} has elements of DLPack's type {kind}, not"
                            f" {_TYPES[dtype]} ({dtype.name})")
        self.nbytes = tensor.bits // 8
        contiguous = True
        for dim in reversed(range(tensor.ndim)):
            size = tensor.shape[dim]
            if tensor.strides and size > 1:
                stride = tensor.strides[dim] * (tensor.bits // 8)
                contiguous = contiguous and stride == self.nbytes
            self.nbytes *= size
        if not contiguous and self.nbytes:
            raise BufferError(f"{what} is not contiguous; give a contiguous copy")
        self.address = (tensor.data or 0) + tensor.byte_offset

    def __del__(self):
        tensor = getattr(self, "_tensor", None)
        if tensor is not None and tensor.deleter:
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(tensor.deleter)(
                ctypes.addressof(tensor))
