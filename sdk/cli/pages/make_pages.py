#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the man pages and the completions of shardctl.

Usage: make_pages.py SHARDCTL DOCUMENT ARCHIVE

SHARDCTL is the program, whose help lists its commands and options; DOCUMENT is
docs/shardctl.md, with a section for each command. ARCHIVE is the tar file that
is written, with the files at their places below a prefix, share/man/man1 and so
on. The same help gives the same bytes.
"""

import io
import sys
import tarfile

import completions
import man_pages
from help_text import Program


def main(shardctl, document, archive):
    program = Program.read(shardctl)
    with open(document, encoding="utf-8") as file:
        files = {
            "share/man/man1/" + name: text
            for name, text in man_pages.pages(program, file.read())
        }
    files["share/bash-completion/completions/shardctl"] = completions.bash(program)
    files["share/zsh/site-functions/_shardctl"] = completions.zsh(program)
    files["share/fish/vendor_completions.d/shardctl.fish"] = completions.fish(program)
    with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, text in sorted(files.items()):
            data = text.encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mode = 0o644
            tar.addfile(info, io.BytesIO(data))


if __name__ == "__main__":
    main(*sys.argv[1:])
