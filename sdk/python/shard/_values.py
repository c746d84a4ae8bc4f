# SPDX-License-Identifier: Apache-2.0
"""Values from and for the library, with their types and shapes: what a caller
gives as elements, and stored elements as numbers that numpy has."""

import ctypes

from ._buffers import Buffer
from ._c import DType
from ._dlpack import TakenTensor
from ._views import FORMATS, address_of, new_memory, numpy, shaped


def elements(given, dtype, shape, what):
    """Returns a Buffer with `given` as elements of a type and shape.

    `given` is bytes, taken as they are; or an array of that shape, or nested
    lists, whose floats are rounded to a narrower type. Without numpy it is
    bytes or a buffer of exactly that type."""
    dtype = DType(dtype)
    if isinstance(given, (bytes, bytearray)):
        return Buffer(given)
    if dtype not in FORMATS:
        raise TypeError(f"{what} has no elements of type {dtype.name}; the types"
                        f" are {', '.join(kind.name for kind in FORMATS)}")
    if numpy is None:
        return stored_elements(given, dtype, what)
    array = numpy.asarray(given)
    if array.shape != tuple(shape):
        raise ValueError(
            f"{what} has the shape {array.shape}, not {tuple(shape)}")
    wanted = numpy.dtype(FORMATS[dtype])
    if array.dtype != wanted:
        array = _cast(array, dtype, wanted, what)
    return Buffer(numpy.ascontiguousarray(array).reshape(-1))


def stored_elements(given, dtype, what, writable=False):
    """Returns the Buffer of an object whose elements are of this type already,
    or bytes."""
    buffer = Buffer(given, writable)
    accepted = FORMATS[dtype], "B", "H" if dtype == DType.F16 else "B"
    # A long has the bits of an int or of a long long.
    found = buffer.format.lstrip("@=<").replace("l", "q").replace("L", "Q")
    if found not in accepted:
        raise TypeError(f"{what} has elements of format {buffer.format!r}, not"
                        f" {FORMATS[dtype]!r} ({dtype.name})")
    return buffer


def stored_tensor(given, dtype, what):
    """Returns the memory of an array, or of another library's tensor, whose
    elements are of this type already, to be written."""
    if hasattr(given, "__dlpack__") and not _has_buffer(given):
        return TakenTensor(given, dtype, what)
    return stored_elements(given, dtype, what, writable=True)


def _has_buffer(given):
    try:
        memoryview(given).release()
    except TypeError:
        return False
    return True


def _cast(array, dtype, wanted, what):
    if dtype == DType.BF16 and array.dtype.kind == "f":
        return to_bf16(array)
    # Lists of Python's numbers are int64, whatever their values.
    narrowed = array.dtype.kind in "iu" and wanted.kind in "iu"
    if not narrowed and not numpy.can_cast(array.dtype, wanted, "same_kind"):
        raise TypeError(f"{what} has elements of type {array.dtype}, which are"
                        f" no {dtype.name}")
    result = array.astype(wanted)
    if narrowed and not numpy.array_equal(result, array):
        raise OverflowError(f"{what} has values that {dtype.name} has not")
    return result


def shape_of(given):
    """Returns the shape of an array or of nested lists."""
    if isinstance(given, (bytes, bytearray)):
        raise TypeError("bytes need a shape beside them")
    return Buffer(given).shape if numpy is None else numpy.shape(given)


def float32_elements(given):
    """Returns a Buffer with `given`, an array of any shape, as float32."""
    if numpy is None:
        return elements(given, DType.F32, (), "the argument")
    array = numpy.asarray(given)
    return elements(array, DType.F32, array.shape, "the argument")


def from_stored(memory, dtype, shape):
    """Returns stored bytes as an array of numbers: bf16 and the types of 8 bits
    as float32, which has all their values; other types as they are."""
    array = shaped(memory, dtype, shape)
    if numpy is None:
        return array
    if dtype == DType.BF16:
        return from_bf16(array)
    if dtype in (DType.F8_E4M3, DType.F8_E5M2):
        return _f8_values(dtype)[array]
    return array


def from_bf16(bits):
    """Returns the values of bf16 elements, given as uint16, as float32."""
    bits = numpy.asarray(bits, numpy.uint16)
    values = (bits.reshape(-1).astype(numpy.uint32) << 16).view(numpy.float32)
    return values.reshape(bits.shape)


def to_bf16(values):
    """Returns floats as bf16 elements in uint16, rounded to nearest even."""
    values = numpy.asarray(values).astype(numpy.float32)
    bits = values.reshape(-1).view(numpy.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    nan = ((bits >> 16) | 0x40)  # A NaN keeps its sign, and stays one.
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    result = numpy.where(is_nan, nan, rounded).astype(numpy.uint16)
    return result.reshape(values.shape)


_f8_tables = {}


def _f8_values(dtype):
    """Returns the values of all 256 codes of a type of 8 bits."""
    if dtype not in _f8_tables:
        mantissa_bits, bias = (3, 7) if dtype == DType.F8_E4M3 else (2, 15)
        codes = numpy.arange(256)
        exponent = (codes & 0x7F) >> mantissa_bits
        fraction = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
        values = numpy.where(exponent > 0,
                             (1 + fraction) * 2.0**(exponent - bias),
                             fraction * 2.0**(1 - bias))
        if dtype == DType.F8_E4M3:  # It has no infinity.
            values[(codes & 0x7F) == 0x7F] = numpy.nan
        else:
            values[(codes & 0x7F) == 0x7C] = numpy.inf
            values[(codes & 0x7F) > 0x7C] = numpy.nan
        values[128:] *= -1
        _f8_tables[dtype] = values.astype(numpy.float32)
    return _f8_tables[dtype]


def copy_of(address, dtype, shape, nbytes):
    """Returns a copy of elements in memory, as from_stored has them."""
    memory = new_memory(nbytes)
    ctypes.memmove(address_of(memory), address, nbytes)
    return from_stored(memory, dtype, shape)
