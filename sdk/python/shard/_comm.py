# SPDX-License-Identifier: Apache-2.0
"""Communicators: the ranks of a run, and how they meet."""

import ctypes

from . import _c, _calls
from ._arguments import decode
from ._buffers import Buffer
from ._errors import member
from ._handles import Callback, Closable, Guard, Handle
from ._interrupts import interruptible
from ._library import lib


class _Log(Callback):
    """A log function. What it raises is raised by the call on the communicator
    or its engines that runs, or by the next one."""

    def __init__(self, function, guard):
        super().__init__(
            _c.shard_log_fn, function, guards=[guard],
            take=lambda level, message, _: (member(_c.LogLevel, level),
                                            decode(message)))
        self._guard = guard

    def failed(self, error):
        self._guard.raised = error


def _leave(error):
    """Ends the wait for other ranks: nothing can be told to abort yet. Whether
    they come or not, the thread that waits frees what it gets."""
    raise error


class Comm(Closable):
    """The ranks of a run. Comm(url) meets the other ranks:

        with shard.Comm("env:") as comm:
            ...

    At the end of the block the ranks meet once more (shutdown); when the block
    raises, the others get POISONED with the reason (abort) and do not wait.

    url: "env:", "local:", "threads:N?name=x", "shm:NAME", or between hosts
    "tcp://HOST:PORT?job=x&secret_file=PATH". Options: rank, world_size, timeout
    (seconds), log (a function of a LogLevel and a message, called from any
    thread), log_level, trace, metrics and dump (paths).

    Calls of several threads on a communicator and its engines run one after the
    other; abort, the ranks, counters and describe do not wait. COLLECTIVE."""

    _noun = "communicator"

    def __init__(self, url="env:", *, log=None, **options):
        self._guard = Guard("communicator or engine")
        options = _calls.fill(_c.shard_comm_options, options)
        logger = _Log(log, self._guard)
        options.log = logger.c
        # The engines keep the guard and its log function too.
        self._guard.log = logger

        def call():
            with self._guard:
                handle = Handle(
                    _calls.pointer(lib.shard_comm_open, url,
                                   ctypes.byref(options)),
                    lib.shard_comm_free, self._guard)
                handle.keep["log"] = logger
                return handle

        self._handle = interruptible(call, _leave)

    def __exit__(self, kind, error, trace):
        if self.closed:
            return
        try:
            if error is None:
                self.shutdown()
            else:
                reason = f"rank {self.rank}: {kind.__name__}: {error}"
                self.abort(reason.replace("\0", "").encode("utf-8", "replace"))
        finally:
            super().__exit__(kind, error, trace)

    @property
    def rank(self):
        return lib.shard_comm_rank(self._c)

    @property
    def world_size(self):
        return lib.shard_comm_world_size(self._c)

    @property
    def local_rank(self):
        """This rank's number among those of its host."""
        return lib.shard_comm_local_rank(self._c)

    @property
    def local_world_size(self):
        return lib.shard_comm_local_world_size(self._c)

    def describe(self):
        """Returns a line for people: transport, rank, world size."""
        return _calls.text(lib.shard_comm_describe, self._c)

    def counter(self, event):
        """Returns what an event of this rank, such as "step" or
        "reduce_scatter", has added up to: calls, errors, bytes, seconds."""
        return _calls.fetch(_c.shard_counter, lib.shard_comm_counter, self._c,
                            event)

    def metrics(self):
        """Returns all counters in the text format of Prometheus."""
        return _calls.copied_text(lib.shard_comm_metrics, self._c)

    def dump(self):
        """Returns the last 1,024 collectives of this rank as JSON, which
        `shardctl triage` reads."""
        return _calls.copied_text(lib.shard_comm_dump, self._c)

    def barrier(self, timeout=0):
        """Waits until every rank has called it. COLLECTIVE."""
        self._wait(lib.shard_comm_barrier, timeout)

    def sum(self, values, timeout=0):
        """Returns the sums of numbers over the ranks, the same bits on every
        rank: of a number, or a list of them. COLLECTIVE."""
        try:
            numbers = [float(value) for value in values]
            single = False
        except TypeError:
            numbers, single = [float(values)], True
        array = (ctypes.c_double * len(numbers))(*numbers)
        with self._guard:
            lib.shard_comm_sum(self._c, array, len(array), timeout)
        return array[0] if single else list(array)

    def check_device(self, device, timeout=0):
        """Checks that GPUs move tensors between the ranks by NCCL. `device` is
        this rank's own GPU, such as "cuda:0". An error of NCCL ends the
        communicator. COLLECTIVE."""
        with self._guard:
            lib.shard_comm_check_device(self._c, device, timeout)

    def broadcast(self, data, root=0, timeout=0):
        """Replaces the bytes of `data`, a writable buffer such as a bytearray
        or an array, by those of rank `root`. The same size on every rank.
        COLLECTIVE."""
        buffer = Buffer(data, writable=True)
        with self._guard:
            lib.shard_comm_broadcast(self._c, buffer.address, buffer.nbytes,
                                     root, timeout)

    def abort(self, reason):
        """Ends the group from one side: the other ranks get POISONED with the
        reason. Any thread, never waits."""
        lib.shard_comm_abort(self._c, reason)

    def shutdown(self, timeout=0):
        """Ends the group with a last barrier, so that no rank takes another's
        leaving for a death. COLLECTIVE."""
        self._wait(lib.shard_comm_shutdown, timeout)

    def _wait(self, function, *arguments):
        def call():
            with self._guard:
                function(self._c, *arguments)

        interruptible(call, self._interrupt)

    def _interrupt(self, error):
        if not self.closed:
            self.abort(f"rank {self.rank} was interrupted")
