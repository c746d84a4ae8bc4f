# SPDX-License-Identifier: Apache-2.0
"""Writes man pages of shardctl: from its help, and from docs/shardctl.md.

The help has the summary, the options and the notes of a command; the section of
the document with the command's name has the details.
"""

import re

# The paragraphs of a command's notes that have sections of their own.
EXIT = re.compile(r"^Exit codes?: ")
EXAMPLES = re.compile(r"^Examples?:")


def escape(text):
    """Text as roff prints it: no character starts a request or an escape."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return re.sub(r"^\.", r"\\&.", text, flags=re.MULTILINE)


def inline(text):
    """Markdown within a paragraph: `code` and [links](to) become bold, plain."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    parts = text.split("`")
    return "".join(
        f"\\fB{escape(part)}\\fR" if index % 2 else escape(part)
        for index, part in enumerate(parts)
    )


def literal(lines):
    return [".PP", ".nf", ".RS 4", *map(escape, lines), ".RE", ".fi"]


def table(rows):
    """A table of Markdown: a paragraph for each row, led by its first cell."""
    cells = [
        [cell.strip() for cell in row.strip().strip("|").split("|")]
        for row in rows
        if not re.fullmatch(r"[|\s:-]+", row)
    ]
    titles = cells[0][1:]
    lines = []
    for first, *others in cells[1:]:
        if len(others) > 1:
            others = [f"{title}: {cell}" for title, cell in zip(titles, others)]
        lines += [".TP", inline(first), inline("; ".join(others))]
    return lines


def markdown(text):
    """The blocks of Markdown that docs/shardctl.md uses, as lines of roff."""
    lines = []
    for block in blocks(text):
        first = block[0]
        if first.startswith("```"):
            lines += literal(block[1:-1])
        elif first.startswith("    "):
            lines += literal(line[4:] for line in block)
        elif first.startswith("### "):
            lines += [".SS " + escape(first[4:])]
        elif first.startswith("|"):
            lines += table(block)
        elif re.match(r"(-|\d+\.) ", first):
            for item in re.split(r"\n(?=- |\d+\. )", "\n".join(block)):
                mark, _, body = item.partition(" ")
                mark = "\\(bu" if mark == "-" else mark
                lines += [f".IP {mark} 4", inline(" ".join(body.split()))]
        else:
            lines += [".PP", inline(" ".join(" ".join(block).split()))]
    return lines


def blocks(text):
    """Splits Markdown at empty lines, but for those within code."""
    block = []
    fenced = False
    for line in text.split("\n"):
        if line.startswith("```"):
            fenced = not fenced
        indented = line.startswith("    ")
        if block and not fenced and not line:
            yield block
            block = []
        elif line or fenced:
            if block and indented != block[0].startswith("    ") and not fenced:
                if not re.match(r"(-|\d+\.) |```", block[0]):
                    yield block
                    block = []
            block.append(line)
    if block:
        yield block


def sections(document):
    """The parts of docs/shardctl.md by the name of their command."""
    parts = re.split(r"^## (.*)$", document, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def entry_lines(entry):
    names = ", ".join(f"\\fB{escape(name)}\\fR" for name in entry.names)
    value = "|".join(entry.choices) or entry.value.lower()
    if value:
        names += f" \\fI{escape(value)}\\fR" + ("..." if entry.repeated else "")
    facts = [
        text
        for text in (
            "required" if entry.required else "",
            entry.bounds,
            f"default: {entry.default}" if entry.default else "",
        )
        if text
    ]
    text = entry.description + (f" ({'; '.join(facts)})" if facts else "")
    return [".TP", names, escape(text)]


def notes_lines(notes):
    """The notes under the options, as description, exit status and examples."""
    description, status, examples = [], [], []
    for paragraph in re.split(r"\n\n+", notes):
        if EXIT.match(paragraph):
            text = " ".join(EXIT.sub("", paragraph).split())
            status += [".PP", inline(text[0].upper() + text[1:])]
        elif EXAMPLES.match(paragraph):
            text = EXAMPLES.sub("", paragraph)
            examples += literal(
                line.strip() for line in text.split("\n") if line.strip()
            )
        elif paragraph.strip():
            description += [".PP", inline(" ".join(paragraph.split()))]
    return description, status, examples


def page(program, command, details):
    """The man page of a command, or of the program itself."""
    name = "shardctl"
    if command is not program:
        name += "-" + command.name
    description, status, examples = notes_lines(command.notes)
    usage = command.usage.partition(" ")[2]
    if command is not program:
        usage = usage.partition(" ")[2]
    summary = command.summary.partition("shardctl: ")[2] or command.summary
    lines = [
        '.\\" Made from shardctl --help and docs/shardctl.md.',
        f'.TH {escape(name).upper()} 1 "" "libshard {program.version}" libshard',
        ".SH NAME",
        f"{escape(name)} \\- {escape(summary[0].lower() + summary[1:])}",
        ".SH SYNOPSIS",
        f"\\fB{escape(name.replace('-', ' '))}\\fR {escape(usage)}",
        ".SH DESCRIPTION",
        *(description or [".PP", escape(summary + ".")]),
    ]
    if command.positionals:
        lines += [".SH ARGUMENTS"]
        for entry in command.positionals:
            lines += entry_lines(entry)
    lines += [".SH OPTIONS"]
    for entry in command.options:
        lines += entry_lines(entry)
    if command is program:
        lines += [".SH COMMANDS"]
        for other in program.commands:
            lines += [".TP", f"\\fBshardctl\\-{other.name}\\fR(1)",
                      escape(other.summary)]
    if details:
        lines += [".SH DETAILS", *markdown(details)]
    if status:
        lines += [".SH EXIT STATUS", *status]
    if examples:
        lines += [".SH EXAMPLES", *examples]
    others = [program, *program.commands]
    also = [
        "shardctl" if other is program else f"shardctl\\-{other.name}"
        for other in others
        if other is not command
    ]
    lines += [".SH SEE ALSO", ",\n".join(f"\\fB{text}\\fR(1)" for text in also)]
    return name + ".1", "\n".join(lines) + "\n"


def pages(program, document):
    """Yields (file name, text) of each page."""
    details = sections(document)
    yield page(program, program, "")
    for command in program.commands:
        yield page(program, command, details[command.name])
