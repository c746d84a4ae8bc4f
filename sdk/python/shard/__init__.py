# SPDX-License-Identifier: Apache-2.0
"""libshard: sharded data-parallel training, and its checkpoints.

    import shard
    weight = shard.open("ckpt")["layer.weight"]      # reads nothing yet
    rows = weight[:10]                               # a numpy array of ten rows

Comm, Model, Plan and Engine train; docs/python.md is the guide, and the C
headers are the reference."""

from . import _calls
from ._c import (BlobRule, Code, Content, DeviceKind, DType, Format, LogLevel,
                 Masters, MissingGrads, Partition, Pass, Role)
from ._checkpoint import BlobInfo, Checkpoint, FileInfo, open
from ._comm import Comm
from ._engine import Engine
from ._engine_state import Save
from ._engine_tensors import UnitParam
from ._errors import Error, MissingKey
from ._functions import (abi_version, clean_tensor_name, code_name, devices,
                         dtype_name, dtype_size, schedule_lr, version)
from ._model import Model
from ._plan import Plan
from ._state_dict import LocalTensor, StateDict
from ._tensor import Tensor
from ._units import FullParams, Unit
from ._values import from_bf16, to_bf16
from ._views import View

# The results of calls: PlanInfo, StepReport, TensorInfo and so on.
globals().update({kind.__name__: kind for kind in _calls.RESULTS.values()})

__all__ = [name for name in globals() if not name.startswith("_")]
