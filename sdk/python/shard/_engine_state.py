# SPDX-License-Identifier: Apache-2.0
"""An engine's training state: checkpoints, blobs, state dicts."""

import atexit
import contextlib
import ctypes
import json
import time
import weakref

from . import _c, _calls
from ._arguments import decode, instance
from ._buffers import Buffer
from ._errors import Code, Error
from ._handles import Callback, Closable, Handle
from ._interrupts import SLICE, interruptible
from ._library import lib
from ._state_dict import StateDict, stale_state
from ._values import copy_of


def progress_callback(function, guards=()):
    """Returns a function of bytes done and in all as the library calls it. The
    function ends the operation by raising."""
    return Callback(_c.shard_progress_fn, function, guards=guards)


def run_with_progress(function, options, call, guards=(),
                      abort=lambda: None):
    """Returns call(), which uses the options and calls the progress function,
    and has the guards in the meantime. Ctrl-C cancels the call; a second one
    calls abort()."""
    if function is None:
        function = _ignore
    progress = progress_callback(function, guards)
    options.progress = progress.c

    def locked_call():
        with progress, contextlib.ExitStack() as locks:
            for guard in guards:
                locks.enter_context(guard)
            return call()

    def cancel(error):
        if progress.raised is not None:
            abort()
        progress.failed(error)

    return interruptible(locked_call, cancel)


def _ignore(done, total):
    pass


class Save(Closable):
    """A save that runs in the background. At the end of a `with` block it is
    waited for. Any thread."""

    _noun = "save"

    def __init__(self, pointer, guard, progress):
        # With the guard, for where the engine has gone the free function waits
        # for the save, and so for a callback in which the handle goes.
        self._handle = Handle(pointer, lib.shard_save_free, guard)
        self._progress = progress

    @property
    def done(self):
        """Whether the save has ended, well or not."""
        return bool(lib.shard_save_done(self._c))

    def wait(self, timeout=0):
        """Waits for the save, and raises its error, in every call."""
        save = self._c
        end = time.monotonic() + timeout if timeout > 0 else None
        with self._progress:
            while True:
                left = SLICE if end is None else min(
                    SLICE, end - time.monotonic())
                try:
                    # 0 and less would wait for ever.
                    lib.shard_save_wait(save, max(left, 1e-6))
                    return
                except Error as error:
                    if (error.code != Code.DEADLINE_EXCEEDED
                            or lib.shard_save_done(save) or left < SLICE):
                        raise

    def __exit__(self, kind, error, trace):
        if error is None and not self.closed:
            self.wait()
        self.close()


_saving = weakref.WeakSet()  # Handles of engines with a save in the background.


@atexit.register
def _finish_saves():
    """Waits for saves that still go on: their threads must not call functions
    of an interpreter that has ended."""
    for engine in list(_saving):
        try:
            lib.shard_save_wait(engine.keep["save"], 0)
        except Error:
            pass  # Nobody asked for the result.


