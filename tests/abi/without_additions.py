#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes what was added to structs out of a record of types, for abidiff.

Usage: without_additions.py RELEASED NOW OUT_RELEASED OUT_NOW

RELEASED and NOW are files of abidw. A host of a release does not see fields that
came later, nor that a struct has become larger, for it says how large it knows
the struct to be. A reserved field may have become another one. OUT_RELEASED and
OUT_NOW are the same files without such differences; all others stay.
"""

import sys
import xml.etree.ElementTree as ElementTree


def structs(tree):
    """The structs by name, without declarations."""
    return {
        node.get("name"): node
        for node in tree.iter("class-decl")
        if node.get("size-in-bits")
    }


def fields(struct):
    """Pairs of a field's name and its node."""
    return [
        (member.find("var-decl").get("name"), member)
        for member in struct.findall("data-member")
    ]


def main(released_path, now_path, out_released, out_now):
    released = ElementTree.parse(released_path)
    now = ElementTree.parse(now_path)
    today = structs(now)
    for name, struct in structs(released).items():
        known = {field for field, _ in fields(struct)} - {"reserved"}
        for side in (struct, today.get(name)):
            for field, node in fields(side) if side is not None else []:
                if field not in known:
                    side.remove(node)
        if name in today:
            size = int(struct.get("size-in-bits"))
            if int(today[name].get("size-in-bits")) > size:
                today[name].set("size-in-bits", str(size))
    released.write(out_released)
    now.write(out_now)


if __name__ == "__main__":
    main(*sys.argv[1:])
