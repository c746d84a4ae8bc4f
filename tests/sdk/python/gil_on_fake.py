# SPDX-License-Identifier: Apache-2.0
"""Log functions of Python need the interpreter's lock (GIL), which a call of
another library may hold while it waits for a GPU. The GPU waits for an abort,
and so the abort must wait for no log function. Runs with the fakes of CUDA's
driver and of NCCL (gpu_test.sh), each rank in a process."""

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


def check(result):
    assert result == 0, result


class Rank:
    """An engine of stage 3 on a GPU of the rank's own, whose parameters are
    gathered for the stream of the program."""

    def __init__(self, url, rank):
        self.rank = rank
        self.gpu = Gpu(rank)
        self.stream = ctypes.c_void_p()
        check(self.gpu.driver.cuStreamCreate(ctypes.byref(self.stream), 1))
        self.ends = []
        self.logging, self.may_log = threading.Event(), threading.Event()
        self.comm = shard.Comm(url, rank=rank, world_size=2, timeout=20,
                               log=self.log, log_level=shard.LogLevel.INFO)
        model, weights = blocks_model()
        plan = shard.Plan(model, world_size=2, stage=3, prefetch=0,
                          wrap="class?names=Block")
        self.engine = shard.Engine(plan, self.comm, timeout=TIMEOUT,
                                   device=f"cuda:{rank}?collectives=nccl")
        self.engine.set_stream(self.stream.value)
        for weight in weights if rank == 0 else ():
            self.engine.set_param(weight, numpy.ones((8, 8), numpy.float32))
        self.engine.broadcast_params()
        self.engine.synchronize()

    def log(self, level, message):
        if message.startswith(END):
            self.logging.set()
            self.may_log.wait(20)
            self.ends.append(message)

    def gather(self):
        """Acquires a unit whose parameters do not come. Returns the time."""
        self.comm.barrier()
        if self.rank == 1:
            ctypes.CDLL("libnccl.so.2").shard_fake_nccl_stick_at(
                ctypes.c_uint64(1))
        self.comm.barrier()
        begin = time.monotonic()
        self.engine.unit_acquire(1, shard.Pass.FORWARD)
        return begin

    def wait(self, library):
        """Waits for the GPU in a call of the driver."""
        check(library("libcuda.so.1").cuStreamSynchronize(self.stream))

    def expect_error(self):
        try:
            self.engine.synchronize()
        except shard.Error as error:
            assert error.code == shard.Code.DEADLINE_EXCEEDED, error
            assert "gather parameters of unit 1" in str(error), error
        else:
            raise AssertionError("no error")

    def close(self):
        self.engine.close()
        self.comm.close()
        check(self.gpu.driver.cuStreamDestroy_v2(self.stream))
        self.gpu.close()
        assert len(self.ends) == 1, self.ends


def hold(rank):
    """The program holds the lock until the GPU goes on, and another thread is
    in the engine."""
    rank.may_log.set()
    entered, seconds = threading.Event(), []

    def synchronize():
        entered.set()
        rank.expect_error()
        seconds.append(time.monotonic() - begin)

    begin = rank.gather()
    thread = threading.Thread(target=synchronize)
    thread.start()
    entered.wait(20)
    rank.wait(ctypes.PyDLL)
    seconds.append(time.monotonic() - begin)
    thread.join()
    assert len(seconds) == 2 and max(seconds) < TIMEOUT + LATE, seconds
    assert min(seconds) > TIMEOUT / 2, seconds


def hang(rank):
    """The log function does not return before the GPU goes on."""
    begin = rank.gather()
    rank.wait(ctypes.CDLL)
    seconds = time.monotonic() - begin
    assert TIMEOUT / 2 < seconds < TIMEOUT + LATE, seconds
    # The abort is behind it, and the program has called nothing since.
    assert rank.logging.wait(20)
    assert not rank.ends, rank.ends
    rank.expect_error()
    assert not rank.ends, rank.ends
    rank.may_log.set()


class LockTest(SdkTest):
    def run_ranks(self, name):
        url = f"shm:{uuid.uuid4()}"
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
