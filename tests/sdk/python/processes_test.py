# SPDX-License-Identifier: Apache-2.0
"""Ends of processes, children of fork, and what a process loads."""

import os
import subprocess
import sys
import traceback
import unittest
import unittest.mock

import shard
from sdk_testing import SdkTest, local_engine
from shard import Code, _c, _library


class ProcessesTest(SdkTest):
    def run_python(self, code, **environment):
        return subprocess.run(
            [sys.executable, "-c", code], text=True, capture_output=True,
            env={**os.environ, **environment}, timeout=50)

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

    def test_a_process_may_end_with_everything_open(self):
        done = self.run_python(f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
import shard, threading
from sdk_testing import blocks_model
def log(level, message): pass
comm = shard.Comm("local:", log=log, log_level=4)
model, _ = blocks_model()
engine = shard.Engine(shard.Plan(model, world_size=1), comm)
engine.broadcast_params()
view = engine.param(0)
save = engine.save({str(self.folder / 'ckpt')!r}, background=True,
                   progress=lambda *_: None)
print("ended")
""")
        self.assertEqual((done.returncode, done.stdout, done.stderr),
                         (0, "ended\n", ""))

    def test_a_child_of_fork_frees_and_goes_on(self):
        with local_engine() as engine:
            def child():
                engine.close()
                with local_engine() as own:
                    own.step()

            self.expect_passes_in_a_child(child)
            engine.step()

    def test_an_older_library_is_refused_by_name(self):
        library = os.environ["SHARD_OLD_LIBRARY"]
        done = self.run_python("import shard", SHARD_LIBRARY=library)
        self.assertRegex(done.stderr, r"ImportError: the package shard 0\.2\.0"
                         r" needs libshard 0\.2\.0 .*is 0\.1\.9 with ABI 0")

    def test_a_newer_library_fits_and_another_abi_does_not(self):
        def fits(version, abi=0):
            try:
                _library.check_version("lib.so", version, abi)
            except ImportError:
                return False
            return True

        with unittest.mock.patch.object(_c, "VERSION", (0, 2, 5)):
            for version in "0.2.5", "0.2.6", "0.10.0", "1.0.0":
                self.assertTrue(fits(version), version)
                self.assertFalse(fits(version, abi=1), version)
            for version in "0.2.4", "0.1.9", "0.2", "", "zero":
                self.assertFalse(fits(version), version)

    @unittest.skipUnless("SHARD_USES_FILE" in os.environ,
                         "the library is not the recorder of tests/sdk/uses")
    def test_a_library_that_says_it_is_another_is_loaded_or_refused(self):
        program = "import shard; print(shard.version())"
        done = self.run_python(program, SHARD_USES_VERSION="0.99.1")
        self.assertEqual((done.stdout, done.stderr), ("0.99.1\n", ""))
        done = self.run_python(program, SHARD_USES_ABI_VERSION="3")
        self.assertRegex(done.stderr, "ImportError: .* with ABI 3")

    def test_no_library_is_an_error_with_the_remedy(self):
        done = self.run_python("import shard", SHARD_LIBRARY="/none.so")
        self.assertRegex(done.stderr, "ImportError: cannot load libshard:"
                         " /none.so.*SHARD_LIBRARY")

    def test_without_numpy_arrays_are_memoryviews(self):
        with local_engine() as engine:
            engine.save(self.folder / "ckpt")
        done = self.run_python(f"""
import sys
sys.modules["numpy"] = None
import shard, array
tensor = shard.open({str(self.folder / 'ckpt')!r})["block1.weight"]
values = tensor.read(0, 3)
print(values.format, values.tolist())
model = shard.Model()
w = model.add_param(0, "w", shard.DType.F32, (2, 2))
with shard.Comm("local:") as comm:
    plan = shard.Plan(model, world_size=1, optimizer="sgd?lr=1")
    with shard.Engine(plan, comm) as engine:
        engine.set_param(w, array.array("f", [1, 2, 3, 4]))
        engine.broadcast_params()
        engine.grad(w)[1, 1] = 1
        engine.step()
        print(engine.param(w).tolist())
        with engine.summon() as full:
            print(full.param(w).tolist())
try:
    tensor[0]
except TypeError as error:
    print(error)
""")
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.stdout.splitlines(), [
            "f [1.0, 1.015625, 1.03125]", "[[1.0, 2.0], [3.0, 3.0]]",
            "[[1.0, 2.0], [3.0, 3.0]]",
            "indexing a tensor needs numpy: install it, or use read()"])


if __name__ == "__main__":
    unittest.main()
