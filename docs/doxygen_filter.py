#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gives Doxygen the headers with comments as it wants them.

Usage: doxygen_filter.py HEADER

The headers have plain comments, for people. This prints the header with

- the comment at its top as that of the file,
- a comment above a declaration marked as its description, and repeated above
  the declarations that follow without an empty line and share it,
- a comment behind a field or a constant marked as that one's description,
- characters that Doxygen takes for commands escaped.

Lines stay where they are but for repeated comments, so that line numbers of
warnings are about right.
"""

import re
import sys

# Functions and fields, which may share the comment of the one above them.
DECLARATION = re.compile(r"^(SHARD_NODISCARD )?SHARD_API |^  [a-z][^(]*;$")
# Comments that divide a header, and explain no declaration.
DIVIDER = re.compile(r"^/\* -{4,}")


def escape(text):
    """Text without Doxygen's commands, markup and automatic links."""
    return re.sub(r"([\\@<>&$#%])", r"\\\1", text)


def described(comment, mark="/**"):
    """Doxygen's form of the lines of a comment, "/* ... */"."""
    body = escape("\n".join(comment)[2:-2]).split("\n")
    # Indented text is a list or an example, and keeps its line breaks.
    lines = []
    code = False
    for text in body[:1] + [re.sub(r"^ ?\* ?", "", line) for line in body[1:]]:
        indented = text.startswith("  ") and text.strip() != ""
        if indented != code:
            lines.append("<pre>" if indented else "</pre>")
        code = indented
        lines.append(text)
    return mark + "\n".join(lines) + ("</pre>*/" if code else "*/")


def take_comment(first, lines):
    """A comment that begins with `first`, and goes on in the rest of `lines`."""
    comment = [first]
    while not comment[-1].endswith("*/"):
        comment.append(next(lines).strip())
    return comment


def convert(lines):
    """Yields the lines of a header as Doxygen wants them."""
    lines = iter(lines)
    # The license is no part of the description of the file.
    license_line, *rest = take_comment(next(lines), lines)
    yield described(["/*"] + rest, "/** \\file")
    shared = None  # The comment that declarations share, as they follow it.
    printed = False  # Whether it stands above the next line already.
    for line in lines:
        behind = re.match(r"^([^#]*\S) */\* (.*)$", line)
        if re.match(r"^ */\*", line):
            comment = take_comment(line.strip(), lines)
            divider = DIVIDER.match(comment[0])
            shared = None if divider else described(comment)
            printed = True
            yield "" if divider else shared
        elif behind:
            comment = take_comment("/* " + behind.group(2), lines)
            shared = None
            yield behind.group(1) + " " + described(comment, "/**<")
        elif DECLARATION.match(line):
            if shared is not None and not printed:
                yield shared
            printed = False
            yield line
        else:
            # A declaration may take more lines.
            if not line.startswith("    "):
                shared = None
            yield line


def main(path):
    with open(path, encoding="utf-8") as file:
        print("\n".join(convert(file.read().split("\n"))))


if __name__ == "__main__":
    main(sys.argv[1])
