# SPDX-License-Identifier: Apache-2.0
"""Models and plans: everything that needs no engine."""

import unittest

import numpy

import shard
from sdk_testing import SdkTest, blocks_model
from shard import Code, DType, Partition


class PlanTest(SdkTest):
    def setUp(self):
        super().setUp()
        self.model, self.weights = blocks_model()
        self.plan = shard.Plan(self.model, stage=1, world_size=2,
                               wrap="class?names=Block")

    def test_counts_and_decisions(self):
        info = self.plan.info()
        self.assertIsInstance(info, shard.PlanInfo)
        self.assertEqual((info.stage, info.world_size, info.num_params,
                          info.num_modules, info.num_units), (1, 2, 2, 3, 3))
        self.assertEqual(self.plan.unit_of(0), 1)
        self.assertEqual(self.plan.unit_of_module(2), 2)
        self.assertEqual(self.plan.unit_module(2), 2)
        root_only = shard.Plan(self.model, world_size=2)
        self.assertIsNone(root_only.unit_of_module(2))
        self.assertGreater(self.plan.memory().param_bytes, 0)
        self.assertGreater(
            self.plan.memory(ranks_per_host=1).transient_bytes
            + self.plan.memory(ranks_per_host=1).control_bytes, 0)

    def test_layout(self):
        info = self.plan.param_info(1)
        self.assertEqual((info.shape, info.ndim, info.dtype, info.numel),
                         ((8, 8), 2, DType.F32, 64))
        buffer = self.plan.buffer_info(info.buffer)
        self.assertEqual(buffer.num_params, 1)
        self.assertEqual(self.plan.buffer_param(info.buffer, 0), 1)
        ranges = [self.plan.rank_range(info.buffer, rank) for rank in (0, 1)]
        self.assertEqual(ranges[0].numel + ranges[1].numel,
                         buffer.full_numel + buffer.num_padded)
        slices = self.plan.slices(info.buffer, info.begin + 3, 10)
        self.assertEqual([(s.param, s.param_begin, s.numel) for s in slices],
                         [(1, 3, 10)])
        self.assertEqual(self.plan.slices(info.buffer, 0, 0), [])
        flat = numpy.arange(buffer.full_numel, dtype=numpy.float32)
        view = self.plan.param_view(1, flat)
        view[0, 0] = -1
        self.assertEqual(flat[info.begin], -1)
        with self.raises_code(Code.INVALID_ARGUMENT):
            self.plan.param_view(1, flat[:-1].copy())

    def test_names_and_modules(self):
        self.assertEqual(self.plan.param_name(1), "block1.weight")
        self.assertEqual(self.plan.find_param("block1.weight"), 1)
        self.assertEqual(self.plan.name_info(1).param, 1)
        self.assertEqual(self.plan.module_info(2).parent, 0)
        self.assertEqual(self.plan.module_name(2), "block1")
        self.assertEqual(self.plan.module_class(2), "Block")
        with self.raises_code(Code.NOT_FOUND, "block9"):
            self.plan.find_param("block9.weight")

    def test_texts(self):
        self.assertIn("block0", self.plan.text())
        self.assertIsInstance(self.plan.json(), dict)
        self.assertEqual(self.plan.warnings(), [])
        frozen, weights = blocks_model()
        frozen.freeze(weights[0])
        warnings = shard.Plan(frozen, world_size=1).warnings()
        self.assertEqual(len(warnings), 1)

    def test_a_plan_travels_as_bytes(self):
        data = self.plan.encode()
        self.assertEqual(shard.Plan.decode(data).info(), self.plan.info())
        for wrong in (b"", b"no plan", data[:-1], bytearray(len(data))):
            with self.raises_code(Code.CORRUPT):
                shard.Plan.decode(wrong)

    def test_a_function_chooses_units(self):
        asked = []

        def wrap(module, numel):
            asked.append((module, numel))
            return module == 2

        plan = shard.Plan(self.model, world_size=1, wrap_predicate=wrap)
        self.assertEqual(plan.unit_of_module(2), 1)
        self.assertIn((2, 64), asked)

    def test_a_wrap_function_that_raises_is_the_error(self):
        def wrap(module, numel):
            raise LookupError(f"module {module}")

        with self.assertRaisesRegex(LookupError, "module"):
            shard.Plan(self.model, world_size=1, wrap_predicate=wrap)
        with self.assertRaisesRegex(TypeError, "callable"):
            shard.Plan(self.model, world_size=1, wrap_predicate=3)

    def test_a_wrap_function_may_not_change_the_model(self):
        def wrap(module, numel):
            self.model.freeze(0)

        with self.raises_code(Code.FAILED_PRECONDITION, "model"):
            shard.Plan(self.model, world_size=1, wrap_predicate=wrap)

    def test_owners_are_given_as_a_list(self):
        plan = shard.Plan(self.model, world_size=2, owners=[1, 0],
                          partition=Partition.MANUAL)
        self.assertEqual(plan.param_info(0).first_rank, 1)

    def test_models_ignore_freeze_and_group(self):
        model, weights = blocks_model(3)
        bias = model.add_param(0, "bias", DType.F32, (4,))
        model.ignore_param(bias)
        model.ignore_module(3)
        group = model.add_param_group("sgd?lr=0.1", [weights[1]])
        plan = shard.Plan(model, world_size=1)
        self.assertEqual(plan.param_info(weights[1]).group, group)
        for ignored in (bias, weights[2]):
            with self.raises_code(Code.FAILED_PRECONDITION):
                plan.param_info(ignored)


class FunctionsTest(SdkTest):
    def test_names_and_sizes(self):
        self.assertEqual(shard.code_name(Code.RANK_LOST), "RANK_LOST")
        self.assertEqual(shard.code_name(999), "UNKNOWN_CODE")
        self.assertEqual(shard.dtype_name(DType.BF16), "bf16")
        self.assertEqual(shard.dtype_size(DType.BF16), 2)
        self.assertEqual(shard.abi_version(), 0)
        self.assertRegex(shard.version(), r"^\d+\.\d+\.\d+$")
        self.assertEqual(
            shard.clean_tensor_name("module.a._orig_mod.b",
                                    strip_leading_module=True), "a.b")
        self.assertEqual(set(shard.devices()["cuda"]),
                         {"driver", "devices", "nccl", "cublas", "error"})
        self.assertEqual(shard.schedule_lr("constant?lr=0.5&warmup=2", 1), 0.25)
        with self.raises_code(Code.INVALID_ARGUMENT, "warmupp"):
            shard.schedule_lr("constant?lr=0.5&warmupp=2", 1)

    def test_bf16_is_rounded_to_nearest_even(self):
        values = numpy.float32([1, 1 + 2**-8, 1 + 3 * 2**-8, -0.0, numpy.inf,
                                -numpy.inf, 3.4e38])
        numpy.testing.assert_array_equal(
            shard.from_bf16(shard.to_bf16(values)),
            numpy.float32([1, 1, 1 + 2**-6, -0.0, numpy.inf, -numpy.inf,
                           numpy.inf]))
        self.assertTrue(numpy.isnan(
            shard.from_bf16(shard.to_bf16(numpy.float32("nan")))))


if __name__ == "__main__":
    unittest.main()
