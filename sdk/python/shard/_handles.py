# SPDX-License-Identifier: Apache-2.0
"""Handles of the C library, and the order of calls on them.

A Handle owns a C pointer and frees it with its last reference: that of the
object which users close, of a call that runs, or of an array that lies in the
handle's memory. So no call and no array ever meets freed memory.

A Guard serialises the calls on a handle; a communicator and the engines on it
have one together. A second thread waits. A callback that calls the handle which
runs it gets an error, for it would wait for itself."""

import _thread
import collections
import os
import threading
import weakref

from ._errors import Error, failed_precondition

_callbacks = threading.local()
_guards = weakref.WeakSet()


class Guard:
    """One call at a time. `raised` is what a callback raised that belongs to no
    single call, such as a log function: the call that runs, or the next one,
    raises it."""

    def __init__(self, noun):
        self._noun = noun
        self._orphans = collections.deque()
        self.raised = None
        self.renew()
        _guards.add(self)

    def renew(self):
        # Knows its owner at any place where a signal handler may raise, such as
        # KeyboardInterrupt: a later call is then an error and no deadlock.
        self._lock = threading.RLock()

    def __enter__(self):
        if (self._lock._is_owned()
                or self in getattr(_callbacks, "guards", ())):
            raise failed_precondition(
                f"a callback or signal handler calls the {self._noun} that is"
                " in the call which runs it (remember what is to be done, and"
                " do it after that call), or a signal handler raised while a"
                f" call ended (make another {self._noun})")
        self._lock.acquire()

    def __exit__(self, kind, error, trace):
        self._unlock()
        if self.raised is not None:
            raised, self.raised = self.raised, None
            raise raised from error

    def _unlock(self):
        while True:
            while self._orphans:
                free, pointer, _ = self._orphans.popleft()
                free(pointer)
            self._lock.release()
            # An orphan that came in between found the lock taken.
            if not self._orphans or not self._lock.acquire(blocking=False):
                return

    def free(self, free, pointer, keep):
        """Frees a handle: now, or after the call that runs. Never waits, for
        the garbage collector calls this function at any place. `keep` lives
        until the handle is freed."""
        self._orphans.append((free, pointer, keep))
        if self._lock._is_owned():
            return
        if self in getattr(_callbacks, "guards", ()):
            # Freeing waits for the callback, which runs on this thread.
            _thread.start_new_thread(self._free_orphans, ())
        elif self._lock.acquire(blocking=False):
            self._unlock()

    def _free_orphans(self):
        self._lock.acquire()
        self._unlock()


class Unique:
    """An object of which there is one: a copy would free its handle again."""

    def __reduce_ex__(self, protocol):
        raise TypeError(f"a shard.{type(self).__name__} cannot be copied or"
                        " sent to another process: open or make another one")


class Handle(Unique):
    """Owns a C handle. C functions take it as it is."""

    def __init__(self, pointer, free, guard=None):
        self._as_parameter_ = pointer
        self._free = free
        self._guard = guard
        self.keep = {}  # Objects that must live as long as the handle.

    def __del__(self):
        if self._guard is None:
            self._free(self._as_parameter_)
        else:
            self._guard.free(self._free, self._as_parameter_, self.keep)


class Closable(Unique):
    """An object with a handle. It can be closed, and is a context manager that
    closes it."""

    _noun = ""
    _handle = None
    _guard = None

    @property
    def _c(self):
        handle = self._handle
        if handle is None:
            raise failed_precondition(f"this {self._noun} is closed")
        return handle

    @property
    def closed(self):
        return self._handle is None

    def close(self):
        """Gives the handle back; memory that arrays still show stays until they
        are gone. Closing again does nothing."""
        if self._guard is None:
            self._handle = None
        elif self._handle is not None:
            with self._guard:
                self._handle = None

    def __enter__(self):
        self._c
        return self

    def __exit__(self, kind, error, trace):
        try:
            self.close()
        except Error:
            if error is None:
                raise

    def __repr__(self):
        state = "closed" if self.closed else "open"
        return f"<shard.{type(self).__name__}, {state}>"


class Callback:
    """A Python function as the library calls it. What the function raises is
    kept: `with callback:` around the call that runs the function raises it
    there. A callback of None is NULL.

    `take` makes the function's arguments from those of C, the last of which is
    the user_data; `give` makes the result for C, which is `failed` when the
    function raises. `guards` refuse calls on their handles from within
    the function."""

    def __init__(self, kind, function, *, guards=(),
                 take=lambda *arguments: arguments[:-1],
                 give=lambda result: 0, failed=1):
        self.raised = None
        if function is None:
            self.c = kind()
            return
        if not callable(function):
            raise TypeError(f"a callback must be callable, not {function!r}")

        def call(*arguments):
            if self.raised is not None:
                return failed
            refusing = _callbacks.__dict__.setdefault("guards", [])
            outer = len(refusing)
            refusing.extend(guards)
            try:
                return give(function(*take(*arguments)))
            except BaseException as error:
                self.failed(error)
                return failed
            finally:
                del refusing[outer:]

        self.c = kind(call)

    def failed(self, error):
        self.raised = error

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if self.raised is not None:
            raise self.raised from error


def _after_fork():
    """Calls of other threads do not run in the child: their locks are free."""
    for guard in list(_guards):
        guard.renew()


os.register_at_fork(after_in_child=_after_fork)
