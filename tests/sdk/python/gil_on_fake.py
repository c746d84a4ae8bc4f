# SPDX-License-Identifier: Apache-2.0
"""Log functions of Python need the interpreter's lock (GIL), which a call of
another library may hold while it waits for what an abort ends. So the abort must
wait for no log function. Runs with the fakes of CUDA's driver and of NCCL
(gpu_test.sh), each rank in a process."""

import ctypes
import faulthandler
import subprocess
import sys
import threading
import time
import unittest
import uuid

import numpy

import shard
from gpu_on_fake import Gpu
from sdk_testing import SdkTest, blocks_model

TIMEOUT = 1
# An abort takes milliseconds, and begins at most 20 after the timeout.
LATE = 5
END = "the group ends here: "
GATHER = b"ncclAllGather"


class Rank:
    """An engine of stage 3 on a GPU of the rank's own."""

    def __init__(self, url, rank):
        self.rank = rank
        self.gpu = Gpu(rank)
        self.ends, self.error = [], None
        self.logging, self.may_log = threading.Event(), threading.Event()
        self.waiting = threading.Event()
        self.comm = shard.Comm(url, rank=rank, world_size=2, timeout=20,
                               log=self.log, log_level=shard.LogLevel.INFO)
        # So many, of several pages, that it pays to shard them.
        model, weights = blocks_model(blocks=8, width=64)
        plan = shard.Plan(model, world_size=2, stage=3, prefetch=0,
                          wrap="class?names=Block")
        self.engine = shard.Engine(plan, self.comm, timeout=TIMEOUT,
                                   device=f"cuda:{rank}?collectives=nccl")
        for weight in weights if rank == 0 else ():
            self.engine.set_param(weight, numpy.ones((64, 64), numpy.float32))
        self.engine.broadcast_params()
        self.engine.synchronize()

    def log(self, level, message):
        if message.startswith(END):
            self.logging.set()
            self.may_log.wait(20)
            self.ends.append(message)

    def calls(self, library, symbol, calls=0, seconds=0):
        """Waits for so many calls of NCCL in one call of a library, and returns how
        many there were."""
        wait = library("libnccl.so.2").shard_fake_nccl_await
        wait.restype = ctypes.c_uint64
        wait.argtypes = ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64
        return wait(symbol, calls, int(seconds * 1000))

    def gather(self):
        """Lets another thread acquire a unit whose parameters do not come, and
        wait for them, and returns the thread."""
        gathers = self.calls(ctypes.CDLL, GATHER)
        self.comm.barrier()
        if self.rank == 1:
            ctypes.CDLL("libnccl.so.2").shard_fake_nccl_stick_at(
                ctypes.c_uint64(1))
        self.comm.barrier()
        thread = threading.Thread(target=self.expect_error)
        # It keeps the lock until it is in the call that waits.
        sys.setswitchinterval(10)
        thread.start()
        assert self.calls(ctypes.CDLL, GATHER, gathers + 1, 20) > gathers
        assert self.waiting.wait(20)
        return thread

    def await_abort(self, library):
        """Waits for the abort in one call of a library."""
        begin = time.monotonic()
        assert self.calls(library, b"ncclCommAbort", 1, 30) == 1
        seconds = time.monotonic() - begin
        assert TIMEOUT / 2 < seconds < TIMEOUT + LATE, seconds

    def expect_error(self):
        try:
            self.engine.unit_acquire(1, shard.Pass.FORWARD)
            self.waiting.set()
            self.engine.synchronize()
        except shard.Error as error:
            self.error = error.code, str(error)

    def check_error(self):
        code, text = self.error
        assert code == shard.Code.DEADLINE_EXCEEDED, self.error
        assert "gather parameters of unit 1" in text, self.error

    def close(self):
        self.engine.close()
        self.comm.close()
        self.gpu.close()
        assert len(self.ends) == 1, self.ends


def hold(rank):
    """The program holds the lock until the abort, while another thread is in the
    engine."""
    rank.may_log.set()
    thread = rank.gather()
    rank.await_abort(ctypes.PyDLL)
    thread.join(20)
    rank.check_error()


def hang(rank):
    """The log function does not return before the abort."""
    thread = rank.gather()
    rank.await_abort(ctypes.CDLL)
    assert rank.logging.wait(20)
    assert not rank.ends, rank.ends
    rank.may_log.set()
    thread.join(20)
    rank.check_error()


class LockTest(SdkTest):
    def run_ranks(self, name):
        url = f"shm:{uuid.uuid4()}?direct=0"
        ranks = [subprocess.Popen(
            [sys.executable, "-X", "faulthandler", __file__, name, url,
             str(rank)])
            for rank in range(2)]
        self.assertEqual([rank.wait(60) for rank in ranks], [0, 0])

    def test_an_abort_does_not_wait_for_the_interpreters_lock(self):
        self.run_ranks("hold")

    def test_an_abort_does_not_wait_for_a_log_function(self):
        self.run_ranks("hang")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        # No thread of Python runs where the lock is never given back.
        faulthandler.dump_traceback_later(30, exit=True)
        rank = Rank(sys.argv[2], int(sys.argv[3]))
        {"hold": hold, "hang": hang}[sys.argv[1]](rank)
        rank.close()
    else:
        unittest.main()
