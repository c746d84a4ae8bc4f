# SPDX-License-Identifier: Apache-2.0
"""Training on several ranks: communicators, engines, units, saves, loads."""

import os
import unittest

import numpy

import shard
from sdk_testing import (SdkTest, blocks_model, first_values, local_engine,
                         run_ranks)
from shard import BlobRule, Code, DType, Partition, Pass


def train(comm, stage, url_steps=3, root=None, **plan_options):
    """Trains two blocks unit by unit; returns the parameters."""
    model, weights = blocks_model()
    plan = shard.Plan(model, stage=stage, world_size=comm.world_size,
                      wrap="class?names=Block", optimizer="adamw?lr=0.1",
                      **plan_options)
    with shard.Engine(plan, comm) as engine:
        for weight in weights:
            engine.set_param(weight, first_values(weight))
        engine.broadcast_params()
        for step in range(url_steps):
            for weight in weights:
                with engine.unit(plan.unit_of(weight), Pass.FORWARD) as unit:
                    values = unit.param(weight).copy()
                    assert values.shape == (8, 8)
                    assert unit.params()[0].grad is None
            for weight in reversed(weights):
                with engine.unit(plan.unit_of(weight), Pass.BACKWARD) as unit:
                    unit.grad(weight)[...] = weight + step + comm.rank
                    unit.mark_grads_ready()
            report = engine.step()
            assert report.step == step + 1
        if root is not None:
            engine.save(root)
        with engine.summon() as full:
            return [full.param(weight).copy() for weight in weights]


class CommTest(SdkTest):
    def test_one_rank_needs_no_environment(self):
        with shard.Comm("local:") as comm:
            self.assertEqual((comm.rank, comm.world_size), (0, 1))
            self.assertEqual((comm.local_rank, comm.local_world_size), (0, 1))
            self.assertIn("rank 0", comm.describe())
        self.assertTrue(comm.closed)

    def test_counts_what_a_rank_does(self):
        with shard.Comm("local:", trace=str(self.folder / "trace.json"),
                        metrics=str(self.folder / "shard.prom"),
                        dump=str(self.folder / "dump.json")) as comm:
            comm.barrier()
            self.assertIn('"operation":"barrier"', comm.dump())
            counter = comm.counter("barrier")
            self.assertEqual((counter.calls, counter.errors), (1, 0))
            self.assertIn('event="barrier"} 1\n', comm.metrics())
            with self.assertRaisesRegex(shard.Error, "'barriers'"):
                comm.counter("barriers")
        self.assertEqual(sorted(os.listdir(self.folder)),
                         ["dump.rank0.json", "shard.rank0.prom", "trace.json"])

    def test_ranks_add_and_send_numbers(self):
        def work(comm):
            comm.barrier()
            data = bytearray(b"rank 0" if comm.rank == 0 else b"......")
            comm.broadcast(data)
            array = numpy.full(3, comm.rank)
            comm.broadcast(array, root=1)
            with self.assertRaisesRegex(shard.Error, "is no GPU"):
                comm.check_device("cpu")
            return (comm.sum(comm.rank + 1), comm.sum([1, 0.5]), bytes(data),
                    array.tolist())

        expected = (3.0, [2.0, 1.0], b"rank 0", [1, 1, 1])
        self.assertEqual(run_ranks(2, work), [expected, expected])

    def test_an_exception_on_one_rank_ends_the_wait_of_the_other(self):
        got = []

        def work(comm):
            if comm.rank == 1:
                raise RuntimeError("no data")
            try:
                comm.barrier()
            except shard.Error as error:
                got.append(error)
                raise

        with self.assertRaisesRegex(RuntimeError, "no data"):
            run_ranks(2, work)
        self.assertEqual(got[0].code, Code.POISONED)
        self.assertIn("RuntimeError: no data", str(got[0]))

    def test_log_messages_arrive(self):
        lines = []
        with shard.Comm("local:", log=lambda *line: lines.append(line),
                        log_level=shard.LogLevel.DEBUG) as comm:
            model, _ = blocks_model()
            shard.Engine(shard.Plan(model, world_size=1), comm).close()
        self.assertTrue(lines)
        self.assertIsInstance(lines[0][0], shard.LogLevel)
        self.assertIsInstance(lines[0][1], str)

    def test_a_log_function_that_raises_is_the_error_of_the_call(self):
        class Full(Exception):
            pass

        def log(level, message):
            if "event=open" not in message:
                raise Full(message)

        with shard.Comm("local:", log=log,
                        log_level=shard.LogLevel.DEBUG) as comm:
            model, _ = blocks_model()
            plan = shard.Plan(model, world_size=1)
            with self.assertRaises(Full):
                shard.Engine(plan, comm)
            comm.barrier()  # Nothing is broken.


