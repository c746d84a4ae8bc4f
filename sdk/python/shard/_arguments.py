# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of C functions. ctypes itself would cut a number that is
too large for its type, and a text at a NUL."""

import ctypes
import operator
import os


def encode(value):
    """Returns a text as the bytes of C. Keys that are not UTF-8, which come as
    surrogates (decode), become what they were."""
    if value is None:
        return None
    value = os.fspath(value)
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if b"\0" in value:
        raise ValueError(f"a text must not have a NUL: {value!r}")
    return value


def decode(value):
    """Returns bytes of C as a text. Bytes that are not UTF-8 become surrogates,
    as in names of files (os.fsdecode)."""
    return value.decode("utf-8", "surrogateescape")


def instance(kind, given, what):
    """Returns an object, which must be of this class: C cannot tell a handle of
    one kind from that of another."""
    if not isinstance(given, kind):
        raise TypeError(f"{what} must be a shard.{kind.__name__}, not {given!r}")
    return given


def whole_number(value, low, high):
    """Returns an integer, which must be in [low, high)."""
    number = operator.index(value)
    if not low <= number < high:
        raise OverflowError(f"{number} is not from {low} to {high - 1}")
    return number


# The ranges of the integer types.
RANGES = {
    ctypes.c_int32: (-2**31, 2**31),
    ctypes.c_int64: (-2**63, 2**63),
    ctypes.c_uint64: (0, 2**64),
}


class int32:
    @staticmethod
    def from_param(value):
        return ctypes.c_int32(whole_number(value, -2**31, 2**31))


class int64:
    @staticmethod
    def from_param(value):
        return ctypes.c_int64(whole_number(value, -2**63, 2**63))


class size:
    @staticmethod
    def from_param(value):
        return ctypes.c_size_t(whole_number(value, 0, 2**64))


class double:
    @staticmethod
    def from_param(value):
        return ctypes.c_double(value)


class text:
    @staticmethod
    def from_param(value):
        return ctypes.c_char_p(encode(value))


def int32_array(values):
    """Returns numbers as an array of int32_t."""
    numbers = [whole_number(value, *RANGES[ctypes.c_int32]) for value in values]
    return (ctypes.c_int32 * len(numbers))(*numbers)


def int64_array(values):
    """Returns numbers as an array of int64_t."""
    numbers = [whole_number(value, *RANGES[ctypes.c_int64]) for value in values]
    return (ctypes.c_int64 * len(numbers))(*numbers)
