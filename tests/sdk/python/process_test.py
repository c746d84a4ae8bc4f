# SPDX-License-Identifier: Apache-2.0
"""Threads, signals, forks and ends of processes."""

import os
import signal
import subprocess
import sys
import threading
import unittest
import uuid

import shard
from sdk_testing import SdkTest, local_engine, run_ranks
from shard import Code


class ThreadsTest(SdkTest):
    def test_two_threads_on_one_engine_take_turns(self):
        with local_engine() as engine:
            def work():
                for _ in range(200):
                    engine.step()
                    engine.hyper(0, "lr")

            threads = [threading.Thread(target=work) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(engine.completed_steps(), 400)

    def test_a_callback_that_calls_its_own_handle_gets_an_error(self):
        errors = []

        def progress(done, total):
            try:
                engine.completed_steps()
            except shard.Error as error:
                errors.append(error)

        with local_engine() as engine:
            engine.save(self.folder / "ckpt", progress=progress)
            with self.raises_code(Code.FAILED_PRECONDITION, "callback"):
                engine.gather_state_dict(lambda *_: engine.completed_steps())
        self.assertEqual(errors[0].code, Code.FAILED_PRECONDITION)

    def test_abort_ends_the_wait_of_another_thread(self):
        aborted = threading.Event()

        def work(comm):
            if comm.rank == 0:
                timer = threading.Timer(0, comm.abort, ["enough"])
                timer.start()
                with self.raises_code(Code.POISONED, "enough"):
                    comm.barrier()
                aborted.set()
                timer.join()
                raise InterruptedError
            aborted.wait(20)
            with self.raises_code(Code.POISONED):
                comm.barrier()
            raise InterruptedError

        with self.assertRaises(InterruptedError):
            run_ranks(2, work)

    def test_closing_while_another_thread_works_waits(self):
        with local_engine() as engine:
            began = threading.Event()
            ended = []

            def work():
                try:
                    for _ in range(10000):
                        engine.step()
                        began.set()
                except shard.Error as error:
                    ended.append(error.code)

            thread = threading.Thread(target=work)
            thread.start()
            began.wait(20)
            engine.close()
            thread.join()
            self.assertEqual(ended, [Code.FAILED_PRECONDITION])


def interrupt():
    """What Ctrl-C does."""
    os.kill(os.getpid(), signal.SIGINT)


class InterruptTest(SdkTest):
    """On the main thread, which runs the tests."""

    def test_a_wait_for_other_ranks_ends_on_all(self):
        url = f"threads:2?name={uuid.uuid4()}"
        interrupted = threading.Event()
        got = []

        def other():
            comm = shard.Comm(url, rank=1, world_size=2, timeout=20)
            comm.barrier()
            interrupt()
            if not interrupted.wait(10):
                got.append("the main thread still waits")
            try:
                comm.barrier()
            except shard.Error as error:
                got.append(error.code)

        thread = threading.Thread(target=other)
        thread.start()
        with self.assertRaises(KeyboardInterrupt):
            with shard.Comm(url, rank=0, world_size=2, timeout=20) as comm:
                comm.barrier()
                comm.barrier()
        interrupted.set()
        thread.join()
        self.assertEqual(got, [Code.POISONED])

    def test_the_wait_for_ranks_that_never_come_ends(self):
        timer = threading.Timer(0.05, interrupt)
        with self.assertRaises(KeyboardInterrupt):
            timer.start()
            shard.Comm(f"threads:2?name={uuid.uuid4()}", rank=0, world_size=2)
        timer.join()

    def test_a_save_is_cancelled_and_another_one_works(self):
        with local_engine() as engine:
            root = self.folder / "ckpt"
            with self.assertRaises(KeyboardInterrupt):
                engine.save(root, progress=lambda *_: interrupt())
            engine.save(root, overwrite=True)
            with shard.open(root) as checkpoint:
                with self.assertRaises(KeyboardInterrupt):
                    checkpoint.verify(progress=lambda *_: interrupt())
                checkpoint.verify()


class ProcessTest(SdkTest):
    def run_python(self, code, **environment):
        return subprocess.run(
            [sys.executable, "-c", code], text=True, capture_output=True,
            env={**os.environ, **environment}, timeout=50)

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
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    engine.close()
                    with local_engine() as own:
                        own.step()
                    code = 0
                finally:
                    os._exit(code)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]),
                             0)
            engine.step()

    def test_an_older_library_is_refused_by_name(self):
        library = os.environ["SHARD_OLD_LIBRARY"]
        done = self.run_python("import shard", SHARD_LIBRARY=library)
        self.assertRegex(done.stderr, r"ImportError: the package shard 0\.2\.0"
                         r" needs libshard 0\.2\.0 .*is 0\.1\.9 with ABI 0")

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
w = model.add_param(0, "w", shard.Dtype.F32, (2, 2))
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
