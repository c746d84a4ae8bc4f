# SPDX-License-Identifier: Apache-2.0
"""shard.torch beside torch's own optimizers: steps, gradients and arguments."""

import copy
import gc
import unittest
from unittest import mock

import shard
from sdk_testing import run_ranks
from shard import Code, MissingGrads
from torch_testing import (RANKS, WIDTH, TorchTest, loss_of, make_net,
                           make_optimizer, nn, reference, torch, train,
                           train_steps)


class StepTest(TorchTest):
    def test_losses_are_those_of_torch_in_every_stage(self):
        expected = reference()[0]
        for stage in (0, 1, 2):
            for url in ("", "&direct=0"):
                with self.subTest(stage=stage, url=url):
                    losses, optimizer, _ = run_ranks(
                        RANKS, lambda comm: train(comm, stage=stage), url)[0]
                    info = optimizer.engine.plan().info()
                    self.assertEqual(info.shards_grads, stage == 2)
                    self.assert_close(losses, expected)

    def test_clipping_is_that_of_torch(self):
        expected = reference(max_norm=0.05)[0]
        for stage in (1, 2):
            losses, optimizer, _ = run_ranks(RANKS, lambda comm: train(
                comm, stage=stage, step_options={"max_grad_norm": 0.05}))[0]
            self.assert_close(losses, expected)
            self.assertGreater(optimizer.report.grad_norm, 0.05)

    def test_parameters_and_gradients_are_views_of_the_engine(self):
        def work(comm):
            _, optimizer, net = train(comm, stage=1)
            for number, param in enumerate(net.parameters()):
                for tensor, memory in (
                        (param, optimizer.engine.param(number)),
                        (param.grad, optimizer.engine.grad(number))):
                    self.assertEqual(tensor.data_ptr(), memory.ctypes.data)
                    self.assertEqual(tensor.shape, memory.shape)

        run_ranks(RANKS, work)

    def test_sharded_gradients_leave_nothing_behind(self):
        def work(comm):
            net = make_net()
            optimizer = make_optimizer(net, comm, stage=2)
            x = net.blocks[:5](torch.ones(2, WIDTH))
            early = []
            x.register_hook(lambda _: early.append(
                [param.grad for param in net.blocks[5].parameters()]))
            net.head(net.blocks[5](x)).sum().backward()
            for gradients in (*early, [param.grad for param in
                                       net.parameters()]):
                self.assertEqual(set(map(type, gradients)), {type(None)})
            self.assertEqual(len(early), 1)
            optimizer.step()

        run_ranks(RANKS, work)

    def test_gradients_add_up_over_passes(self):
        def work(comm, stage):
            net = make_net()
            optimizer = make_optimizer(net, comm, stage=stage)
            for step in range(2):
                optimizer.zero_grad()
                with optimizer.accumulate():
                    loss_of(net, 2 * step, comm.rank).backward()
                loss_of(net, 2 * step + 1, comm.rank).backward()
                optimizer.step()
            return [param.detach().clone() for param in net.parameters()]

        net = make_net()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01,
                                      weight_decay=0.1)
        for step in range(2):
            optimizer.zero_grad()
            sum(loss_of(net, 2 * step + i, rank) / RANKS
                for i in range(2) for rank in range(RANKS)).backward()
            optimizer.step()
        for stage in (1, 2):
            for actual, expected in zip(
                    run_ranks(RANKS, lambda comm: work(comm, stage))[0],
                    net.parameters()):
                torch.testing.assert_close(actual, expected.detach(), rtol=1e-4,
                                           atol=1e-5)

    def test_a_second_pass_is_an_error_with_the_remedy(self):
        def work(comm):
            net = make_net()
            optimizer = make_optimizer(net, comm, stage=2)
            loss_of(net, 0, comm.rank).backward()
            with self.assertRaisesRegex(RuntimeError, "accumulate"):
                loss_of(net, 0, comm.rank).backward()
            optimizer.zero_grad()
            loss_of(net, 0, comm.rank).backward()
            optimizer.step()

        run_ranks(RANKS, work)

    def test_groups_frozen_and_tied_parameters(self):
        def change(net):
            net.blocks[0].up.weight.requires_grad_(False)
            net.blocks[1].up.weight = net.blocks[2].up.weight

        def split(net):
            return [param for param in net.parameters() if param.ndim == 1]

        def work(comm, stage):
            net = make_net(change)
            optimizer = make_optimizer(
                net, comm, stage=stage,
                groups=[{"params": split(net), "weight_decay": 0.0,
                         "betas": (0.8, 0.9)}])
            losses = train_steps(net, optimizer, comm, range(4))
            self.assertEqual(optimizer.param_groups[1]["betas"], (0.8, 0.9))
            self.assertEqual(optimizer.param_groups[0]["weight_decay"], 0.1)
            return losses

        expected = reference(change=change, make=lambda net: torch.optim.AdamW(
            [{"params": [p for p in net.parameters() if p.ndim != 1]},
             {"params": split(net), "weight_decay": 0.0, "betas": (0.8, 0.9)}],
            lr=0.01, weight_decay=0.1))[0]
        for stage in (1, 2):
            self.assert_close(
                run_ranks(RANKS, lambda comm: work(comm, stage))[0], expected)

    def test_a_scheduler_of_torch_sets_the_learning_rate(self):
        def schedule(optimizer):
            return torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: 1 / (1 + step))

        def work(comm):
            net = make_net()
            optimizer = make_optimizer(net, comm)
            scheduler = schedule(optimizer)
            for step in range(3):
                optimizer.zero_grad()
                loss_of(net, step, comm.rank).backward()
                optimizer.step()
                scheduler.step()
            return optimizer.engine.hyper(0, "lr"), optimizer.param_groups

        lr, groups = run_ranks(RANKS, work)[0]
        self.assertAlmostEqual(lr, 0.01 / 3)
        self.assertAlmostEqual(groups[0]["lr"], 0.01 / 4)

    def test_missing_gradients(self):
        def change(net):
            net.unused = nn.Linear(3, 3)

        def work(comm, stage, missing):
            _, _, net = train(comm, 2, change=change, stage=stage,
                              missing_grads=missing)
            return net.unused.weight.detach().clone()

        first = make_net(change).unused.weight
        for stage in (1, 2):
            with self.raises_code(Code.FAILED_PRECONDITION, "gradient"):
                run_ranks(RANKS, lambda comm: work(
                    comm, stage, MissingGrads.ERROR))
            skipped = run_ranks(RANKS, lambda comm: work(
                comm, stage, MissingGrads.SKIP))
            self.assertTrue(torch.equal(skipped[0], first))
            decayed = run_ranks(RANKS, lambda comm: work(
                comm, stage, MissingGrads.ZERO))
            self.assertFalse(torch.equal(decayed[0], first))

    def test_bf16_keeps_master_weights(self):
        def work(comm, stage):
            losses, optimizer, _ = train(
                comm, 6, change=lambda net: net.bfloat16(), stage=stage)
            self.assertIn("master_param", optimizer.state_dict()["state"][0])
            return losses

        expected = reference(6)[0]
        for stage in (1, 2):
            self.assert_close(run_ranks(RANKS, lambda comm: work(
                comm, stage))[0], expected, 0.05)

    def test_a_step_needs_gradients(self):
        for stage in (0, 2):
            with shard.Comm("local:") as comm:
                optimizer = make_optimizer(make_net(), comm, stage=stage)
                with self.raises_code(Code.FAILED_PRECONDITION, "gradient"):
                    optimizer.step()

    def test_gradients_that_a_program_sets_count(self):
        with shard.Comm("local:") as comm:
            net = make_net()
            optimizer = make_optimizer(net, comm, "sgd?lr=1")
            before = net.head.bias.detach().clone()
            for param in net.parameters():
                param.grad = torch.ones_like(param)
            optimizer.step()
            self.assertTrue(torch.equal(net.head.bias, before - 1))
            optimizer.zero_grad(set_to_none=False)
            optimizer.step()
            self.assertTrue(torch.equal(net.head.bias, before - 1))

    def test_a_pass_that_fails_is_forgotten(self):
        class Failing(torch.autograd.Function):
            @staticmethod
            def forward(context, x):
                return x.clone()

            @staticmethod
            def backward(context, grad):
                raise ZeroDivisionError

        def work(comm):
            net = make_net()
            optimizer = make_optimizer(net, comm, stage=2)
            x = Failing.apply(net.blocks[0](torch.ones(2, WIDTH)))
            with self.assertRaises(ZeroDivisionError):
                net.head(net.blocks[5](x)).sum().backward()
            optimizer.zero_grad()
            loss_of(net, 0, comm.rank).backward()
            optimizer.step()

        run_ranks(RANKS, work)

    def test_wrong_hyperparameters(self):
        with shard.Comm("local:") as comm:
            _, optimizer, net = train(comm, 1)
            for wrong, kind in (("x", ValueError), (None, ValueError),
                                (float("nan"), shard.Error), (-1, shard.Error)):
                optimizer.param_groups[0]["lr"] = wrong
                with self.assertRaises(kind):
                    optimizer.step()
            optimizer.param_groups[0]["lr"] = torch.tensor(0.5)
            loss_of(net, 1, 0).backward()
            optimizer.step()
            self.assertEqual(optimizer.engine.hyper(0, "lr"), 0.5)

    def test_an_optimizer_is_not_copied(self):
        with shard.Comm("local:") as comm:
            optimizer = make_optimizer(make_net(), comm)
            with self.assertRaisesRegex(TypeError, "cannot be copied"):
                copy.deepcopy(optimizer)

    def test_memory_that_a_program_replaces_is_found(self):
        with shard.Comm("local:") as comm:
            _, optimizer, net = train(comm, 1)
            net.double()
            loss_of(net, 0, 0).backward()
            with self.assertRaisesRegex(RuntimeError, "blocks.0.up.weight has"):
                optimizer.step()

    def test_autograd_sees_that_a_step_changed_parameters(self):
        with shard.Comm("local:") as comm:
            net = make_net()
            optimizer = make_optimizer(net, comm)
            loss_of(net, 0, 0).backward()
            stale = loss_of(net, 0, 0)
            optimizer.step()
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace"):
                stale.backward()

    def test_trainable_parameters_and_groups_change(self):
        def work(comm, stage):
            net = make_net()
            optimizer = make_optimizer(net, comm, stage=stage)

            def step():
                optimizer.zero_grad()
                loss_of(net, 0, comm.rank).backward()
                optimizer.step()

            step()
            weight = net.head.weight
            frozen = weight.detach().clone()
            optimizer.set_trainable([weight], False)
            step()
            self.assertTrue(torch.equal(weight, frozen))
            optimizer.add_param_group({"params": weight, "lr": 0.5})
            step()
            self.assertFalse(torch.equal(weight, frozen))
            self.assertEqual([group["lr"] for group in optimizer.param_groups],
                             [0.01, 0.5])
            held = weight.detach()
            with self.raises_code(Code.FAILED_PRECONDITION, "show memory"):
                optimizer.set_trainable([weight], False)
            del held
            step()

        for stage in (1, 2):
            run_ranks(RANKS, lambda comm: work(comm, stage))

    def test_wrong_arguments(self):
        net = make_net()
        with shard.Comm("local:") as comm:
            for wrong, kind, message in (
                    (dict(stage=3), ValueError, "0, 1 and 2"),
                    (dict(f32_grads=1), ValueError, "f32_grads"),
                    (dict(stge=1), TypeError, "no 'stge'"),
                    (dict(groups=[{"params": [nn.Parameter(torch.ones(2))]}]),
                     ValueError, r"no such parameter of shape \(2,\)"),
                    (dict(groups=[{"params": net.parameters(), "lr": "x"}]),
                     ValueError, "'lr' is no number")):
                with self.assertRaisesRegex(kind, message):
                    shard.torch.Optimizer(net, comm, **wrong)
            with self.assertRaisesRegex(TypeError, "nn.Module"):
                shard.torch.Optimizer(None, comm)
            with self.assertRaisesRegex(TypeError, "shard.Comm"):
                shard.torch.Optimizer(net, None)
            net.head.weight = nn.Parameter(torch.ones(2, 2) * 1j)
            with self.assertRaisesRegex(TypeError, "head.weight.*complex"):
                shard.torch.Optimizer(net, comm)
            net.to("meta")
            with self.assertRaisesRegex(ValueError, "is on meta"):
                shard.torch.Optimizer(net, comm)

    def test_a_gpu_is_refused_on_all_ranks(self):
        def work(comm):
            with self.assertRaisesRegex(ValueError, "'cpu'.*shard.Engine has"):
                shard.torch.Optimizer(make_net(), comm, device="cpu")
            return True

        # As an engine of "cuda:0" says it, for which there need be no GPU.
        with mock.patch.object(shard.Engine, "device", (2, 0)):
            self.assertEqual(run_ranks(RANKS, work), [True] * RANKS)

    def test_a_module_outlives_its_optimizer(self):
        with shard.Comm("local:") as comm:
            _, optimizer, net = train(comm)
            expected = copy.deepcopy(net)
            optimizer.engine.close()
        del optimizer
        gc.collect()
        loss_of(net, 0, 0).backward()
        for actual, kept in zip(net.parameters(), expected.parameters()):
            self.assertTrue(torch.equal(actual, kept))


if __name__ == "__main__":
    unittest.main()
