# SPDX-License-Identifier: Apache-2.0
"""Reads libshard's C headers, for programs that write the declarations of other
languages.

    api = c_headers.read("api/include/shard")
    for function in api.functions:
        print(function.result, function.name, [p.name for p in function.params])

The headers are read as they are, without a compiler, in the order in which a
preprocessor meets them, so that a type comes before its uses by value. The
reader knows the forms that these headers use and no others: whatever else it
meets is a HeaderError with file and line. A form that is new in the headers is
added here, and the generators then decide what becomes of it.
"""

import dataclasses
import pathlib
import re

from c_declarations import (Alias, Api, Callback, Constant, Enum, Function,
                            Handle, Struct, Type, Variable)


class HeaderError(Exception):
    """The headers have something that this reader does not know."""


def read(folder):
    """Reads shard.h in `folder` and all headers that it includes."""
    reader = _Reader(pathlib.Path(folder))
    reader.read_header("shard.h", None)
    return reader.finish()


_KNOWN_TYPES = frozenset(
    "void char bool float double size_t int8_t int16_t int32_t int64_t uint8_t"
    " uint16_t uint32_t uint64_t".split())

# Macros that declare nothing, with what they stand for. None: depends on the
# language.
_KNOWN_MACROS = {
    "SHARD_API": '__attribute__((visibility("default")))',
    "SHARD_NODISCARD": "__attribute__((warn_unused_result))",
    "SHARD_NOEXCEPT": "",
    "SHARD_BEGIN_DECLS": "",
    "SHARD_END_DECLS": "",
}

# Whether the macros of conditions are defined, for a C compiler on Linux.
_DEFINED = {"__linux__": True, "__cplusplus": False}

_TOKEN = re.compile(
    r"""(?P<space>[ \t\n]+)
      | (?P<comment>/\*.*?\*/)
      | (?P<directive>\#(?:[^\n\\/]|\\\n|/(?!\*))*)
      | (?P<word>[A-Za-z_][A-Za-z_0-9]*)
      | (?P<number>-?[0-9]+)
      | (?P<mark>[(){}\[\];,=*])""",
    re.VERBOSE | re.DOTALL)


@dataclasses.dataclass
class _Token:
    kind: str  # word, number, mark, directive or end.
    text: str
    line: int
    above: str = ""  # The comment that ends in the line above or in this one.
    behind: str = ""  # The comment that begins in this line.


def _comment_text(comment):
    """Takes the marks of a comment and the stars of its lines away."""
    lines = [line.strip() for line in comment[2:-2].split("\n")]
    lines[1:] = [re.sub(r"^\* ?", "", line) for line in lines[1:]]
    return "\n".join(lines).strip()


def _tokens(text, where):
    """Returns the tokens of a header, with the comments that belong to them."""
    tokens = []
    comment, comment_end = "", 0  # The last one that belongs to no token yet.
    position, line = 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if not match:
            raise HeaderError(
                f"{where}:{line}: unexpected {text[position:position + 20]!r}")
        kind, token = match.lastgroup, match.group()
        end = line + token.count("\n")
        if kind == "comment":
            if tokens and tokens[-1].line == line:
                tokens[-1].behind = _comment_text(token)
            else:
                comment, comment_end = _comment_text(token), end
        elif kind != "space":
            above = comment if line - comment_end <= 1 else ""
            tokens.append(_Token(kind, token, end, above))
            comment, comment_end = "", 0
        position, line = match.end(), end
    tokens.append(_Token("end", "the end of the file", line))
    return tokens


