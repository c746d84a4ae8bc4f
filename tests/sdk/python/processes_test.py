# SPDX-License-Identifier: Apache-2.0
"""Children of fork that use what their parent has, and threads with an engine
each."""

import os
import threading
import traceback

import numpy

import shard
from sdk_testing import SdkTest, blocks_model, first_values, local_engine
from shard import Code


class ProcessesTest(SdkTest):
    def expect_passes_in_a_child(self, function):
        """Runs the function in a child of fork."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                function()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)

    def test_calls_on_what_the_parent_has_are_errors_in_a_child(self):
        with local_engine() as engine:
            engine.save(self.folder / "ckpt")
            checkpoint = shard.open(self.folder / "ckpt")

            def child():
                for call in (engine.step, engine.zero_grad,
                             engine.completed_steps,
                             lambda: engine.param(0),
                             lambda: engine.save(self.folder / "child")):
                    with self.raises_code(Code.FAILED_PRECONDITION, "fork"):
                        call()
                with self.raises_code(Code.FAILED_PRECONDITION, "fork"):
                    checkpoint["block0.weight"][...]
                self.assertIn("block0.weight", checkpoint)

            self.expect_passes_in_a_child(child)
            engine.step()

    def test_threads_share_what_does_not_change(self):
        model, weights = blocks_model()
        plan = shard.Plan(model, world_size=1)
        with local_engine() as engine:
            engine.save(self.folder / "ckpt")
        checkpoint = shard.open(self.folder / "ckpt")
        wrong = []

        def work():
            try:
                with shard.Comm("local:") as comm:
                    engine = shard.Engine(plan, comm)
                    engine.broadcast_params()
                    for step in range(10):
                        name = plan.param_name(weights[0])
                        numpy.testing.assert_array_equal(
                            checkpoint[name], first_values(weights[0]))
                        engine.step()
                    self.assertEqual(engine.completed_steps(), 10)
                    engine.close()
            except BaseException:
                wrong.append(traceback.format_exc())

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
