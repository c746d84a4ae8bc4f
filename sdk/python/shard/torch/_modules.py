# SPDX-License-Identifier: Apache-2.0
"""An nn.Module as a model of libshard, and libshard's memory as its tensors."""

import torch

from .._c import DType
from .._model import Model

_DTYPES = {
    torch.float32: DType.F32, torch.float64: DType.F64,
    torch.float16: DType.F16, torch.bfloat16: DType.BF16,
    torch.int8: DType.I8, torch.int16: DType.I16, torch.int32: DType.I32,
    torch.int64: DType.I64, torch.uint8: DType.U8, torch.bool: DType.BOOL,
}
_TORCH_DTYPES = {dtype: kind for kind, dtype in _DTYPES.items()}


def tensor_of(view):
    """Returns the memory of a View as a tensor, which keeps the memory.
    BufferError where it is a GPU's."""
    dtype = _TORCH_DTYPES[view.dtype]
    if 0 in view.shape:
        return torch.empty(view.shape, dtype=dtype)
    return torch.frombuffer(view.host_memory(), dtype=dtype).view(view.shape)


class Declaration:
    """The modules, parameters and buffers of an nn.Module, declared as a Model.

    params  Parameters by their ids
    names   FQNs by these ids
    ids     ids by Parameter
    """

    def __init__(self, module):
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"module must be an nn.Module, not {module!r}")
        self.model = Model(type(module).__name__)
        self.params, self.names, self.ids = [], [], {}
        self._buffers = []  # (module, name) by the buffers' ids.
        self._buffer_tensors = set()
        self._add(0, module, "")

    def _add(self, parent, module, path):
        for name, param in module._parameters.items():
            if param is not None:
                self._add_param(parent, name, param, path + name)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer not in self._buffer_tensors:
                self._buffer_tensors.add(buffer)
                self._buffers.append((module, name))
                self.model.add_buffer(
                    parent, name, _dtype(buffer, path + name), buffer.shape,
                    name not in module._non_persistent_buffers_set)
        for name, child in module._modules.items():
            if child is not None:
                self._add(self.model.add_module(parent, name,
                                                type(child).__name__), child,
                          f"{path}{name}.")

    def _add_param(self, parent, name, param, fqn):
        if param in self.ids:
            self.model.tie(parent, name, self.ids[param])
            return
        number = self.model.add_param(parent, name, _dtype(param, fqn),
                                      param.shape)
        if not param.requires_grad:
            self.model.freeze(number)
        self.ids[param] = number
        self.params.append(param)
        self.names.append(fqn)

    # ---- Memory --------------------------------------------------------------

    def give_values(self, engine):
        """Gives the engine the first values, of which rank 0's count."""
        if engine.comm.rank == 0:
            for number, param in enumerate(self.params):
                tensor_of(engine.writable_param_view(number)).copy_(param.data)
        engine.broadcast_params()
        self.give_buffers(engine)
        engine.broadcast_buffers()

    def show_params(self, engine):
        """Makes the engine's memory that of the parameters."""
        for number, param in enumerate(self.params):
            param.data = tensor_of(engine.param_view(number))

    def hide_params(self):
        """Gives the parameters no memory, so that the engine may move it."""
        for param in self.params:
            param.grad = None
            param.data = torch.empty(0, dtype=param.dtype)

    def give_buffers(self, engine):
        """Gives the engine the buffers that the module has replaced, and makes
        the engine's memory that of all buffers."""
        for number, (module, name) in enumerate(self._buffers):
            shown = tensor_of(engine.buffer_view(number))
            given = module._buffers[name]
            if given is not None and given.data_ptr() != shown.data_ptr():
                shown.copy_(given)
        self.show_buffers(engine)

    def show_buffers(self, engine):
        """Makes the engine's memory that of the buffers."""
        for number, (module, name) in enumerate(self._buffers):
            module._buffers[name] = tensor_of(engine.buffer_view(number))


def _dtype(tensor, fqn):
    """Returns the element type of a tensor that libshard can hold."""
    if tensor.device.type != "cpu":
        raise ValueError(f"{fqn} is on {tensor.device}; libshard's tensors are"
                         " on the cpu")
    if tensor.layout != torch.strided or tensor.dtype not in _DTYPES:
        raise TypeError(f"{fqn} is a tensor of {tensor.dtype} and layout"
                        f" {tensor.layout}, which libshard does not have")
    return _DTYPES[tensor.dtype]
