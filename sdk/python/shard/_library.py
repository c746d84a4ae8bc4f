# SPDX-License-Identifier: Apache-2.0
"""Loads libshard.so.0. `lib` has a function for each one of the headers."""

import ctypes
import os
import pathlib
import re
import types

from . import _c
from ._arguments import decode
from ._errors import Error, parse_detail

_ABI = 0  # The number in the name libshard.so.0.
_CARRIED = pathlib.Path(__file__).parent / "lib" / "libshard.so.0"


def find():
    """Returns the library's path, or its name for the system's search:
    SHARD_LIBRARY, else the library that a wheel carries, else libshard.so.0
    where LD_LIBRARY_PATH or ldconfig has one."""
    chosen = os.environ.get("SHARD_LIBRARY")
    if chosen:
        return chosen
    return str(_CARRIED) if _CARRIED.exists() else "libshard.so.0"


def check_version(path, version, abi):
    """Refuses a library that is older than the package, or has another ABI. A
    newer one of the same ABI has all that the package knows."""
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if abi == _ABI and found >= _c.VERSION:
        return
    wanted = ".".join(map(str, _c.VERSION))
    raise ImportError(
        f"the package shard {wanted} needs libshard {wanted} or newer with ABI"
        f" {_ABI}; {path} is {version} with ABI {abi}. Install the two"
        " together, or set SHARD_LIBRARY to the library that belongs to the"
        " package",
        path=path)


def _load():
    path = find()
    try:
        library = ctypes.CDLL(path)
        library.shard_version.restype = ctypes.c_char_p
        library.shard_abi_version.restype = ctypes.c_int32
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"cannot load libshard: {error}. Install the wheel, which carries"
            " the library, or set SHARD_LIBRARY to the path of libshard.so.0",
            path=path) from None
    check_version(path, decode(library.shard_version()),
                  library.shard_abi_version())
    return path, library


def _raise_error(error, function, arguments):
    """Turns a shard_error* into an exception; runs after each function that
    returns one."""
    if not error:
        return
    try:
        raise Error(
            lib.shard_error_code(error),
            lib.shard_error_message(error).decode("utf-8", "replace"),
            lib.shard_error_rank(error),
            parse_detail(
                lib.shard_error_detail(error).decode("utf-8", "replace")))
    finally:
        lib.shard_error_free(error)


_ARGUMENT_ERROR = re.compile(r"argument \d+: (?:<class ')?(\w+)(?:'>)?: (.*)",
                             re.DOTALL)
_KINDS = {"ValueError": ValueError, "UnicodeEncodeError": ValueError,
          "OverflowError": OverflowError}


def _bind(name, result, parameters):
    """Returns the C function `name`. A wrong argument is a TypeError,
    ValueError or OverflowError, and not ctypes' own kind."""
    function = getattr(_cdll, name)
    function.restype = result
    function.argtypes = parameters
    if result is _c.error_p:
        function.errcheck = _raise_error

    def call(*arguments):
        try:
            return function(*arguments)
        except ctypes.ArgumentError as error:
            match = _ARGUMENT_ERROR.match(str(error))
            kind = _KINDS.get(match[1], TypeError) if match else TypeError
            reason = match[2] if match else str(error)
            raise kind(f"{name}: {reason}") from None

    call.__name__ = name
    return call


path, _cdll = _load()
lib = types.SimpleNamespace(
    **{name: _bind(name, *types_) for name, types_ in _c.FUNCTIONS.items()})
