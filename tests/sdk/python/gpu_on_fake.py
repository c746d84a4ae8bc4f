# SPDX-License-Identifier: Apache-2.0
"""Engines on a GPU: tensors of its memory, given and taken by DLPack. Runs with
the fake of CUDA's driver, whose devices' memory is the host's (gpu_test.sh)."""

import ctypes
import gc
import pathlib
import pickle
import re
import subprocess
import sys
import unittest
import uuid

import numpy

import shard
from sdk_testing import SdkTest, blocks_model, run_ranks
from shard import Code, DType

GPU = 2, 0  # In DLPack's codes.
_TYPES = {DType.F32: (2, 32, numpy.float32), DType.F16: (2, 16, numpy.float16)}


class _DLTensor(ctypes.Structure):
    """DLManagedTensor of dlpack.h, written down once more."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64), ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p)]


def pointer_of(capsule):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype = ctypes.c_void_p
    get.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return _DLTensor.from_address(get(capsule, b"dltensor"))


class Gpu:
    """A host of the driver: the primary context of a device, and its memory."""

    def __init__(self, device=0):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.device = device
        context = ctypes.c_void_p()
        for result in (
                self.driver.cuInit(0),
                self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context),
                                                     device),
                self.driver.cuCtxPushCurrent_v2(context)):
            assert result == 0, result

    def close(self):
        context = ctypes.c_void_p()
        self.driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        self.driver.cuDevicePrimaryCtxRelease_v2(self.device)


class Tensor:
    """A tensor of a GPU's memory, as another library has it."""

    alive = 0

    def __init__(self, gpu, shape, dtype=DType.F32, strides=None, offset=0):
        self._gpu = gpu
        self.code, self.bits, kind = _TYPES[dtype]
        count = int(numpy.prod(shape)) + offset
        memory = ctypes.c_uint64()
        nbytes = max(count, 1) * self.bits // 8
        assert gpu.driver.cuMemAlloc_v2(ctypes.byref(memory), nbytes) == 0
        self.address = memory.value
        self.shape, self.strides, self.offset = shape, strides, offset
        self.array = numpy.frombuffer(
            (ctypes.c_char * nbytes).from_address(self.address), kind)[offset:]
        self.array[:] = 0
        Tensor.alive += 1

    def free(self):
        assert self._gpu.driver.cuMemFree_v2(ctypes.c_uint64(self.address)) == 0

    def __dlpack_device__(self):
        return GPU

    def __dlpack__(self, stream=None):
        assert stream == -1, stream
        dims = len(self.shape)
        shape = (ctypes.c_int64 * dims)(*self.shape)
        strides = (ctypes.c_int64 * dims)(*self.strides) if self.strides else None

        def delete(_):
            Tensor.alive -= 1
            keep.clear()

        deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(delete)
        tensor = _DLTensor(
            data=self.address, device_type=2, device_id=0, ndim=dims,
            code=self.code, bits=self.bits, lanes=1, shape=shape, strides=strides,
            byte_offset=self.offset * self.bits // 8,
            deleter=ctypes.cast(deleter, ctypes.c_void_p))
        keep = [tensor, shape, strides, deleter]
        self.keep = keep
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(tensor), b"dltensor", None)


def train(comm, stage, device, deterministic=0):
    """Returns this rank's state after three steps."""
    # So many, of several pages, that it pays to shard them.
    model, weights = blocks_model(blocks=8, width=64)
    plans = [shard.Plan(model, world_size=2, stage=up_to, prefetch=0,
                        wrap="class?names=Block", optimizer="adamw?lr=0.1",
                        deterministic=deterministic)
             for up_to in range(stage + 1)]
    sizes = [plan.memory(device="cuda:0").device_bytes for plan in plans]
    # Ranks that share memory keep a part of the states each in stage 0, too.
    assert sizes[1:] == sorted(set(sizes[1:]), reverse=True), sizes
    with shard.Engine(plans[-1], comm, device=device) as engine:
        kind = "cuda:" if engine.device[0] == 2 else "cpu"
        assert device.partition("?")[0] in (f"{kind}{engine.device[1]}",
                                            "cpu"), engine.device
        assert device.endswith("collectives=nccl") == (
            engine.json().get("transport", "").startswith("nccl ")), engine.json()
        for weight in weights if comm.rank == 0 else ():
            engine.set_param(weight, numpy.arange(4096).reshape(64, 64) / 100)
        engine.broadcast_params()
        for step in range(3):
            for unit in range(len(weights), -1, -1):
                with engine.unit(unit, shard.Pass.BACKWARD):
                    if unit > 0:
                        # Written by the program itself, not in stream order.
                        engine.synchronize()
                        write(engine.grad_view(weights[unit - 1]),
                              step + comm.rank + unit)
                    engine.mark_unit_grads_ready(unit)
            engine.step(max_grad_norm=0.5)
        with engine.state_dict(copy=True) as state:
            return {key: state[key].data.tobytes() for key in state}


