#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes sdk/python/shard/_c.py from the C headers.

    sdk/python/bindings/generate.py           # writes the file
    sdk/python/bindings/generate.py --check   # exit code 1 when it would differ
"""

import argparse
import pathlib
import sys
import textwrap

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tools/bindings"))

import c_headers
from c_headers import Callback, Enum, Struct, Type

OUTPUT = ROOT / "sdk/python/shard/_c.py"

HEAD = '''# SPDX-License-Identifier: Apache-2.0
# Written by sdk/python/bindings/generate.py from api/include/shard/*.h.
"""The C interface as ctypes has it."""

import enum
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_int32,
                    c_int64, c_size_t, c_uint64, c_void_p)

from ._arguments import double, int32, int64, size, text


class error_p(c_void_p):
    """The shard_error* that a function returns; NULL is success."""

'''

# Parameters of these types are checked: ctypes would cut a number that is too
# large, and a text at a NUL.
CHECKED = {
    "c_char_p": "text",
    "c_double": "double",
    "c_int32": "int32",
    "c_int64": "int64",
    "c_size_t": "size",
}

SCALARS = {
    "double": "c_double",
    "int32_t": "c_int32",
    "int64_t": "c_int64",
    "size_t": "c_size_t",
    "uint64_t": "c_uint64",
}


class Writer:
    """Turns the declarations of the headers into lines of Python."""

    def __init__(self, api):
        self.api = api
        self.aliases = {alias.name: alias.type for alias in api.aliases}
        self.structs = {struct.name for struct in api.structs}
        self.callbacks = {callback.name for callback in api.callbacks}
        self.enums = {enum.alias: python_name(enum.alias)
                      for enum in api.enums if enum.alias}
        self.lines = []

    def value(self, type):
        """Returns the ctypes of a type that is passed by value."""
        if type.to:
            return self.pointer(type)
        if type.name in self.aliases:
            return self.value(self.aliases[type.name])
        if type.name in self.structs or type.name in self.callbacks:
            return type.name
        return SCALARS[type.name]

    def pointer(self, type):
        """Returns the ctypes of a pointer. One to elements that the library
        reads is a void pointer, which takes arrays of any kind."""
        to = type.to
        if to == Type("shard_error"):
            return "error_p"
        if to.to:
            return "POINTER(c_char_p)" if to.to == Type(
                "char", const=True) else "POINTER(c_void_p)"
        if to == Type("char", const=True):
            return "c_char_p"
        if to.name in self.structs:
            return f"POINTER({to.name})"
        name = self.aliases.get(to.name, to).name
        if name in SCALARS and not to.const:
            return f"POINTER({SCALARS[name]})"
        return "c_void_p"

    def field(self, field):
        type = self.value(field.type)
        if field.type.to and field.type.to.named().name in SCALARS:
            # A field keeps the array alive that it is set to.
            type = f"POINTER({SCALARS[field.type.to.name]})"
        if field.length:
            type = f"{type} * {field.length}"
        return f'("{field.name}", {type}),'

    def result(self, declaration):
        if declaration.result == Type("void"):
            return "None"
        return self.value(declaration.result)

    def enum(self, declaration):
        names = [constant.name for constant in declaration.constants]
        if not declaration.alias:
            for constant in declaration.constants:
                name = constant.name.removeprefix("SHARD_")
                self.lines.append(f"{name} = {constant.value}")
            return
        comment = next(a.comment for a in self.api.aliases
                       if a.name == declaration.alias)
        name = python_name(declaration.alias)
        self.lines += ["", f"class {name}(enum.IntEnum):"]
        self.lines += docstring(comment)
        prefix = len(common_words(names))
        for constant in declaration.constants:
            name = constant.name[prefix:]
            self.lines.append(f"    {name} = {constant.value}")
        self.lines.append("")

    def struct(self, declaration):
        self.lines += ["", f"class {declaration.name}(Structure):"]
        self.lines.append("    _fields_ = [")
        self.lines += ["        " + self.field(f) for f in declaration.fields]
        self.lines.append("    ]")
        enums = {f.name: self.enums[f.type.name] for f in declaration.fields
                 if f.type.name in self.enums}
        entries = ", ".join(f'"{name}": {kind}' for name, kind in enums.items())
        self.lines += [f"    _enums_ = {{{entries}}}", ""]

    def write(self):
        version = ", ".join(str(c.value) for c in self.api.constants
                            if c.name.startswith("SHARD_VERSION_"))
        self.lines.append(f"VERSION = ({version})")
        for declaration in self.api.order:
            if isinstance(declaration, Enum):
                self.enum(declaration)
            elif isinstance(declaration, Struct):
                self.struct(declaration)
            elif isinstance(declaration, Callback):
                parts = [self.result(declaration)]
                parts += [self.value(p.type) for p in declaration.params]
                self.lines += wrapped(
                    f"{declaration.name} = CFUNCTYPE({', '.join(parts)})")
        self.lines += ["", "# Each function's result and parameters.",
                       "FUNCTIONS = {"]
        for function in self.api.functions:
            result = self.result(function)
            params = [self.value(p.type) for p in function.params]
            params = ", ".join(CHECKED.get(param, param) for param in params)
            self.lines += wrapped(
                f'    "{function.name}": ({result}, [{params}]),')
        self.lines.append("}")
        return HEAD + "\n".join(self.lines) + "\n"


def python_name(name):
    """Returns the class of a C type: "shard_log_level" is LogLevel."""
    words = name.split("_")[1:]
    return "".join("DType" if word == "dtype" else word.title()
                   for word in words)


def common_words(names):
    """Returns what all names begin with, up to an underscore."""
    prefix = names[0]
    for name in names:
        while not name.startswith(prefix):
            prefix = prefix[:-1]
    return prefix[:prefix.rfind("_") + 1]


def wrapped(line):
    """Breaks a line of code that is too long."""
    code = line.lstrip()
    return textwrap.wrap(code, 80, initial_indent=line[:len(line) - len(code)],
                         subsequent_indent=" " * 8)


def docstring(comment):
    """Returns the lines of a class's docstring: the comment's first
    paragraph."""
    text = " ".join(comment.split("\n\n")[0].split()).split(" Frozen.")[0]
    lines = textwrap.wrap(f'"""{text}"""', 76)
    return [f"    {line}" for line in lines] + [""]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = Writer(c_headers.read(ROOT / "api/include/shard")).write()
    if not arguments.check:
        OUTPUT.write_text(text, encoding="utf-8")
    elif OUTPUT.read_text(encoding="utf-8") != text:
        sys.exit(f"{OUTPUT.name} is not as the headers have it; run"
                 " sdk/python/bindings/generate.py")


if __name__ == "__main__":
    main()
