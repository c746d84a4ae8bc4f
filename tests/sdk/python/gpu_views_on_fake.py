# SPDX-License-Identifier: Apache-2.0
"""Views of an engine on a GPU, whose memory the host cannot use. Runs with the fake
of CUDA's driver, which faults where the program uses this memory (gpu_test.sh)."""

import ctypes
import unittest

import numpy

import shard
from sdk_testing import SdkTest
from shard import Code, DType, Pass

GPU = 2, 0  # In DLPack's codes.
HOST = 1, 0
ON_GPU = "memory of GPU 0, which numpy cannot read.*from_dlpack.*copy=True"
_lib = shard._library.lib


def address_in_c(engine, function, param):
    """Returns the address that a function of the C interface gives."""
    address = ctypes.c_void_p()
    function(engine._c, param, ctypes.byref(address), None)
    return address.value


def address_in_capsule(view):
    """Returns the first member of the capsule's DLTensor: its data."""
    # The package does not depend on the types that a program sets here.
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype = ctypes.c_void_p
    get.argtypes = [ctypes.py_object, ctypes.c_char_p]
    capsule = view.__dlpack__()
    return ctypes.c_void_p.from_address(get(capsule, b"dltensor")).value


class ViewsTest(SdkTest):
    def engine(self, device):
        model = shard.Model("Net")
        self.block = model.add_module(0, "block", "Block")
        self.weight = model.add_param(0, "weight", DType.F32, [4, 2])
        self.bias = model.add_param(self.block, "bias", DType.F32, [100])
        self.mean = model.add_buffer(0, "mean", DType.F32, [3])
        comm = self.enterContext(shard.Comm("local:"))
        engine = self.enterContext(shard.Engine(
            shard.Plan(model, world_size=1, optimizer="sgd?momentum=0.9"), comm,
            device=device))
        engine.set_param(self.weight, numpy.full((4, 2), 2, numpy.float32))
        return engine

    def expect_on_gpu(self, view, address):
        self.assertEqual(view.__dlpack_device__(), GPU)
        self.assertNotEqual(view.address, 0)
        self.assertEqual(view.address, address)
        self.assertEqual(address_in_capsule(view), address)
        # A capsule that nobody took is gone.
        shard._dlpack.drop_unneeded()
        self.assertEqual(shard._dlpack._alive, {})
        with self.assertRaisesRegex(BufferError, ON_GPU):
            view.array()
        # Nothing else of it has a buffer.
        with self.assertRaises(TypeError):
            memoryview(view.memory)

    def test_arrays_of_a_gpus_memory_are_refused(self):
        engine = self.engine("cuda:0")
        param, grad = _lib.shard_engine_param, _lib.shard_engine_grad
        with self.assertRaisesRegex(BufferError, ON_GPU):
            engine.writable_param(self.weight)
        self.expect_on_gpu(engine.writable_param_view(self.weight),
                           address_in_c(engine, param, self.weight))
        engine.broadcast_params()
        for number in (self.weight, self.bias):
            self.expect_on_gpu(engine.param_view(number),
                               address_in_c(engine, param, number))
            self.expect_on_gpu(engine.grad_view(number),
                               address_in_c(engine, grad, number))
        with engine.unit(0, Pass.BACKWARD) as unit:
            for refused in (lambda: engine.param(self.weight),
                            lambda: engine.grad(self.weight),
                            lambda: engine.unit_params(0),
                            lambda: unit.param(self.weight),
                            lambda: unit.grad(self.weight), unit.params):
                with self.assertRaisesRegex(BufferError, ON_GPU):
                    refused()
        # Buffers of the model are in the host's memory on every device.
        engine.buffer(self.mean)[...] = 5
        self.assertEqual(engine.buffer_view(self.mean).device, HOST)
        self.assertEqual(engine.buffer(self.mean).tolist(), [5.0] * 3)

    def test_a_cpu_gives_arrays_and_their_addresses(self):
        engine = self.engine("cpu")
        engine.broadcast_params()
        for view, array in (
                (engine.param_view(self.weight), engine.param(self.weight)),
                (engine.grad_view(self.weight), engine.grad(self.weight))):
            self.assertEqual(view.device, HOST)
            self.assertEqual(view.address, array.ctypes.data)
            self.assertEqual(address_in_capsule(view), view.address)
        self.assertEqual(engine.param(self.weight).tolist(), [[2.0, 2.0]] * 4)

    def test_full_parameters_are_in_the_hosts_memory(self):
        engine = self.engine("cuda:0")
        engine.broadcast_params()
        with engine.summon(self.block, write_back=True) as full:
            full.param(self.bias)[...] = 7
            # The module has no copy of this one.
            with self.raises_code(Code.FAILED_PRECONDITION,
                                  "parameter 0 is not summoned.*GPU 0"):
                full.param(self.weight)
            # No capsule says that a copy is the GPU's.
            with self.raises_code(Code.FAILED_PRECONDITION, "is summoned"):
                engine.param_view(self.bias)
            self.assertEqual(engine.grad_view(self.bias).device, GPU)
        with engine.summon() as full:
            self.assertEqual(full.param(self.weight).tolist(), [[2.0, 2.0]] * 4)
            self.assertEqual(full.param(self.bias).tolist(), [7.0] * 100)
        self.assertEqual(engine.param_view(self.bias).device, GPU)

    def test_state_dicts_say_where_tensors_are(self):
        momentum = "state.weight.momentum_buffer"
        for device in ("cuda:0", "cuda:0?offload=states"):
            with self.subTest(device=device):
                engine = self.engine(device)
                engine.broadcast_params()
                engine.zero_grad()
                engine.step()
                engine.buffer(self.mean)[...] = 5
                with engine.state_dict(copy=True) as state:
                    self.assertEqual(state["weight"].data.tolist(), [2.0] * 8)
                    self.assertEqual(state[momentum].data.tolist(), [0.0] * 8)
                with engine.state_dict() as state:
                    self.expect_on_gpu(
                        state["weight"].data,
                        address_in_c(engine, _lib.shard_engine_param,
                                     self.weight))
                    if device == "cuda:0":
                        self.assertEqual(state[momentum].data.device, GPU)
                    else:
                        self.assertEqual(state[momentum].data.tolist(),
                                         [0.0] * 8)
                    self.assertEqual(state["mean"].data.tolist(), [5.0] * 3)


if __name__ == "__main__":
    unittest.main()
