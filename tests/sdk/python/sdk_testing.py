# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share."""

import contextlib
import os
import pathlib
import tempfile
import threading
import unittest
import uuid

import numpy

import shard
from shard import DType


class SdkTest(unittest.TestCase):
    """A test in a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    @contextlib.contextmanager
    def raises_code(self, code, pattern=""):
        """Expects a shard.Error with this code."""
        with self.assertRaisesRegex(shard.Error, pattern) as raised:
            yield raised
        self.assertEqual(raised.exception.code, code)


def run_ranks(count, function, url_options=""):
    """Runs function(comm) on `count` ranks, which are threads. Returns what
    each returned; raises what one raised, and not what the others got by it.
    """
    url = f"threads:{count}?name={uuid.uuid4()}{url_options}"
    results, errors = [None] * count, [None] * count

    def run(rank):
        try:
            with shard.Comm(url, rank=rank, world_size=count,
                            timeout=20) as comm:
                results[rank] = function(comm)
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=run, args=(rank,))
               for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raised = sorted((error for error in errors if error is not None),
                    key=lambda error: getattr(error, "code", None)
                    == shard.Code.POISONED)
    if raised:
        raise raised[0]
    return results


def blocks_model(blocks=2, width=8, dtype=DType.F32):
    """Returns a model of equal blocks, each a unit by the policy
    "class?names=Block", and the ids of its weights."""
    model = shard.Model("Net")
    weights = []
    for i in range(blocks):
        block = model.add_module(0, f"block{i}", "Block")
        weights.append(model.add_param(block, "weight", dtype, (width, width)))
    return model, weights


def first_values(param, shape=(8, 8)):
    """Returns values that differ from element to element."""
    numel = int(numpy.prod(shape))
    return (numpy.arange(numel, dtype=numpy.float32).reshape(shape) / 64
            + param)


@contextlib.contextmanager
def local_engine(model=None, weights=None, engine_options=None, **plan_options):
    """Gives an engine of one rank whose parameters have first values."""
    if model is None:
        model, weights = blocks_model()
    with shard.Comm("local:") as comm:
        plan = shard.Plan(model, world_size=1, **plan_options)
        with shard.Engine(plan, comm, **(engine_options or {})) as engine:
            for weight in weights:
                info = plan.param_info(weight)
                engine.set_param(weight, first_values(weight, info.shape))
            engine.broadcast_params()
            yield engine


def descriptors():
    return len(os.listdir("/proc/self/fd"))