def train_long(comm, device, root, stage):
    """Returns this rank's states of a training that accumulates, freezes and
    trains again, joins, and saves to `root`."""
    model = shard.Model("Net")
    params = []
    for i, numel in enumerate((1000, 77, 4099)):
        module = model.add_module(0, f"block{i}", "Block")
        params.append(model.add_param(module, "weight", DType.F32, [numel]))
    plan = shard.Plan(model, world_size=4, stage=stage, optimizer="adamw?lr=0.1",
                      wrap="class?names=Block", whole_grads=1,
                      shard_group_size=2 if stage == 3 else 0)
    states = []

    def step(passes, trained=params):
        for i in range(passes):
            engine.set_accumulate(i + 1 < passes)
            for param in reversed(trained):
                unit = plan.unit_of(param)
                with engine.unit(unit, shard.Pass.BACKWARD):
                    write(engine.grad_view(param), i + 1 + comm.rank)
                    engine.mark_unit_grads_ready(unit)
        engine.step(max_grad_norm=0.5)

    def keep():
        with engine.state_dict(copy=True) as state:
            states.append({key: state[key].data.tobytes() for key in state})

    with shard.Engine(plan, comm, device=device) as engine:
        for param in params if comm.rank == 0 else []:
            engine.set_param(param, numpy.linspace(
                -1, 1, plan.param_info(param).numel, dtype=numpy.float32))
        engine.broadcast_params()
        step(1)
        step(3)
        keep()
        engine.set_trainable(params[:1], False)
        step(1, params[1:])
        engine.set_trainable(params[:1], True)
        for _ in range(comm.rank % 2):
            step(1)
        engine.join()
        keep()
        engine.save(root)
        engine.load(root)
        keep()
    return states


def elements_of(view):
    """Returns the elements where they lie, as a kernel of the host's sees them."""
    count = int(numpy.prod(view.shape))
    return numpy.frombuffer((ctypes.c_float * count).from_address(view.address),
                            numpy.float32)


def write(view, value):
    """Writes a gradient where it lies, as a kernel of the host's would."""
    grad = elements_of(view)
    grad[:] = numpy.linspace(-1, 1, grad.size, dtype=numpy.float32) * value


def run_rank(url, rank, count, stage, root, path):
    """A rank that is a process."""
    with shard.Comm(url, rank=int(rank), world_size=int(count),
                    timeout=20) as comm:
        if int(count) == 2:
            state = train(comm, int(stage), "cuda:0")
        else:
            state = train_long(comm, "cuda:0", root, int(stage))
        comm.barrier()
    pathlib.Path(path).write_bytes(pickle.dumps(state))