class _Reader:
    """Reads one header after the other into an Api."""

    def __init__(self, folder):
        self.folder = folder
        self.seen = set()
        self.names = {}  # All declarations, with the place of each.
        self.order = []
        self.inits = {}  # Struct name to the name of its _INIT.
        self.defined = dict(_DEFINED)
        # The present header, its tokens, and the place of the next one.
        self.header, self.tokens, self.at = None, [], 0
        # One entry per open condition: whether its lines count.
        self.conditions = []

    # ---- Tokens of the present header ----------------------------------------

    def fail(self, message, token=None):
        token = token or self.tokens[self.at]
        raise HeaderError(f"{self.header}:{token.line}: {message}")

    def peek(self):
        return self.tokens[self.at]

    def take(self):
        self.at += 1
        return self.tokens[self.at - 1]

    def accept(self, text):
        if self.peek().text != text:
            return False
        self.at += 1
        return True

    def expect(self, text):
        if not self.accept(text):
            self.fail(f"expected {text!r}, not {self.peek().text!r}")
        return self.tokens[self.at - 1]

    def expect_kind(self, kind):
        if self.peek().kind != kind:
            self.fail(f"expected a {kind}, not {self.peek().text!r}")
        return self.take()

    # ---- Headers and directives ----------------------------------------------

    def read_header(self, name, includer):
        if name in self.seen:
            return
        self.seen.add(name)
        path = self.folder / name
        if not path.is_file():
            raise HeaderError(f"{includer or self.folder}: no header {name}")
        outer = self.header, self.tokens, self.at
        self.header, self.at = name, 0
        self.tokens = _tokens(path.read_text(encoding="utf-8"), name)
        depth = len(self.conditions)
        while self.peek().kind != "end":
            if self.peek().kind == "directive":
                self.directive(self.take())
            elif not all(self.conditions):
                self.take()
            else:
                self.declaration()
        if len(self.conditions) != depth:
            self.fail("a condition has no #endif")
        self.header, self.tokens, self.at = outer

    def directive(self, token):
        text = re.sub(r"\s+", " ", token.text.replace("\\\n", " ")).strip()
        if match := re.fullmatch(r"#if(n?)def (\w+)|#if !defined\((\w+)\)", text):
            name = match[2] or match[3]
            if re.fullmatch(r"SHARD_\w+_H_", name):
                self.defined.setdefault(name, False)
            if name not in self.defined:
                self.fail(f"a condition on {name}", token)
            negated = bool(match[1] or match[3])
            self.conditions.append(self.defined[name] != negated)
        elif text in ("#else", "#endif"):
            if not self.conditions:
                self.fail(f"{text} without a condition", token)
            counted = self.conditions.pop()
            if text == "#else":
                self.conditions.append(not counted)
        elif not all(self.conditions) or re.fullmatch(
                r"#include <std(bool|def|int)\.h>", text):
            pass
        elif match := re.fullmatch(r'#include "shard/(\w+\.h)"', text):
            self.read_header(match[1], self.header)
        elif match := re.fullmatch(r"#define (\w+) ?(.*)", text):
            self.macro(match[1], match[2], token)
        else:
            self.fail(f"an unknown directive: {text}", token)

    def macro(self, name, value, token):
        if name in self.defined and not value:  # The guard of this header.
            self.defined[name] = True
        elif name in _KNOWN_MACROS:
            if value != _KNOWN_MACROS[name]:
                self.fail(f"{name} is {value!r}, not {_KNOWN_MACROS[name]!r}",
                          token)
        elif re.fullmatch(r"-?[0-9]+", value):
            self.add(Constant, token, name, value=int(value))
        elif name.startswith("SHARD_") and name.endswith("_INIT"):
            struct = name[:-len("_INIT")].lower()
            zeros = value.replace(f"sizeof({struct})", "0", 1)
            if zeros == value or re.sub(r"0|NULL|[{}, ]", "", zeros):
                self.fail(f"{name} is not struct_size and zeros", token)
            self.inits[struct] = name
        else:
            self.fail(f"an unknown macro: {name}", token)

    # ---- Declarations --------------------------------------------------------

    def add(self, kind, token, name, comment=None, **rest):
        if name in self.names:
            self.fail(f"{name} is declared a second time; first in "
                      f"{self.names[name]}", token)
        self.names[name] = f"{self.header}:{token.line}"
        if comment is None:
            comment = token.above or token.behind
        self.order.append(kind(name, comment, self.header, token.line, **rest))

    def declaration(self):
        token = self.peek()
        if token.text in ("SHARD_BEGIN_DECLS", "SHARD_END_DECLS"):
            self.take()
        elif token.text == "typedef":
            self.typedef()
        elif token.text == "enum":
            self.enum()
        elif token.text in ("SHARD_API", "SHARD_NODISCARD"):
            self.function()
        else:
            self.fail(f"an unknown declaration: {token.text!r}")

    def typedef(self):
        first = self.expect("typedef")
        if self.accept("struct"):
            name = self.expect_kind("word").text
            fields = None
            if self.accept("{"):
                fields = self.fields()
            if self.expect_kind("word").text != name:
                self.fail(f"the typedef of struct {name} has another name")
            self.expect(";")
            if fields is None:
                self.add(Handle, first, name)
            else:
                self.add(Struct, first, name, fields=fields, init=None)
            return
        type = self.type()
        if self.accept("("):
            self.expect("*")
            name = self.expect_kind("word").text
            self.expect(")")
            params = self.params()
            self.expect(";")
            self.add(Callback, first, name, result=type, params=params)
            return
        name = self.expect_kind("word").text
        self.expect(";")
        self.add(Alias, first, name, type=type)

    def fields(self):
        fields = []
        while not self.accept("}"):
            first = self.peek()
            type = self.type()
            name = self.expect_kind("word").text
            length = None
            if self.accept("["):
                length = self.constant_value(self.take())
                self.expect("]")
            end = self.expect(";")
            fields.append(Variable(name, first.above or end.behind, self.header,
                                   first.line, type, length))
        return tuple(fields)

    def constant_value(self, token):
        if token.kind == "number":
            return int(token.text)
        for declaration in self.order:
            constants = (declaration.constants
                         if isinstance(declaration, Enum) else [declaration])
            for constant in constants:
                if constant.name == token.text and isinstance(constant, Constant):
                    return constant.value
        self.fail(f"{token.text!r} is no constant", token)

    def enum(self):
        first = self.expect("enum")
        name = self.expect_kind("word").text
        self.expect("{")
        constants = []
        while not self.accept("}"):
            constant = self.expect_kind("word")
            self.expect("=")
            end = self.expect_kind("number")
            value = int(end.text)
            if self.peek().text != "}":
                end = self.expect(",")
            if constant.text in self.names:
                self.fail(f"{constant.text} is declared a second time", constant)
            self.names[constant.text] = f"{self.header}:{constant.line}"
            constants.append(Constant(
                constant.text, constant.above or end.behind, self.header,
                constant.line, value))
        self.expect(";")
        alias = name[:-len("_values")] if name.endswith("_values") else None
        if alias and not any(isinstance(d, Alias) and d.name == alias
                             for d in self.order):
            self.fail(f"there is no type {alias} for {name}", first)
        self.add(Enum, first, name, constants=tuple(constants), alias=alias)

    def function(self):
        first = self.peek()
        nodiscard = self.accept("SHARD_NODISCARD")
        self.expect("SHARD_API")
        result = self.type()
        name = self.expect_kind("word").text
        params = self.params()
        self.expect("SHARD_NOEXCEPT")
        self.expect(";")
        self.add(Function, first, name, first.above, result=result,
                 params=params, nodiscard=nodiscard)

    def params(self):
        self.expect("(")
        if self.peek().text == "void" and self.tokens[self.at + 1].text == ")":
            self.at += 2
            return ()
        params = []
        while True:
            first = self.peek()
            type = self.type()
            name = self.expect_kind("word").text
            params.append(Variable(name, "", self.header, first.line, type))
            if self.accept(")"):
                return tuple(params)
            self.expect(",")

    def type(self):
        const = self.accept("const")
        type = Type(self.expect_kind("word").text, const)
        while self.accept("*"):
            type = Type("*", self.accept("const"), type)
        return type

    # ---- All headers ---------------------------------------------------------

    def finish(self):
        """Checks that all names are declared, and gives the structs their
        _INIT."""
        by_value = set(_KNOWN_TYPES) - {"void"}
        pointed_to = set(_KNOWN_TYPES)
        api = Api()
        for declaration in self.order:
            if isinstance(declaration, (Handle, Struct)):
                pointed_to.add(declaration.name)
        for declaration in self.order:
            for type in _types_of(declaration):
                known = pointed_to if type.to else by_value
                name = type.named().name
                if name not in known and name not in by_value:
                    raise HeaderError(
                        f"{declaration.header}:{declaration.line}:"
                        f" {declaration.name} uses the unknown type {type}")
            if isinstance(declaration, (Alias, Callback, Struct)):
                by_value.add(declaration.name)
            if isinstance(declaration, Struct):
                declaration = dataclasses.replace(
                    declaration, init=self.inits.pop(declaration.name, None))
            api.order.append(declaration)
        if self.inits:
            raise HeaderError(f"no structs for {sorted(self.inits.values())}")
        return api


def _types_of(declaration):
    """Returns all types in a declaration, but for a result of nothing."""
    types = []
    if isinstance(declaration, Alias):
        types.append(declaration.type)
    if isinstance(declaration, Struct):
        types += [field.type for field in declaration.fields]
    if isinstance(declaration, (Callback, Function)):
        if declaration.result != Type("void"):
            types.append(declaration.result)
        types += [param.type for param in declaration.params]
    return types
