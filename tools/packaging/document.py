#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Usage: document.py DOCUMENT
#
# Prints a document of the current folder as a package has it: its links lead to
# the places of the installed files. Of a link to a file that only the sources
# have, the text remains.

import os
import re
import sys

# The places of files and folders of the sources below the prefix.
PLACES = {
    "api/include/shard": "include/shard",
    "samples/quickstart": "share/shard/samples/quickstart",
    "docs": "share/doc/libshard/docs",
    "README.md": "share/doc/libshard/README.md",
    "CHANGELOG.md": "share/doc/libshard/CHANGELOG.md",
    "SECURITY.md": "share/doc/libshard/SECURITY.md",
    "LICENSE": "share/doc/libshard/copyright",
}

# Code, in which there are no links, or a link.
PIECE = re.compile(
    r"^```.*?^```$|^    .*?$|\[(?P<text>[^\]]*)\]\((?P<link>[^)\s]+)\)|`[^`]*`",
    re.MULTILINE | re.DOTALL)


def place(name):
    """Returns the place of a file of the sources, or None."""
    for source, installed in PLACES.items():
        if name == source or name.startswith(source + "/"):
            return installed + name[len(source):]
    return None


def installed(document, piece):
    """Returns a piece of `document` as it is installed."""
    link = piece["link"]
    if link is None or link.startswith("#") or ":" in link:
        return piece[0]
    path, hash_sign, heading = link.partition("#")
    target = place(os.path.normpath(os.path.join(os.path.dirname(document), path)))
    if target is None:
        return piece["text"]
    target = os.path.relpath(target, os.path.dirname(place(document)))
    return f"[{piece['text']}]({target}{hash_sign}{heading})"


def main():
    if len(sys.argv) != 2:
        sys.exit("Usage: document.py DOCUMENT")
    document = sys.argv[1]
    with open(document, encoding="utf-8") as file:
        text = file.read()
    sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(PIECE.sub(lambda piece: installed(document, piece), text))


if __name__ == "__main__":
    main()
