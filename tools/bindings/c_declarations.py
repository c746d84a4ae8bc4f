# SPDX-License-Identifier: Apache-2.0
"""The declarations of C headers, as c_headers reads them."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Type:
    """A C type: a name, or a pointer `to` a type, whose name is "*"."""

    name: str
    const: bool = False
    to: "Type | None" = None

    def __str__(self):
        text = f"{self.to}*" if self.to else self.name
        if not self.const:
            return text
        return f"{text} const" if self.to else f"const {text}"

    def named(self):
        """Returns the type at the end of all pointers."""
        return self.to.named() if self.to else self


@dataclasses.dataclass(frozen=True)
class Declaration:
    """The common part of declarations. `comment` is the text of the comment
    directly above, or behind it in the same line; "" without one. A comment that
    stands above several functions belongs to the first of them. `header` is the
    name of the file, such as "base.h"."""

    name: str
    comment: str
    header: str
    line: int


@dataclasses.dataclass(frozen=True)
class Constant(Declaration):
    """A value of an enum, or a #define of an integer."""

    value: int


@dataclasses.dataclass(frozen=True)
class Enum(Declaration):
    """`enum NAME { ... };`. `alias` is the name of the integer type whose values
    these are: that of shard_code_values is "shard_code". None: there is none."""

    constants: tuple
    alias: "str | None"


@dataclasses.dataclass(frozen=True)
class Alias(Declaration):
    """`typedef int32_t NAME;`"""

    type: Type


@dataclasses.dataclass(frozen=True)
class Handle(Declaration):
    """`typedef struct NAME NAME;`, whose fields are not in the headers."""


@dataclasses.dataclass(frozen=True)
class Variable(Declaration):
    """A parameter, or a field of a struct. `length` is the number of elements of
    an array, else None."""

    type: Type
    length: "int | None" = None


@dataclasses.dataclass(frozen=True)
class Struct(Declaration):
    """`typedef struct NAME { ... } NAME;`. `init` is the name of its _INIT macro,
    which sets struct_size to its size and all other fields to zero; None: it has
    no such macro."""

    fields: tuple
    init: "str | None"


@dataclasses.dataclass(frozen=True)
class Callback(Declaration):
    """`typedef RESULT (*NAME)(PARAMS);`"""

    result: Type
    params: tuple


@dataclasses.dataclass(frozen=True)
class Function(Declaration):
    """An exported function. `nodiscard`: the compiler warns a caller that drops
    the result."""

    result: Type
    params: tuple
    nodiscard: bool


@dataclasses.dataclass
class Api:
    """All declarations, by kind. `order` has them all in the order of the
    headers."""

    order: list = dataclasses.field(default_factory=list)

    def _of(self, kind):
        return [d for d in self.order if isinstance(d, kind)]

    constants = property(lambda self: self._of(Constant))  # By #define alone.
    enums = property(lambda self: self._of(Enum))
    aliases = property(lambda self: self._of(Alias))
    handles = property(lambda self: self._of(Handle))
    structs = property(lambda self: self._of(Struct))
    callbacks = property(lambda self: self._of(Callback))
    functions = property(lambda self: self._of(Function))
