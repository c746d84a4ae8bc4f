# SPDX-License-Identifier: Apache-2.0
"""An optimizer's state under torch's keys: params are numbered group by group,
and states named as torch names them."""

import torch

from .._c import Content, DType
from .._state_dict import StateDict


def _numbered(optimizer):
    """Returns torch's number, group and FQN of every parameter."""
    names, ids = optimizer._declared.names, optimizer._declared.ids
    params = [(group, param) for group in optimizer.param_groups
              for param in group["params"]]
    return [(number, group, names[ids[param]])
            for number, (group, param) in enumerate(params)]


def gather(optimizer, rank):
    engine = optimizer.engine
    gathered = {}

    def take(key, info, array):
        gathered[key] = torch.as_tensor(array)

    engine.gather_state_dict(take, rank, content=Content.OPTIMIZER)
    if rank not in (-1, engine.comm.rank):
        return None
    with engine.state_dict(content=Content.OPTIMIZER) as local:
        steps = local.numbers
    state, groups = {}, []
    for number, group, name in _numbered(optimizer):
        if not groups or groups[-1][0] is not group:
            groups.append((group, []))
        groups[-1][1].append(number)
        prefix = f"state.{name}."
        states = {key[len(prefix):]: value for key, value in gathered.items()
                  if key.startswith(prefix)}
        if prefix + "step" in steps:
            states["step"] = torch.tensor(steps[prefix + "step"])
        if states:
            state[number] = states
    return {"state": state, "param_groups": [
        {**{key: value for key, value in group.items() if key != "params"},
         "params": numbers} for group, numbers in groups]}


def load(optimizer, state_dict):
    engine = optimizer.engine
    groups = [group for group in optimizer.param_groups if group["params"]]
    given = state_dict["param_groups"]
    sizes = [len(group["params"]) for group in groups]
    if [len(group["params"]) for group in given] != sizes:
        raise ValueError(
            "the state dict has param groups of"
            f" {[len(group['params']) for group in given]} parameters, the"
            f" optimizer of {sizes}")
    numbers = [number for group in given for number in group["params"]]
    with StateDict() as state, engine.state_dict(
            content=Content.OPTIMIZER) as present:
        wanted = present.numbers
        last = 0
        for number, (_, _, name) in zip(numbers, _numbered(optimizer)):
            states = dict(state_dict["state"].get(number, {}))
            if states:
                # torch's sgd counts no steps.
                steps = int(states.pop("step", 1))
                wanted[f"state.{name}.step"] = steps
                last = max(last, steps)
            for key, value in states.items():
                if isinstance(value, torch.Tensor):
                    state.add(f"state.{name}.{key}", DType.F32,
                              value.detach().cpu().float().numpy())
        for key, value in wanted.items():
            state.add_number(key, value)
        engine.load_state_dict(state, content=Content.OPTIMIZER, convert=1)
    engine.set_completed_steps(last)
    optimizer._receive_hyper()
    for group, values in zip(groups, given):
        group.update({key: value for key, value in values.items()
                      if key != "params"})