class EngineState(Closable):
    """The part of Engine that saves and loads."""

    def save(self, root, *, background=False, progress=None, **options):
        """Saves the training state as checkpoint `root`/step-NNNNNN. Options
        are the fields of shard_save_options (checkpoint.h): timeout, content,
        ignore_frozen, submodules, strip_prefix, overwrite, threads, keep_last,
        keep_every. `progress` is a function of bytes done and in all, called
        from other threads; when it raises, the save is cancelled and raises the
        same. COLLECTIVE.

        With `background`, returns a Save while the state is being written, and
        training may go on."""
        options = _calls.fill(_c.shard_save_options, options)
        if not background:
            self._run(progress, options, lambda: lib.shard_checkpoint_save(
                self._c, root, ctypes.byref(options), None))
            return None
        progress = progress_callback(progress, [self._guard])
        options.progress = progress.c
        with self._guard:
            # The library calls the function until the next save begins, or the
            # engine is freed. A signal handler may raise right after the call.
            running = self._c.keep.setdefault("progress", [])
            running.append(progress)
            save = Save(
                _calls.pointer(lib.shard_checkpoint_save, self._c, root,
                               ctypes.byref(options)), self._guard, progress)
            del running[:-1]
            self._c.keep["save"] = save._c
            _saving.add(self._c)
            return save

    def load(self, path, *, progress=None, **options):
        """Loads a checkpoint, of whatever world size, or safetensors. Options
        are the fields of shard_load_options: timeout, content, ignore_frozen,
        submodules, strip_prefix, allow_mismatch, convert, strip_leading_module,
        skip_verify, threads. Returns a LoadReport. COLLECTIVE."""
        options = _calls.fill(_c.shard_load_options, options)
        return self._run(progress, options, lambda: _calls.fetch(
            _c.shard_load_report, lib.shard_checkpoint_load, self._c, path,
            ctypes.byref(options)))

    def _run(self, progress, options, call, *guards):
        """Returns call(). Ctrl-C cancels the call on all ranks as a progress
        function that raises does; a second one aborts the communicator, where
        the call waits for a rank that does not come."""
        def abort():
            if not self._comm.closed:
                self._comm.abort("interrupted")

        return run_with_progress(progress, options, call,
                                 [*guards, self._guard], abort)

    def last_load_report(self):
        """Returns the missing and unexpected keys of the last load as a dict of
        lists."""
        with self._guard:
            return json.loads(_calls.copied_text(
                lib.shard_engine_last_load_report_json, self._c))

    # ---- Blobs ---------------------------------------------------------------

    def set_blob(self, name, rule, data):
        """Sets bytes that are saved with every checkpoint, by a BlobRule."""
        data = Buffer(data)
        with self._guard:
            lib.shard_engine_set_blob(self._c, name, rule, data.address,
                                      data.nbytes)

    def blob(self, name):
        """Returns the bytes of a blob that was set or loaded."""
        data, nbytes = ctypes.c_void_p(), ctypes.c_size_t()
        with self._guard:
            lib.shard_engine_blob(self._c, name, ctypes.byref(data),
                                  ctypes.byref(nbytes))
            return ctypes.string_at(data, nbytes.value) if nbytes.value else b""

    # ---- State dicts ---------------------------------------------------------

    def state_dict(self, **options):
        """Returns this rank's part of the state: a StateDict. Options are the
        fields of shard_state_dict_options: content, ignore_frozen, submodules,
        strip_prefix, timeout, copy. Without `copy`, its arrays show the
        engine's memory."""
        options = _calls.fill(_c.shard_state_dict_options, options)
        with self._guard:
            state = StateDict._of(
                _calls.pointer(lib.shard_state_dict_get, self._c,
                               ctypes.byref(options)))
            if not options.copy:
                state._show(self)
        return state

    def gather_state_dict(self, take=None, rank=-1, **options):
        """Gathers every tensor whole, on one rank or, with -1, on all, one
        after the other. Calls take(key, info, array) with each; the array is
        the caller's own, and None for an alias. Without `take`, returns a dict
        of the arrays. To end the gathering, on all ranks, raise. COLLECTIVE.
        """
        gathered = {}
        if take is None:
            def take(key, info, array):
                gathered[key] = array
        options = _calls.fill(_c.shard_state_dict_options, options)

        def arguments(key, info, data, _):
            info = _calls.as_result(info.contents)
            array = None
            if info.alias_of < 0:
                array = copy_of(data, info.dtype, info.shape, info.bytes)
            return decode(key), info, array

        callback = Callback(_c.shard_tensor_fn, take, guards=[self._guard],
                            take=arguments)
        with callback, self._guard:
            lib.shard_state_dict_gather(self._c, ctypes.byref(options), rank,
                                        callback.c, None)
        return gathered

    def load_state_dict(self, state, *, from_rank0=False, progress=None,
                        **options):
        """Loads a StateDict as load() does a checkpoint. With `from_rank0`,
        rank 0's is loaded and sent; `state` may be None on other ranks.
        COLLECTIVE."""
        options = _calls.fill(_c.shard_load_options, options)
        guards = []
        if state is not None:
            guards = [instance(StateDict, state, "state")._guard]

        def call():
            stale = state is not None and state._stale()
            try:
                # No state dict is an error that all ranks get.
                return _calls.fetch(
                    _c.shard_load_report, lib.shard_state_dict_load, self._c,
                    None if state is None or stale else state._c,
                    ctypes.byref(options), from_rank0)
            except Error as error:
                if not stale:
                    raise
                raise stale_state() from error

        return self._run(progress, options, call, *guards)
