# SPDX-License-Identifier: Apache-2.0
"""Reads what `shardctl --help` prints: the one place that lists the commands.

Program.read runs shardctl and returns a Program with its Commands. A line that
does not look like CLI11's help is an error, so that no option is left out of
the pages unnoticed.
"""

import re
import subprocess
from dataclasses import dataclass, field


class UnknownHelp(Exception):
    """A line of help that this reader does not understand."""


@dataclass
class Entry:
    """An option or a positional argument."""

    names: list  # ["-n", "--ranks"], or ["path"].
    value: str = ""  # "INT"; "" for a flag.
    choices: list = field(default_factory=list)  # ["param", "buffer"].
    bounds: str = ""  # "1 to 512".
    default: str = ""
    required: bool = False
    repeated: bool = False  # Takes several values.
    description: str = ""

    @property
    def takes_path(self):
        """Whether files complete a value, for all that is known about it."""
        return self.value == "TEXT" and not self.choices


@dataclass
class Command:
    name: str
    summary: str = ""
    usage: str = ""
    positionals: list = field(default_factory=list)
    options: list = field(default_factory=list)
    notes: str = ""  # The paragraphs below the options.


@dataclass
class Program(Command):
    version: str = ""
    commands: list = field(default_factory=list)

    @staticmethod
    def read(path):
        """Runs the program at `path` for its help."""
        program = Program(name="shardctl")
        lists = parse(run(path, "--help"), program)
        # "shardctl (libshard) 0.2.0".
        program.version = run(path, "--version").split()[-1]
        for entry in lists["Subcommands"]:
            command = Command(name=entry.names[0])
            parse(run(path, command.name, "--help"), command)
            command.summary = entry.description
            program.commands.append(command)
        return program


def run(*arguments):
    return subprocess.run(
        arguments, check=True, stdout=subprocess.PIPE, encoding="utf-8"
    ).stdout


def parse(text, command):
    """Fills `command` from its help; returns the lists of entries by title."""
    head, _, rest = text.partition("Usage: ")
    command.summary = " ".join(head.split())
    # Two empty lines separate the lists from the notes.
    body, _, command.notes = rest.partition("\n\n\n")
    command.notes = command.notes.strip("\n")
    lines = body.split("\n")
    command.usage = lines[0]
    lists = {}
    title = None
    for line in lines[1:]:
        if not line:
            continue
        if re.fullmatch(r"[A-Z][a-z]+:", line):
            title = line[:-1]
            lists[title] = []
        elif title and line.startswith(" " * 30):
            entry = lists[title][-1]
            entry.description = (entry.description + " " + line.strip()).strip()
        elif title and re.match(r"  \S", line):
            lists[title].append(parse_entry(line))
        else:
            raise UnknownHelp(line)
    command.positionals = lists.get("Positionals", [])
    command.options = lists.get("Options", [])
    return lists


def parse_entry(line):
    """Reads "  --threads INT:INT in [1 - 256]=4   Threads that read"."""
    head, _, description = line.strip().partition("  ")
    names, _, spec = head.partition(" ")
    entry = Entry(names=names.split(","), description=description.strip())
    match = re.fullmatch(
        r"(?P<value>[A-Z]+)?"
        r"(?::(?:[A-Z]+ in \[(?P<low>\S+) - (?P<high>[^]\s]+)\]"
        r"|\{(?P<choices>[^}]*)\}|[A-Z]+(?:\([a-z]+\))?))?"
        r"(?:=(?P<default>\S+))?"
        r"(?P<repeated> \.\.\.)?"
        r"(?P<required> ?REQUIRED)?",
        spec,
    )
    if match is None:
        raise UnknownHelp(line)
    entry.value = match["value"] or ""
    if entry.value == "REQUIRED":
        entry.value = ""
        entry.required = True
    entry.choices = match["choices"].split(",") if match["choices"] else []
    if match["low"]:
        entry.bounds = f"{match['low']} to {match['high']}"
    entry.default = (match["default"] or "").strip("[]")
    entry.repeated = match["repeated"] is not None
    entry.required = entry.required or match["required"] is not None
    return entry