class TrainingTest(SdkTest):
    def test_stages_and_transports_give_the_same_bits(self):
        expected = run_ranks(2, lambda comm: train(comm, 0))
        for stage, url in ((1, ""), (2, ""), (3, ""), (1, "&direct=0"),
                           (2, "&direct=0"), (3, "&direct=0")):
            with self.subTest(stage=stage, url=url):
                actual = run_ranks(2, lambda comm: train(comm, stage), url)
                numpy.testing.assert_array_equal(actual, expected)

    def test_training_goes_on_with_another_number_of_ranks(self):
        root = self.folder / "ckpt"
        saved = run_ranks(2, lambda comm: train(
            comm, 3, root=root, buffer_bytes=64), "&direct=0")[0]

        def resume(comm):
            model, weights = blocks_model()
            plan = shard.Plan(model, stage=1, world_size=comm.world_size,
                              optimizer="adamw?lr=0.1")
            seen = []
            with shard.Engine(plan, comm) as engine:
                report = engine.load(root, progress=lambda *b: seen.append(b))
                assert engine.last_load_report()["missing"] == []
                assert report.step == engine.completed_steps() == 3
                assert report.saved_world_size == 2 and seen
                return [engine.param(weight).copy() for weight in weights]

        for ranks in (1, 3):
            for params in run_ranks(ranks, resume):
                numpy.testing.assert_array_equal(params, saved)

    def test_a_step_reports_norm_and_times(self):
        with local_engine(optimizer="sgd?lr=1") as engine:
            engine.grad(0)[...] = 3
            report = engine.step(max_grad_norm=1.0)
            self.assertEqual(report.grad_norm, 24)  # 64 threes.
            self.assertEqual(report.skipped, 0)
            numpy.testing.assert_allclose(engine.param(0),
                                          first_values(0) - 1 / 8, atol=1e-6)

    def test_the_last_report_and_the_stream_are_the_engines(self):
        with local_engine() as engine:
            with self.raises_code(Code.FAILED_PRECONDITION, "last_report"):
                engine.last_report()
            self.assertEqual(engine.device, (1, 0))
            self.assertEqual(engine.json(), {"device": "cpu",
                                             "transport": "none",
                                             "sum_order": "ranks"})
            engine.set_stream()
            with self.raises_code(Code.INVALID_ARGUMENT, "'cpu'"):
                engine.set_stream(4096)
            with self.raises_code(Code.UNIMPLEMENTED, "no graphs"):
                engine.capture_begin()
            with self.raises_code(Code.FAILED_PRECONDITION, "capture_end"):
                engine.capture_end()
            with self.raises_code(Code.FAILED_PRECONDITION, "before_replay"):
                engine.before_replay(max_grad_norm=1)
            report = engine.step()
            engine.synchronize()
            engine.synchronize(timeout=30)
            self.assertEqual(engine.last_report(), report)
            self.assertIsNone(engine.step(report=False))
            self.assertEqual(engine.last_report().step, report.step + 1)

    def test_unit_params_come_in_one_call(self):
        with local_engine(wrap="class?names=Block",
                          optimizer="sgd?lr=1") as engine:
            for unit in range(1, engine.plan().info().num_units):
                for param, data, grad in engine.unit_params(unit):
                    self.assertFalse(data.flags.writeable)
                    grad[...] = data
            engine.step()
            self.assertEqual(numpy.abs(engine.param(1)).max(), 0)

    def test_begin_step_gives_the_same_bits(self):
        def work(comm, begin):
            model, weights = blocks_model()
            plan = shard.Plan(model, stage=1, world_size=2,
                              wrap="class?names=Block")
            with shard.Engine(plan, comm) as engine:
                engine.broadcast_params()
                if begin:
                    engine.begin_step(grad_divisor=4)
                for weight in weights:
                    engine.grad(weight)[...] = 1 + comm.rank
                    engine.mark_unit_grads_ready(plan.unit_of(weight))
                engine.step(**({} if begin else {"grad_divisor": 4}))
                return engine.param(1).copy()

        numpy.testing.assert_array_equal(
            run_ranks(2, lambda comm: work(comm, True), "&direct=0"),
            run_ranks(2, lambda comm: work(comm, False), "&direct=0"))

    def test_gradients_of_two_passes_are_added(self):
        with local_engine(optimizer="sgd?lr=1") as engine:
            for accumulate in (True, False):
                engine.set_accumulate(accumulate)
                with engine.unit(0, Pass.BACKWARD) as unit:
                    for param in (0, 1):
                        unit.grad(param)[...] += 1
                        unit.mark_param_grad_ready(param)
            engine.step()
            numpy.testing.assert_array_equal(engine.param(0),
                                             first_values(0) - 2)
            engine.zero_grad()
            self.assertEqual(engine.grad(0).max(), 0)

    def test_a_rank_without_data_joins(self):
        def work(comm):
            model, weights = blocks_model()
            plan = shard.Plan(model, stage=1, world_size=2)
            with shard.Engine(plan, comm) as engine:
                engine.broadcast_params()
                for _ in range(2 + 2 * comm.rank):
                    for weight in weights:
                        engine.grad(weight)[...] = 1
                    report = engine.step(average_active=True)
                return engine.join(), report.active_ranks

        self.assertEqual(run_ranks(2, work), [(2, 2), (0, 1)])

    def test_hyperparameters_and_counters_are_set_and_read(self):
        with local_engine(engine_options=dict(
                loss_scaling="dynamic?init_scale=8")) as engine:
            engine.set_hyper(-1, "lr", 0.25)
            self.assertEqual(engine.hyper(0, "lr"), 0.25)
            self.assertIn("lr=0.25", engine.group_text(0))
            engine.set_completed_steps(41)
            self.assertEqual(engine.completed_steps(), 41)
            self.assertEqual(engine.loss_scale(), 8)
            engine.set_loss_scale(16, good_steps=3)
            self.assertEqual((engine.loss_scale(), engine.growth_tracker()),
                             (16, 3))
            engine.set_state(0, "exp_avg", first_values(3))
            state = engine.state_dict()
            numpy.testing.assert_array_equal(
                state["state.block0.weight.exp_avg"].data,
                first_values(3).reshape(-1))
            self.assertGreater(engine.memory().param_bytes, 0)

    def test_parameters_change_groups_and_freeze_at_run_time(self):
        with local_engine(optimizer="sgd?lr=1") as engine:
            group = engine.add_param_group("?lr=0.5", [1])
            self.assertEqual(engine.hyper(group, "lr"), 0.5)
            engine.set_trainable([0], False)
            engine.grad(1)[...] = 1
            with self.raises_code(Code.FAILED_PRECONDITION, "frozen"):
                engine.grad(0)
            engine.step()
            numpy.testing.assert_array_equal(engine.param(0), first_values(0))
            numpy.testing.assert_array_equal(engine.param(1),
                                             first_values(1) - 0.5)
            self.assertEqual(engine.plan().param_info(0).trainable, 0)

    def test_full_parameters_are_changed_on_all_ranks(self):
        def work(comm):
            model, weights = blocks_model()
            plan = shard.Plan(model, stage=3, world_size=2)
            with shard.Engine(plan, comm) as engine:
                engine.broadcast_params()
                with engine.summon(rank=0, write_back=True) as full:
                    if comm.rank == 0:
                        kept = full.param(weights[1])
                        kept[...] = 5
                        full.param(weights[0])
                    else:
                        with self.raises_code(Code.FAILED_PRECONDITION):
                            full.param(weights[1])
                with engine.unit(0, Pass.FORWARD) as unit:
                    return unit.param(weights[1]).copy()

        for params in run_ranks(2, work, "&direct=0"):
            numpy.testing.assert_array_equal(params, numpy.full((8, 8), 5))

    def test_a_rank_that_fails_with_full_parameters_stops_no_other(self):
        def work(comm):
            model, weights = blocks_model()
            plan = shard.Plan(model, stage=1, world_size=2)
            with shard.Engine(plan, comm) as engine:
                engine.broadcast_params()
                try:
                    with engine.summon() as full:
                        if comm.rank == 1:
                            raise ValueError("a bad name")
                        full.param(weights[0])
                except ValueError:
                    pass
                for weight in weights:
                    engine.grad(weight)[...] = 1
                return engine.step().step

        self.assertEqual(run_ranks(2, work), [1, 1])

    def test_arrays_of_the_caller_are_bound(self):
        values = numpy.empty((8, 8), numpy.float32)
        grad = numpy.ones((8, 8), numpy.float32)
        with local_engine(optimizer="sgd?lr=1") as engine:
            engine.bind_param(0, values, grad)
            numpy.testing.assert_array_equal(values, first_values(0))
            engine.step()
            numpy.testing.assert_array_equal(values, first_values(0) - 1)
            self.assertEqual(engine.grad(0).ctypes.data, grad.ctypes.data)
            engine.bind_param(0)
            engine.grad(0)[...] = 0
            engine.step()
            self.assertNotEqual(engine.grad(0).ctypes.data, grad.ctypes.data)

    def test_buffers_are_the_same_on_all_ranks(self):
        def work(comm):
            model, _ = blocks_model()
            mean = model.add_buffer(0, "mean", DType.F32, (3,))
            count = model.add_buffer(0, "count", DType.I64, ())
            plan = shard.Plan(model, world_size=2)
            self.assertEqual(plan.model_buffer_name(count), "count")
            self.assertEqual(plan.model_buffer_info(mean).shape, (3,))
            with shard.Engine(plan, comm) as engine:
                engine.buffer(mean)[...] = comm.rank + 1
                engine.buffer(count)[...] = 7 * comm.rank
                engine.broadcast_buffers(root=1)
                return engine.buffer(mean).tolist(), int(engine.buffer(count))

        self.assertEqual(run_ranks(2, work), [([2, 2, 2], 7)] * 2)


