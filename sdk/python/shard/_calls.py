# SPDX-License-Identifier: Apache-2.0
"""The forms that calls of the C interface have: options in, results out."""

import collections
import ctypes

from . import _c
from ._arguments import RANGES, decode, encode, int32_array, whole_number
from ._errors import member


def _result_type(struct):
    """Returns the named tuple for a C struct of results: shard_plan_info is
    PlanInfo. It has a tuple for a shape, and owns all it has."""
    name = "".join(word.title() for word in struct.__name__.split("_")[1:])
    fields = [field for field, _ in struct._fields_
              if field not in ("struct_size", "reserved")]
    return collections.namedtuple(name, fields, module="shard")


# The named tuples by their structs.
RESULTS = {
    struct: _result_type(struct) for struct in vars(_c).values()
    if isinstance(struct, type) and issubclass(struct, ctypes.Structure)
    and not struct.__name__.endswith(("_options", "_filter", "_placement"))
    and struct is not ctypes.Structure
}


def as_result(struct):
    """Returns a C struct of results as its named tuple."""
    kind = RESULTS[type(struct)]
    values = []
    for field in kind._fields:
        value = getattr(struct, field)
        if field in struct._enums_:
            value = member(struct._enums_[field], value)
        elif field == "shape":
            value = tuple(value[:struct.ndim])
        values.append(value)
    return kind._make(values)


def fetch(kind, function, *arguments):
    """Calls a function that fills a struct, its last parameter."""
    struct = kind(struct_size=ctypes.sizeof(kind))
    function(*arguments, ctypes.byref(struct))
    return as_result(struct)


def value(kind, function, *arguments):
    """Calls a function whose last parameter receives a number."""
    number = kind()
    function(*arguments, ctypes.byref(number))
    return number.value


def pointer(function, *arguments):
    """Calls a function whose last parameter receives a handle."""
    return value(ctypes.c_void_p, function, *arguments)


def text(function, *arguments):
    """Calls a function whose last parameter receives a text of the handle."""
    return decode(value(ctypes.c_char_p, function, *arguments))


def copied(function, *arguments, closing=1):
    """Calls a function that copies bytes to a buffer of the caller's: `closing`
    is 1 where a NUL follows them. Asks for the length first."""
    length = ctypes.c_size_t()
    capacity = 0
    while True:
        buffer = ctypes.create_string_buffer(capacity) if capacity else None
        function(*arguments, buffer, capacity, ctypes.byref(length))
        if length.value + closing <= capacity or length.value == 0:
            return buffer.raw[:length.value] if buffer else b""
        capacity = length.value + closing


def copied_text(function, *arguments):
    """Returns the text that a function copies to a buffer."""
    return decode(copied(function, *arguments))


def fill(kind, options):
    """Returns a struct of options with these values; those not given, or None,
    have their defaults. A state filter's fields are given beside the others."""
    struct = kind(struct_size=ctypes.sizeof(kind))
    fields = _settable(kind)
    for name, given in options.items():
        if name not in fields:
            raise TypeError(
                f"{kind.__name__} has no {name!r}; it has {', '.join(fields)}")
        if given is not None:
            target, type_ = fields[name]
            _set(getattr(struct, target) if target else struct, name, type_,
                 given)
    return struct


_fields_of = {}


def _settable(kind):
    """Returns name: (inner struct or None, type) for the fields of options."""
    if kind not in _fields_of:
        fields = {}
        for name, type_ in kind._fields_:
            if type_ is _c.shard_state_filter:
                fields |= {inner: (name, inner_type) for inner, (_, inner_type)
                           in _settable(type_).items()}
            elif not (name.startswith("num_") or name.endswith("user_data")
                      or name in ("struct_size", "reserved")):
                fields[name] = (None, type_)
        _fields_of[kind] = fields
    return _fields_of[kind]


def _set(struct, name, type_, given):
    try:
        if type_ is ctypes.c_char_p:
            setattr(struct, name, encode(given))
        elif type_ is ctypes.POINTER(ctypes.c_int32):
            array = int32_array(given)
            setattr(struct, name, array)
            setattr(struct, f"num_{name}", len(array))
        elif type_ in RANGES:
            setattr(struct, name, whole_number(given, *RANGES[type_]))
        else:
            setattr(struct, name, given)
    except (TypeError, ValueError, OverflowError) as error:
        raise type(error)(f"option {name}: {error}") from None
