# SPDX-License-Identifier: Apache-2.0
"""Writes completions of shardctl for bash, zsh and fish, from its help."""


def long_names(entry):
    return [name for name in entry.names if name.startswith("--")]


def bash(program):
    """Completes commands, options, and values that are a list; else files.

    After `run`, the program of the ranks and its arguments are completed as
    files: bash-completion, which could do better, may not be there.
    """
    lines = [
        "# bash completion of shardctl. Made from its help.",
        "_shardctl() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}"',
        '  local before="${COMP_WORDS[COMP_CWORD - 1]}"',
        '  local command="${COMP_WORDS[1]}" options="" values=""',
        "  if ((COMP_CWORD == 1)); then",
        '    COMPREPLY=($(compgen -W "'
        + " ".join([c.name for c in program.commands]
                   + [n for o in program.options for n in long_names(o)])
        + '" -- "$word"))',
        "    return",
        "  fi",
        '  case "$command $before" in',
    ]
    for command in program.commands:
        for entry in command.options:
            if entry.choices:
                pattern = " | ".join(
                    f'"{command.name} {name}"' for name in entry.names
                )
                lines.append(f'    {pattern}) values="'
                             + " ".join(entry.choices) + '" ;;')
    lines += [
        "  esac",
        '  case "$command" in',
    ]
    for command in program.commands:
        names = " ".join(n for o in command.options for n in long_names(o))
        lines.append(f'    {command.name}) options="{names}" ;;')
    lines += [
        "  esac",
        '  if [[ -n "$values" ]]; then',
        '    COMPREPLY=($(compgen -W "$values" -- "$word"))',
        '  elif [[ "$word" == -* ]]; then',
        '    COMPREPLY=($(compgen -W "$options" -- "$word"))',
        "  else",
        '    mapfile -t COMPREPLY < <(compgen -f -- "$word")',
        "  fi",
        "}",
        "complete -o filenames -F _shardctl shardctl",
    ]
    return "\n".join(lines) + "\n"


def zsh_quote(text):
    """Text within the single quotes of an argument of _arguments."""
    text = text.replace("'", "'\\''").replace(":", "\\:")
    return text.replace("[", "\\[").replace("]", "\\]")


def zsh_entry(entry):
    description = zsh_quote(entry.description)
    if not entry.value:
        action = ""
    elif entry.choices:
        action = f":value:({' '.join(entry.choices)})"
    elif entry.takes_path:
        action = ":value:_files"
    else:
        action = ":value: "
    # zsh offers an option once, unless it begins with an asterisk.
    if entry.repeated:
        return [f"'*{name}[{description}]{action}'" for name in entry.names]
    if len(entry.names) == 1:
        return [f"'{entry.names[0]}[{description}]{action}'"]
    both = " ".join(entry.names)
    return [f"'({both})'{{{','.join(entry.names)}}}'[{description}]{action}'"]


def zsh(program):
    lines = [
        "#compdef shardctl",
        "# Made from the help of shardctl.",
        "_shardctl() {",
        "  local -a commands",
        "  commands=(",
    ]
    for command in program.commands:
        lines.append(f"    '{command.name}:{zsh_quote(command.summary)}'")
    lines += [
        "  )",
        "  if ((CURRENT == 2)); then",
        "    _describe command commands",
        "    return",
        "  fi",
        '  local command="${words[2]}"',
        "  shift words",
        "  ((CURRENT--))",
        '  case "$command" in',
    ]
    for command in program.commands:
        lines.append(f"    {command.name})")
        lines.append("      _arguments \\")
        for entry in command.options:
            lines += [f"        {text} \\" for text in zsh_entry(entry)]
        lines += ["        '*:file:_files'", "      ;;"]
    lines += ["  esac", "}", '_shardctl "$@"']
    return "\n".join(lines) + "\n"


def fish_quote(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fish_entry(entry):
    words = []
    for name in entry.names:
        words.append(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}")
    if entry.choices:
        words.append(f"-x -a {fish_quote(' '.join(entry.choices))}")
    elif entry.takes_path:
        words.append("-r")
    elif entry.value:
        words.append("-x")
    words.append(f"-d {fish_quote(entry.description)}")
    return " ".join(words)


def fish(program):
    lines = ["# fish completion of shardctl. Made from its help."]
    for entry in program.options:
        lines.append("complete -c shardctl -n __fish_use_subcommand "
                     + fish_entry(entry))
    for command in program.commands:
        lines.append("complete -c shardctl -n __fish_use_subcommand -f -a "
                     f"{command.name} -d {fish_quote(command.summary)}")
        seen = fish_quote(f"__fish_seen_subcommand_from {command.name}")
        for entry in command.options:
            lines.append(f"complete -c shardctl -n {seen} {fish_entry(entry)}")
    return "\n".join(lines) + "\n"
