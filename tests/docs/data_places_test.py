#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that the table of docs/gpu.md says of every function of the C interface
that takes or gives data in which memory the data lie, and names nothing else.

Data are bytes and elements: what a pointer to void, to numbers with a length, or
to a callback's void leads to. All else, such as handles, options and texts, is
the host's, and the last row of the table says so."""

import pathlib
import re
import sys

sys.path.insert(0, "tools/bindings")
import c_headers  # pylint: disable=wrong-import-position

_ELEMENTS = {"void", "float", "double", "int8_t", "uint8_t", "int16_t",
             "uint16_t"}
# Integers are ids and shapes.
_LENGTHS = {"size_t", "int64_t"}


def _data_of(params, callbacks):
    """Yields the names of the parameters that lead to data."""
    for param, after in zip(params, params[1:] + (None,)):
        if param.name == "user_data":  # The host's own, never looked at.
            continue
        if param.type.name in callbacks:
            if any(_data_of(callbacks[param.type.name], {})):
                yield param.name
        elif param.type.to and param.type.named().name in _ELEMENTS:
            # One number, without a length, is a result.
            one = param.type.named().name != "void" and (
                after is None or after.type.name not in _LENGTHS)
            if not one:
                yield param.name


def main():
    api = c_headers.read("api/include/shard")
    callbacks = {c.name: c.params for c in api.callbacks}
    with_data = {f.name for f in api.functions
                 if any(_data_of(f.params, callbacks))}
    # The rule finds what it is meant to.
    assert {"shard_engine_param", "shard_engine_set_state", "shard_comm_sum",
            "shard_state_dict_gather"} <= with_data, with_data
    assert not {"shard_engine_loss_scale", "shard_plan_text",
                "shard_comm_open"} & with_data, with_data

    table = re.search(r"^\| function \| pointer \|.*\n((?:\|.*\n)+)",
                      pathlib.Path("docs/gpu.md").read_text(encoding="utf-8"),
                      re.MULTILINE)
    assert table, "docs/gpu.md has no table of functions and pointers"
    declared = {f.name: f for f in api.functions}
    named = set()
    problems = []
    for row in table[1].splitlines()[1:]:
        functions, pointers, _ = row.strip("|").split("|")
        names = re.findall(r"`(\w+)`", functions)
        named.update(names)
        params = [p for name in names if name in declared
                  for p in declared[name].params]
        params += [p for param in params
                   for p in callbacks.get(param.type.name, ())]
        known = {p.name for p in params} | set(callbacks)
        problems += [f"none of {names} has `{pointer}`"
                     for pointer in re.findall(r"`(\w+)`", pointers)
                     if pointer not in known]
    problems += [f"{name} has data, and is not in the table"
                 for name in sorted(with_data - named)]
    problems += [f"{name} is in the table, and has no data"
                 for name in sorted(named - with_data)]
    for problem in problems:
        print("FAILED: docs/gpu.md:", problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
