# SPDX-License-Identifier: Apache-2.0
"""Threads that share handles, and signals."""

import gc
import os
import signal
import sys
import threading
import time
import traceback
import unittest
import uuid
import weakref

import numpy

import shard
from sdk_testing import (SdkTest, blocks_model, first_values, local_engine,
                         run_ranks)
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

    def test_a_callback_may_drop_the_last_reference_to_its_engine(self):
        ready = threading.Event()

        def progress(done, total):
            ready.wait(10)
            held.clear()

        model, _ = blocks_model()
        with shard.Comm("local:") as comm:
            held = [shard.Engine(shard.Plan(model, world_size=1), comm)]
            held[0].broadcast_params()
            freed = weakref.ref(held[0]._handle)
            save = held[0].save(self.folder / "ckpt", background=True,
                                progress=progress, timeout=5)
            ready.set()
            save.wait()
            self.assertIsNone(freed())
        self.assertEqual(len(shard.open(self.folder / "ckpt")), 6)

    def test_a_log_may_drop_the_save_that_logs_after_the_engine_has_gone(self):
        # A stale folder that is too deep to be deleted is a warning of the
        # save's thread.
        stale = self.folder / "step-000009.tmp-0123456789abcdef"
        (stale / "/".join("d" * 20)).mkdir(parents=True)
        entered, gone = threading.Event(), threading.Event()
        dropped = threading.Event()
        threads = set(os.listdir("/proc/self/task"))

        def log(level, message):
            if "folders deep" in message:
                entered.set()
                gone.wait(30)
                held.clear()
                dropped.set()

        model, _ = blocks_model()
        with shard.Comm("local:", log=log) as comm:
            engine = shard.Engine(shard.Plan(model, world_size=1), comm)
            engine.broadcast_params()
            held = [engine.save(self.folder, background=True, timeout=1)]
            freed = weakref.ref(held[0]._handle)
            entered.wait(30)
            del engine  # Waits until the save's timeout.
            gone.set()
            self.assertTrue(dropped.wait(30))
        # The save's thread ends, and so does the one that freed the handle.
        end = time.monotonic() + 10
        while set(os.listdir("/proc/self/task")) > threads:
            self.assertLess(time.monotonic(), end)
        self.assertIsNone(freed())

    def test_a_state_dict_is_filled_and_read_by_two_threads(self):
        state = shard.StateDict()

        def fill():
            for i in range(300):
                state.add(f"{i}", shard.DType.F32, numpy.full(4, i))
                state.add_number(f"state.{i}.step", i)

        thread = threading.Thread(target=fill)
        thread.start()
        while len(state) < 300:
            for key, value in state.items():
                self.assertEqual(value.data[0], int(key))
            self.assertLessEqual(len(state.numbers), 300)
        thread.join()

    def test_a_progress_function_cannot_use_what_is_loaded(self):
        errors = []
        with local_engine() as engine, engine.state_dict(copy=True) as state:
            def progress(done, total):
                try:
                    len(state)
                except shard.Error as error:
                    errors.append(error.code)

            engine.load_state_dict(state, progress=progress)
            self.assertEqual(set(errors), {Code.FAILED_PRECONDITION})

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

    def test_a_signal_at_any_place_leaves_no_deadlock(self):
        def live(delay):
            with shard.Comm("local:") as comm:
                model, _ = blocks_model()
                plan = shard.Plan(model, world_size=1)
                with shard.Engine(plan, comm) as engine:
                    signal.setitimer(signal.ITIMER_REAL, delay)
                    while True:
                        engine.completed_steps()

        def stop(*_):
            raise InterruptedError

        before = signal.signal(signal.SIGALRM, stop)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        for i in range(100):
            with self.assertRaises(InterruptedError):
                live(0.001 + i * 1e-5)

    def test_a_save_in_the_background_keeps_its_function(self):
        root = self.folder / "ckpt"
        main = threading.main_thread().ident
        entering, handled = threading.Event(), threading.Event()
        interrupts, calls = [], []

        def first(done, total):
            if interrupts:
                return
            entering.wait(10)
            # The main thread is in the call, which waits for this save.
            end = time.monotonic() + 10
            while (sys._current_frames()[main].f_code.co_name != "call"
                   and time.monotonic() < end):
                pass
            interrupts.append(interrupt())

        def second(done, total):
            handled.wait(10)
            calls.append(done)

        with local_engine() as engine:
            engine.save(root, background=True, progress=first).close()
            with self.assertRaises(KeyboardInterrupt):
                entering.set()
                engine.save(root, background=True, overwrite=True,
                            progress=second)
            del second
            gc.collect()
            handled.set()
            engine.save(root, overwrite=True)
        self.assertTrue(calls)

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

    def test_two_interrupts_end_a_save_whose_communicator_is_closed(self):
        interrupts = []

        def count(*_):
            interrupts.append(None)
            raise KeyboardInterrupt

        def progress(done, total):
            end = time.monotonic() + 10
            for number in (1, 2):
                interrupt()
                while len(interrupts) < number and time.monotonic() < end:
                    time.sleep(0.001)

        before = signal.signal(signal.SIGINT, count)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        with local_engine() as engine:
            engine.comm.close()
            with self.assertRaises(KeyboardInterrupt):
                engine.save(self.folder / "ckpt", progress=progress)
            self.assertEqual(len(interrupts), 2)


if __name__ == "__main__":
    unittest.main()