class SaveTest(SdkTest):
    def test_a_save_goes_on_in_the_background(self):
        seen = []
        with local_engine() as engine:
            with engine.save(self.folder / "ckpt", background=True,
                             progress=lambda *b: seen.append(b)) as save:
                engine.step()
            self.assertTrue(seen)
        self.assertEqual(shard.open(self.folder / "ckpt").info().step, 0)
        with self.raises_code(Code.FAILED_PRECONDITION, "save is closed"):
            save.done

    def test_a_save_outlives_its_handle_and_its_engine(self):
        def progress(done, total):
            seen.append(done)

        seen = []
        with local_engine() as engine:
            engine.save(self.folder / "ckpt", background=True,
                        progress=progress).close()
            del progress
        self.assertEqual(len(shard.open(self.folder / "ckpt")), 6)
        self.assertTrue(seen)

    def test_a_progress_function_that_raises_cancels_the_save(self):
        def progress(done, total):
            raise InterruptedError("stop it")

        with local_engine() as engine:
            with self.assertRaisesRegex(InterruptedError, "stop it"):
                engine.save(self.folder / "ckpt", progress=progress)
            save = engine.save(self.folder / "ckpt", background=True,
                               progress=progress)
            for _ in range(2):
                with self.assertRaisesRegex(InterruptedError, "stop it"):
                    save.wait()
            self.assertTrue(save.done)
            save.close()
            engine.save(self.folder / "ckpt", keep_last=2)
            with self.raises_code(Code.ALREADY_EXISTS):
                engine.save(self.folder / "ckpt")
            engine.save(self.folder / "ckpt", overwrite=True)

    def test_blobs_are_saved_and_loaded(self):
        with local_engine() as engine:
            engine.set_blob("loader", BlobRule.PER_RANK, b"position 12")
            engine.set_blob("empty", BlobRule.REPLICATED, b"")
            engine.save(self.folder / "ckpt")
        with local_engine() as engine:
            engine.load(self.folder / "ckpt")
            self.assertEqual(engine.blob("loader"), b"position 12")
            self.assertEqual(engine.blob("empty"), b"")
            with self.raises_code(Code.NOT_FOUND, "other"):
                engine.blob("other")

    def test_a_load_that_does_not_fit_lists_the_keys(self):
        with local_engine() as engine:
            engine.save(self.folder / "ckpt")
        model, weights = blocks_model(3)
        with local_engine(model, weights) as engine:
            with self.raises_code(Code.FAILED_PRECONDITION) as raised:
                engine.load(self.folder / "ckpt")
            self.assertIn("block2.weight", raised.exception.detail["missing"])
            report = engine.load(self.folder / "ckpt", allow_mismatch=True,
                                 content=shard.Content.MODEL)
            self.assertEqual(report.missing, 1)
            self.assertEqual(engine.last_load_report()["missing"],
                             ["block2.weight"])

    def test_a_part_of_the_model_is_saved(self):
        with local_engine() as engine:
            engine.save(self.folder / "ckpt", submodules=[1], strip_prefix=True,
                        content=shard.Content.MODEL)
        with shard.open(self.folder / "ckpt") as checkpoint:
            self.assertEqual(list(checkpoint), ["weight"])


