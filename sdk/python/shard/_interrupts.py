# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C during calls that may wait for long.

Python runs signal handlers on the main thread, between its own instructions,
and so not while this thread is in a call of C."""

import _thread
import threading

# Seconds after which a waiting main thread looks for signals: one that comes just
# before the wait does not end it.
SLICE = 0.2


def interruptible(call, cancel):
    """Returns call(), or raises what it raises. On the main thread the call runs
    on another one: when a signal handler raises in the meantime, cancel(error)
    is called, as often as that happens, and is to make the call return."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    outcome = []

    def work():
        try:
            outcome.append((call(), None))
        except BaseException as error:
            outcome.append((None, error))
        finally:
            ended.set()

    ended = threading.Event()
    # A Thread of threading is left in disorder by a signal during start().
    _thread.start_new_thread(work, ())
    interrupt = None
    while not ended.is_set():
        try:
            ended.wait(SLICE)
        except BaseException as error:
            interrupt = error
            cancel(error)
    result, error = outcome.pop()
    try:
        if interrupt is not None:
            raise interrupt from None if error is interrupt else error
        if error is not None:
            raise error
        return result
    finally:
        del interrupt, error  # They refer to this frame, and so to themselves.
