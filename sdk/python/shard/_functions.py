# SPDX-License-Identifier: Apache-2.0
"""Functions that belong to no handle."""

import ctypes
import json

from . import _calls
from ._arguments import decode
from ._library import lib


def version():
    """Returns the version of the library that is loaded: "0.2.0"."""
    return decode(lib.shard_version())


def abi_version():
    """Returns the number in the library's name, libshard.so.N."""
    return lib.shard_abi_version()


def code_name(code):
    """Returns the name of an error code: "RANK_LOST"."""
    return decode(lib.shard_code_name(code))


def dtype_name(dtype):
    """Returns the name of an element type: "bf16"."""
    return decode(lib.shard_dtype_name(dtype))


def dtype_size(dtype):
    """Returns the bytes of an element; 0 for DType.OPAQUE."""
    return lib.shard_dtype_size(dtype)


def clean_tensor_name(name, strip_leading_module=False):
    """Returns a name without the components that torch's wrappers leave in it
    (_fsdp_wrapped_module and others), and on request without one leading
    "module."."""
    return _calls.copied_text(lib.shard_clean_tensor_name, name,
                              strip_leading_module)


def devices():
    """Describes the accelerators of this machine, and why one cannot be used,
    as a dict: shard_devices_json in engine.h has its keys. Opens each for a
    moment."""
    return json.loads(_calls.copied_text(lib.shard_devices_json))


def schedule_lr(schedule, step):
    """Returns the learning rate of a step, which counts from 1, by a text such
    as "cosine?lr=3e-4&warmup=2000&total=100000"."""
    return _calls.value(ctypes.c_double, lib.shard_schedule_lr, schedule, step)
