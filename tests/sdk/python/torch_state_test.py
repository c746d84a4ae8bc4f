# SPDX-License-Identifier: Apache-2.0
"""shard.torch beside torch's own optimizers: checkpoints and states."""

import unittest

import shard
from sdk_testing import run_ranks
from torch_testing import (RANKS, TorchTest, loss_of, make_net, make_optimizer,
                           nn, reference, torch, train, train_steps)


class StateTest(TorchTest):
    def test_a_checkpoint_goes_on_with_another_number_of_ranks(self):
        expected = reference(6)[0]
        root = self.folder / "ckpt"
        run_ranks(RANKS, lambda comm: train(comm, 3, stage=2)[1].save(root))
        with shard.open(root) as checkpoint:
            self.assertEqual(checkpoint["seen"][()], 3)
            self.assertIn("state.head.weight.exp_avg", checkpoint)

        def resume(comm):
            net = make_net()
            optimizer = make_optimizer(net, comm, stage=1)
            self.assertEqual(optimizer.load(root).step, 3)
            self.assertEqual(net.seen, 3)
            return loss_of(net, 3, 0).item(), loss_of(net, 3, 1).item()

        for ranks in (1, 3):
            losses = run_ranks(ranks, resume)[0]
            self.assertAlmostEqual(sum(losses) / RANKS, expected[3], delta=2e-6)

    def test_torch_goes_on_with_our_state_and_we_with_torchs(self):
        expected = reference(6)[0]

        def ours(comm):
            _, optimizer, net = train(comm, 3)
            return net.state_dict(), optimizer.state_dict()

        params, state = run_ranks(RANKS, ours)[0]
        net = make_net()
        net.load_state_dict(params)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1)
        optimizer.load_state_dict(state)
        self.assert_close(reference(3, begin=3, net=net, optimizer=optimizer)[0],
                          expected[3:])

        _, optimizer, net = reference(3)
        theirs, state = net.state_dict(), optimizer.state_dict()

        def resume(comm):
            net = make_net()
            net.load_state_dict(theirs)
            optimizer = make_optimizer(net, comm, "adamw?lr=9", stage=2)
            optimizer.load_state_dict(state)
            losses = train_steps(net, optimizer, comm, range(3, 6))
            return losses, optimizer.engine.completed_steps()

        losses, steps = run_ranks(RANKS, resume)[0]
        self.assert_close(losses, expected[3:])
        self.assertEqual(steps, 6)

    def test_momentum_of_torch_goes_on(self):
        def make(net):
            return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

        expected = reference(6, make=make)[0]
        _, optimizer, net = reference(3, make=make)
        theirs, state = net.state_dict(), optimizer.state_dict()

        def resume(comm):
            net = make_net()
            net.load_state_dict(theirs)
            optimizer = make_optimizer(net, comm, "sgd?momentum=0.9")
            optimizer.load_state_dict(state)
            return train_steps(net, optimizer, comm, range(3, 6))

        self.assert_close(run_ranks(RANKS, resume)[0], expected[3:])

    def test_only_one_rank_gathers(self):
        states = run_ranks(RANKS, lambda comm: train(
            comm, 1)[1].state_dict(rank=1))
        self.assertIsNone(states[0])
        self.assertEqual(float(states[1]["state"][0]["step"]), 1)

    def test_a_state_of_another_module_is_refused(self):
        with shard.Comm("local:") as comm:
            optimizer = make_optimizer(make_net(), comm)
            state = torch.optim.AdamW(nn.Linear(2, 2).parameters()).state_dict()
            with self.assertRaisesRegex(ValueError, r"\[2\] parameters, .*26"):
                optimizer.load_state_dict(state)


if __name__ == "__main__":
    unittest.main()
