# SPDX-License-Identifier: Apache-2.0
"""The optimizer of PyTorch's kind."""

import torch

from .._arguments import instance
from .._comm import Comm
from .._engine import Engine
from .._handles import Unique
from .._plan import Plan
from .._views import HOST_MEMORY
from ._gradients import ShardedGradients, WholeGradients
from ._hyper import group_values, hyper_text, numbers_of
from ._modules import Declaration
from . import _state

_ENGINE_OPTIONS = "timeout", "loss_scaling", "missing_grads", "overlap", "device"


class Optimizer(Unique, torch.optim.Optimizer):
    """Trains an nn.Module with the ranks of a communicator.

    module     its parameters and buffers become views of libshard's memory,
               with rank 0's values on all ranks. Programs read parameters, and
               change them only through load, load_state_dict and
               engine.summon(write_back=True)
    optimizer  a text such as "adamw?lr=1e-3&weight_decay=0.1" (plan.h)
    groups     dicts with params and the hyperparameters that differ for them,
               as for torch's optimizers; "optimizer" for another text

    Other options are those of Plan and Engine: stage (0, 1 or 2; default 1),
    wrap, partition, loss_scaling, missing_grads and so on; the device is the
    cpu, "cpu" or "cpu-async". Learning-rate
    schedulers of torch set param_groups, which every rank sets alike.

    `engine` has all else that libshard can do. COLLECTIVE, as step, save, load,
    state_dict and load_state_dict are."""

    def __init__(self, module, comm, optimizer="adamw", *, groups=(),
                 **options):
        instance(Comm, comm, "comm")
        stage = options.setdefault("stage", 1)
        if stage not in (0, 1, 2):
            raise ValueError(f"stage is {stage}; shard.torch has 0, 1 and 2")
        if options.get("f32_grads"):
            raise ValueError("PyTorch's gradients have the parameters' type:"
                             " there is no f32_grads here")
        engine_options = {name: options.pop(name) for name in _ENGINE_OPTIONS
                          if name in options}
        self._missing_grads = engine_options.get("missing_grads")
        self._declared = Declaration(module)
        groups = [{**group, "params": _params(group)} for group in groups]
        for group in groups:
            self._declared.model.add_param_group(
                hyper_text(group), self._ids(group["params"]))
        plan = Plan(self._declared.model, world_size=comm.world_size,
                    optimizer=optimizer, **options)
        self.engine = Engine(plan, comm, **engine_options)
        if tuple(self.engine.device) != HOST_MEMORY:
            # On all ranks, where rank 0 alone would fail to set values.
            self.engine.close()
            raise ValueError(f"device is {engine_options.get('device')!r};"
                             " shard.torch has the cpu, where the module's"
                             " tensors are; shard.Engine has GPUs")
        self.report = None
        self._declared.give_values(self.engine)
        self._attach()

        taken = {param for group in groups for param in group["params"]}
        rest = [param for param in self._declared.params if param not in taken]
        super().__init__([{"params": rest}] + [
            {"params": group["params"]} for group in groups], {})
        self._receive_hyper()

    # ---- Training ------------------------------------------------------------

    def step(self, closure=None, **options):
        """Averages the gradients of all ranks and updates the parameters.
        Options are those of Engine.step, such as max_grad_norm; `report` has
        its StepReport afterwards. Returns what the closure returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_memory()
        self._send_hyper()
        self._gradients.declare()
        self.report = self.engine.step(**options)
        with torch.no_grad():
            # Tells autograd that the parameters have changed.
            torch._foreach_zero_(self._empty)
        return loss

    def zero_grad(self, set_to_none=True):
        """Forgets the gradients since the last step."""
        self._gradients.zero(set_to_none)

    def accumulate(self):
        """Returns a context for backward passes which others follow before the
        step. In stages 0 and 1 gradients add up without it."""
        return self._gradients.accumulate()

    def set_trainable(self, params, trainable=True):
        """Freezes or trains parameters from here on; their gradients are gone.
        Tensors that show the memory of parameters must be gone: it moves.
        COLLECTIVE."""
        params = list(params)
        numbers = self._ids(params)
        self._replan(lambda: self.engine.set_trainable(numbers, trainable))
        for param in params:
            param.requires_grad_(trainable)
        self._attach()

    def add_param_group(self, param_group):
        """Gives parameters that are frozen, or in the first group, a group of
        their own, as in `groups`. COLLECTIVE."""
        if len(self.param_groups) < self.engine.plan().info().num_groups:
            super().add_param_group(param_group)  # Called by __init__.
            return
        params = _params(param_group)
        numbers = self._ids(params)
        self._replan(lambda: self.engine.add_param_group(
            hyper_text(param_group), numbers))
        for group in self.param_groups:
            group["params"] = [param for param in group["params"]
                               if not any(param is one for one in params)]
        for param in params:
            param.requires_grad_(True)
        self._attach()
        super().add_param_group({"params": params})
        self._receive_hyper()

    # ---- Checkpoints ---------------------------------------------------------

    def save(self, root, **options):
        """Saves parameters, buffers and optimizer as checkpoint
        `root`/step-NNNNNN, with the options of Engine.save."""
        self._declared.give_buffers(self.engine)
        return self.engine.save(root, **options)

    def load(self, path, **options):
        """Loads a checkpoint that any number of ranks saved, or safetensors,
        with the options of Engine.load. Returns a LoadReport."""
        report = self.engine.load(path, **options)
        self._declared.show_buffers(self.engine)
        self._receive_hyper()
        return report

    def state_dict(self, rank=-1):
        """Returns the state as torch's optimizers have it, whole, on one rank
        or, with -1, on all; None on others."""
        return _state.gather(self, rank)

    def load_state_dict(self, state_dict):
        """Loads the state of state_dict(), or of torch's optimizer of the same
        name for a module of the same parameters."""
        _state.load(self, state_dict)

    # ---- Inside --------------------------------------------------------------

    def _ids(self, params):
        numbers = []
        for param in params:
            number = self._declared.ids.get(param)
            if number is None:
                raise ValueError(f"the module has no such parameter of shape"
                                 f" {tuple(param.shape)}")
            numbers.append(number)
        return numbers

    def _attach(self):
        """Makes the engine's memory that of the parameters and gradients."""
        declared = self._declared
        declared.show_params(self.engine)
        if self.engine.plan().info().shards_grads:
            self._gradients = ShardedGradients(
                self.engine, declared.params, self._missing_grads)
        else:
            self._gradients = WholeGradients(self.engine, declared.params)
        self._addresses = [param.data_ptr() for param in declared.params]
        self._empty = [param.detach().view(-1)[:0] for param in declared.params]

    def _check_memory(self):
        """Refuses parameters whose memory is not the engine's any more."""
        declared = self._declared
        for param, name, address in zip(declared.params, declared.names,
                                        self._addresses):
            if param.data_ptr() != address:
                raise RuntimeError(
                    f"{name} has other memory than libshard's now, as after"
                    " module.to(): make the optimizer after such changes")

    def _replan(self, change):
        """Runs a change that moves the engine's memory. Attaches again where it
        fails."""
        self._gradients.remove()
        self._empty = []
        self._declared.hide_params()
        try:
            change()
        except BaseException:
            self._attach()
            raise

    def _send_hyper(self):
        """Sets the hyperparameters that have changed in param_groups."""
        for group, values in enumerate(self.param_groups):
            numbers = numbers_of(values)
            sent = self._sent[group]
            for key in sent:
                if key not in numbers:
                    raise ValueError(f"param group {group} has no number {key}")
                if numbers[key] != sent[key]:
                    self.engine.set_hyper(group, key, numbers[key])
                    sent[key] = numbers[key]

    def _receive_hyper(self):
        """Sets param_groups to the engine's hyperparameters."""
        self._sent = []
        for number, group in enumerate(self.param_groups):
            values = group_values(self.engine.group_text(number))
            group.update(values)
            self._sent.append(numbers_of(values))


def _params(group):
    params = group["params"]
    return [params] if isinstance(params, torch.Tensor) else list(params)