class StateDictTest(SdkTest):
    def test_this_ranks_part_and_the_whole(self):
        def work(comm):
            model, weights = blocks_model()
            plan = shard.Plan(model, stage=1, world_size=2,
                              partition=Partition.GREEDY)
            with shard.Engine(plan, comm) as engine:
                for weight in weights:
                    engine.set_param(weight, first_values(weight))
                engine.broadcast_params()
                state = engine.state_dict(content=shard.Content.MODEL,
                                          copy=True)
                self.assertEqual(sorted(state),
                                 ["block0.weight", "block1.weight"])
                self.assertEqual(state["block0.weight"].info.shape, (8, 8))
                mine = {key: tensor.data.size for key, tensor in state.items()}
                whole = engine.gather_state_dict(content=shard.Content.MODEL)
                numpy.testing.assert_array_equal(whole["block1.weight"],
                                                 first_values(1))
                keys = []
                engine.gather_state_dict(
                    lambda key, info, array: keys.append(key), rank=1)
                self.assertEqual(bool(keys), comm.rank == 1)
                return mine

        first, second = run_ranks(2, work)
        self.assertEqual({key: first[key] + second[key] for key in first},
                         {"block0.weight": 64, "block1.weight": 64})

    def test_take_ends_the_gathering_on_all_ranks(self):
        class Enough(Exception):
            pass

        def work(comm):
            model, _ = blocks_model()
            plan = shard.Plan(model, world_size=2)
            with shard.Engine(plan, comm) as engine:
                engine.broadcast_params()

                def take(key, info, array):
                    raise Enough(key)

                try:
                    engine.gather_state_dict(take, rank=0)
                except Enough:
                    return "raised"
                except shard.Error as error:
                    return error.code

        self.assertEqual(run_ranks(2, work), ["raised", Code.CANCELLED])

    def test_a_state_dict_of_arrays_is_loaded(self):
        def work(comm):
            model, weights = blocks_model(dtype=DType.BF16)
            plan = shard.Plan(model, world_size=2)
            state = None
            if comm.rank == 0:
                state = shard.StateDict()
                state.add("block0.weight", DType.BF16, first_values(0) * 2)
                state.add("block1.weight", DType.BF16,
                          shard.to_bf16(first_values(1)).tobytes(), (8, 8))
                self.assertEqual(len(state), 2)
                self.assertEqual(state["block1.weight"].data.dtype, "u2")
                state.add_number("extra", 3)
                self.assertEqual(state.numbers, {"extra": 3})
            with shard.Engine(plan, comm) as engine:
                report = engine.load_state_dict(
                    state, from_rank0=True, allow_mismatch=True,
                    content=shard.Content.MODEL)
                self.assertEqual(report.loaded, 2)
                return shard.from_bf16(engine.param(weights[0]))

        for values in run_ranks(2, work):
            numpy.testing.assert_array_equal(values, first_values(0) * 2)

    def test_wrong_tensors_are_refused(self):
        state = shard.StateDict()
        state.add("a", DType.F32, [[1, 2]])
        with self.raises_code(Code.INVALID_ARGUMENT, "a"):
            state.add("a", DType.F32, [[1, 2]])
        with self.raises_code(Code.INVALID_ARGUMENT):
            state.add("b", DType.F32, bytes(7), (2,))
        with self.assertRaisesRegex(TypeError, "need a shape"):
            state.add("b", DType.F32, bytes(8))
        with self.raises_code(Code.INVALID_ARGUMENT):
            state.add_number("c", float("nan"))
        with self.assertRaises(KeyError):
            state["none"]
        self.assertEqual(list(state), ["a"])


if __name__ == "__main__":
    unittest.main()
