# SPDX-License-Identifier: Apache-2.0
"""Memory of the caller's: the buffer protocol, for reading and writing."""

import ctypes


class _PyBuffer(ctypes.Structure):
    """Py_buffer of Python's C interface."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    ]


_WRITABLE = 0x1
_C_CONTIGUOUS_AND_FORMAT = 0x20 | 0x10 | 0x8 | 0x4

_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = [ctypes.POINTER(_PyBuffer)]
_release.restype = None


class Buffer:
    """The memory of an object with the buffer protocol, which stays where it is
    as long as the Buffer lives. It must be contiguous, row-major."""

    device = 1, 0  # The host's memory, as __dlpack_device__ says it.

    def __init__(self, source, writable=False):
        self._buffer = _PyBuffer()
        self._held = False
        _get(source, self._buffer,
             _C_CONTIGUOUS_AND_FORMAT | (_WRITABLE if writable else 0))
        self._held = True
        self.address = self._buffer.buf
        self.nbytes = self._buffer.len
        self.readonly = bool(self._buffer.readonly)
        self.format = (self._buffer.format or b"B").decode()
        self.shape = tuple(self._buffer.shape[:self._buffer.ndim])

    def __del__(self):
        if self._held:
            self._held = False
            _release(self._buffer)