class GpuTest(SdkTest):
    def setUp(self):
        super().setUp()
        self.gpu = Gpu()
        self.addCleanup(self.gpu.close)

    def engine(self, device="cuda:0"):
        model = shard.Model("Net")
        self.weight = model.add_param(0, "weight", DType.F32, [4, 2])
        comm = self.enterContext(shard.Comm("local:"))
        engine = self.enterContext(shard.Engine(
            shard.Plan(model, world_size=1, optimizer="sgd?lr=0.5&momentum=0.9"), comm,
            device=device))
        engine.set_param(self.weight, numpy.ones((4, 2), numpy.float32))
        engine.broadcast_params()
        return engine

    def test_views_are_tensors_of_the_gpu(self):
        engine = self.engine()
        self.assertEqual(tuple(engine.device), GPU)
        view = engine.param_view(self.weight)
        self.assertEqual(view.__dlpack_device__(), GPU)
        capsule = view.__dlpack__()
        tensor = pointer_of(capsule)
        self.assertEqual((tensor.device_type, tensor.device_id), GPU)
        self.assertEqual(tensor.shape[:2], [4, 2])
        # A capsule that nobody took is gone, whatever types the program has set
        # for Python's functions, as pointer_of does.
        del capsule
        shard._dlpack.drop_unneeded()
        self.assertEqual(shard._dlpack._alive, {})
        with self.assertRaisesRegex(BufferError, "memory of GPU 0.*from_dlpack"):
            view.array()
        grad = engine.grad_view(self.weight)
        capsule = grad.__dlpack__(stream=1)
        tensor = pointer_of(capsule)
        self.assertEqual((tensor.device_type, tensor.device_id), GPU)
        write(grad, 1)
        engine.step()
        engine.synchronize()
        moved = elements_of(view)
        self.assertEqual(moved[0], 1.5)
        moved[:] = 1
        with engine.state_dict() as state:
            self.assertEqual(state["weight"].data.__dlpack_device__(), GPU)
        with engine.state_dict(copy=True) as state:
            self.assertEqual(state["weight"].data.tolist(), [1.0] * 8)

    def test_a_step_reads_and_writes_bound_tensors(self):
        engine = self.engine()
        values = Tensor(self.gpu, (4, 2))
        grad = Tensor(self.gpu, (4, 2), strides=(2, 1), offset=3)
        self.addCleanup(values.free)
        self.addCleanup(grad.free)
        before = Tensor.alive
        engine.bind_param(self.weight, values, grad)
        engine.synchronize()
        self.assertEqual(values.array.tolist(), [1.0] * 8)
        grad.array[:8] = numpy.arange(8)
        engine.step()
        engine.synchronize()
        self.assertEqual(values.array.tolist(),
                         [1 - 0.5 * i for i in range(8)])
        # The engine keeps the tensors until they are bound no more.
        self.assertEqual(Tensor.alive, before)
        engine.bind_param(self.weight)
        gc.collect()
        self.assertEqual(Tensor.alive, before - 2)

    def test_a_hundred_replays_have_the_bits_of_plain_steps(self):
        driver = self.gpu.driver
        stream, graph, launched = (ctypes.c_void_p() for _ in range(3))
        options = {"max_grad_norm": 2, "skip_nonfinite": True}
        steps, skipped = 100, (30, 61)

        def check(result):
            self.assertEqual(result, 0)

        def capture(engine):
            check(driver.cuStreamBeginCapture_v2(stream, 0))
            engine.capture_begin()
            engine.step(report=False, **options)
            engine.capture_end()
            check(driver.cuStreamEndCapture(stream, ctypes.byref(graph)))
            check(driver.cuGraphInstantiateWithFlags(
                ctypes.byref(launched), graph, ctypes.c_ulonglong(0)))
            self.addCleanup(lambda: check(driver.cuGraphDestroy(graph)))
            self.addCleanup(lambda: check(driver.cuGraphExecDestroy(launched)))
            self.assertEqual(engine.completed_steps(), 0)

        def train(replays):
            engine = self.engine()
            engine.set_stream(stream.value)
            if replays:
                capture(engine)
            for step in range(1, steps + 1):
                engine.set_hyper(0, "lr", 0.5 / step)
                if replays:
                    # The step before, which reads gradients, has then ended.
                    engine.before_replay(**options)
                write(engine.grad_view(self.weight),
                      numpy.nan if step in skipped else step)
                if replays:
                    check(driver.cuGraphLaunch(launched, stream))
                else:
                    report = engine.step(**options)
                    self.assertEqual(report.skipped, step in skipped)
            self.assertEqual(engine.last_report().step, steps - len(skipped))
            with engine.state_dict(copy=True) as state:
                return {key: state[key].data.tobytes() for key in state}

        check(driver.cuStreamCreate(ctypes.byref(stream), 1))
        # After the engines are freed.
        self.addCleanup(lambda: check(driver.cuStreamDestroy_v2(stream)))
        plain = train(False)
        self.assertEqual(len(plain), 2)  # The parameter and its momentum.
        self.assertTrue(numpy.isfinite(
            numpy.frombuffer(plain["weight"], numpy.float32)).all())
        self.assertEqual(train(True), plain)

    def test_wrong_tensors(self):
        engine = self.engine()
        on_gpu = Tensor(self.gpu, (4, 2))
        halves = Tensor(self.gpu, (4, 2), DType.F16)
        turned = Tensor(self.gpu, (4, 2), strides=(1, 4))
        for tensor in (on_gpu, halves, turned):
            self.addCleanup(tensor.free)
        on_host = numpy.zeros((4, 2), numpy.float32)
        with self.assertRaisesRegex(ValueError, r"\(1, 0\).*\(2, 0\)"):
            engine.bind_param(self.weight, on_host)
        with self.assertRaisesRegex(TypeError, r"grad.*\(2, 16\).*F32"):
            engine.bind_param(self.weight, None, halves)
        with self.assertRaisesRegex(BufferError, "contiguous"):
            engine.bind_param(self.weight, turned)
        with self.raises_code(Code.INVALID_ARGUMENT, "has 32 bytes|not"):
            short = Tensor(self.gpu, (4, 1))
            self.addCleanup(short.free)
            engine.bind_param(self.weight, short)
        # Memory of the wrong place, behind an address.
        lib = shard._library.lib
        memory = (ctypes.c_float * 8)()
        with self.raises_code(Code.INVALID_ARGUMENT, "bind_param.*the host's"):
            lib.shard_engine_bind_param(engine._c, self.weight,
                                        ctypes.addressof(memory), 32, None, 0)
        with self.raises_code(Code.INVALID_ARGUMENT, "set_state.*of a GPU"):
            lib.shard_engine_set_state(engine._c, self.weight, b"momentum_buffer",
                                       ctypes.c_void_p(on_gpu.address), 8)
        cpu = self.engine("cpu")
        with self.assertRaisesRegex(ValueError, r"\(2, 0\).*\(1, 0\)"):
            cpu.bind_param(self.weight, on_gpu)

    def test_ranks_have_a_gpu_each(self):
        for stage in range(4):
            with self.subTest(stage=stage):
                on_gpus = run_ranks(2, lambda comm: train(
                    comm, stage, f"cuda:{comm.rank}"))
                on_cpu = run_ranks(2, lambda comm: train(comm, stage, "cpu"),
                                   "&direct=0")
                self.assertEqual(on_gpus, on_cpu)

    def test_ranks_train_by_nccl(self):
        for stage in range(4):
            with self.subTest(stage=stage):
                by_nccl = run_ranks(2, lambda comm: train(
                    comm, stage, f"cuda:{comm.rank}?collectives=nccl",
                    deterministic=1))
                on_cpu = run_ranks(2, lambda comm: train(
                    comm, stage, "cpu", deterministic=1))
                self.assertEqual(by_nccl, on_cpu)
                if stage > 0:
                    # Each rank has a part of its own of the states.
                    self.assertNotEqual(by_nccl[0], by_nccl[1])

    def test_the_guides_program_prints_what_it_says(self):
        blocks = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```",
                            pathlib.Path("docs/python.md").read_text(), re.S)
        blocks = [block for block in blocks if "cuda:" in block[0]]
        self.assertEqual(len(blocks), 1)
        for code, expected in blocks:
            done = subprocess.run([sys.executable, "-c", code], text=True,
                                  capture_output=True, timeout=120)
            self.assertEqual((done.returncode, done.stdout), (0, expected),
                             done.stderr)

    def test_memory_is_what_was_planned(self):
        def work(comm, stage):
            model = shard.Model("Net")
            for size in (100, 5000, 3):
                model.add_param(0, f"weight{size}", DType.BF16, [size])
            model.add_buffer(0, "mean", DType.F32, [30])
            plan = shard.Plan(model, world_size=comm.world_size, stage=stage,
                              optimizer="adamw")
            with shard.Engine(plan, comm, device="cuda:0") as engine:
                self.assertEqual(engine.memory(), plan.memory(device="cuda:0"))
                return engine.memory()

        for ranks in (1, 2):
            for stage in range(4):
                with self.subTest(ranks=ranks, stage=stage):
                    for memory in run_ranks(ranks, lambda comm: work(comm, stage)):
                        self.assertGreater(memory.device_bytes, 0)
                        self.assertGreater(memory.pinned_bytes, 0)
                        self.assertEqual(memory.host_bytes, memory.pinned_bytes)

    def run_processes(self, count, stage):
        """Returns what ranks return that are processes with one GPU. Each has a
        fake of its own; what they exchange is real."""
        url = f"shm:{uuid.uuid4()}"
        ranks = [subprocess.Popen(
            [sys.executable, __file__, "rank", url, str(rank), str(count),
             str(stage), str(self.folder / f"on_gpu{stage}"),
             str(self.folder / str(rank))])
                 for rank in range(count)]
        self.assertEqual([rank.wait(120) for rank in ranks], [0] * count)
        return [pickle.loads((self.folder / str(rank)).read_bytes())
                for rank in range(count)]

    def test_ranks_that_are_processes_share_a_gpu(self):
        for stage in range(4):
            with self.subTest(stage=stage):
                self.assertEqual(
                    self.run_processes(2, stage),
                    run_ranks(2, lambda comm: train(comm, stage, "cpu"),
                              "&direct=0"))

    def test_processes_accumulate_replan_join_and_save(self):
        for stage in (1, 2, 3):
            with self.subTest(stage=stage):
                on_gpu = self.run_processes(4, stage)
                on_cpu = run_ranks(
                    4, lambda comm: train_long(
                        comm, "cpu", self.folder / f"on_cpu{stage}", stage),
                    "&direct=0")
                self.assertEqual(on_gpu, on_cpu)
                # Something is sharded: no rank has another's state.
                self.assertNotEqual(on_gpu[0][1], on_gpu[1][1])

    def test_tensors_of_the_host_are_taken_too(self):
        engine = self.engine("cpu")
        other = self.engine("cpu")
        # A view has DLPack's methods and no buffer.
        engine.bind_param(self.weight, other.grad_view(self.weight))
        self.assertEqual(other.grad(self.weight).tolist(), [[1.0, 1.0]] * 4)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        run_rank(*sys.argv[2:])
    else:
        unittest.main()
