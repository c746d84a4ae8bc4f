# SPDX-License-Identifier: Apache-2.0
"""Errors of the library."""

import json

from ._c import Code


def member(kind, value):
    """Returns a value as one of its enum; a library that is newer than the
    package may have others, which stay numbers."""
    try:
        return kind(value)
    except ValueError:
        return value


class Error(Exception):
    """An error of libshard.

    code     a Code; a plain int when the library is newer and has others
    message  the problem, the value that has it, and the remedy
    rank     the rank that the error is about, or -1
    detail   lists such as the missing keys, as a dict; {} when there are none
    """

    def __init__(self, code, message, rank=-1, detail=None):
        super().__init__(message)
        self.code = member(Code, code)
        self.message = message
        self.rank = rank
        self.detail = detail or {}

    def __str__(self):
        name = getattr(self.code, "name", f"code {self.code}")
        return f"{name}: {self.message}"

    def __reduce__(self):
        arguments = int(self.code), self.message, self.rank, self.detail
        return type(self), arguments


class MissingKey(Error, KeyError):
    """A key that a checkpoint or state dict does not have."""

    __str__ = Error.__str__


def failed_precondition(message):
    return Error(Code.FAILED_PRECONDITION, message)


def parse_detail(text):
    """Returns the JSON of an error's detail as a dict."""
    return json.loads(text) if text else {}
