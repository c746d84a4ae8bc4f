# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and safetensors without an engine."""

import collections
import collections.abc
import ctypes

from . import _c, _calls
from ._arguments import decode
from ._engine_state import run_with_progress
from ._errors import Code, Error, MissingKey, member
from ._handles import Closable, Handle
from ._library import lib
from ._tensor import Tensor

BlobInfo = collections.namedtuple("BlobInfo", "name rule rank", module="shard")
FileInfo = collections.namedtuple("FileInfo", "name bytes", module="shard")


class Checkpoint(Closable, collections.abc.Mapping):
    """A checkpoint, a safetensors file, or the several of a
    model.safetensors.index.json: a mapping from keys to tensors, which are read
    when they are indexed.

        with shard.open("ckpt") as checkpoint:
            for key, tensor in checkpoint.items():
                print(key, tensor.dtype, tensor.shape)
            rows = checkpoint["layer.weight"][:10]

    Immutable, and any thread. Files stay open, so that a checkpoint which is
    replaced is read as it was."""

    _noun = "checkpoint"

    def __init__(self, path):
        self._handle = Handle(_calls.pointer(lib.shard_checkpoint_open, path),
                              lib.shard_checkpoint_free)
        self._num_tensors = self.info().num_tensors

    # ---- Tensors by key ------------------------------------------------------

    def __getitem__(self, key):
        return Tensor(self._c, self.find(key))

    def __contains__(self, key):
        try:
            self.find(key)
        except MissingKey:
            return False
        return True

    def __iter__(self):
        for tensor in range(self._num_tensors):
            yield _calls.text(lib.shard_checkpoint_tensor_key, self._c, tensor)

    def __len__(self):
        return self._num_tensors

    def find(self, key):
        """Returns the number of a key's tensor. MissingKey when there is none.
        """
        try:
            return _calls.value(ctypes.c_int64, lib.shard_checkpoint_find,
                                self._c, key)
        except Error as error:
            if error.code != Code.NOT_FOUND:
                raise
            raise MissingKey(error.code, error.message) from None

    # ---- What else is in it --------------------------------------------------

    def info(self):
        """Returns the format, the step and the counts: CheckpointInfo."""
        return _calls.fetch(_c.shard_checkpoint_info,
                            lib.shard_checkpoint_get_info, self._c)

    @property
    def path(self):
        """The folder or file that was opened."""
        return _calls.text(lib.shard_checkpoint_path, self._c)

    def file(self, file):
        """Returns a data file's name and size: FileInfo."""
        name, size = ctypes.c_char_p(), ctypes.c_uint64()
        lib.shard_checkpoint_file(self._c, file, ctypes.byref(name),
                                  ctypes.byref(size))
        return FileInfo(decode(name.value), size.value)

    def group(self, group):
        """Returns the optimizer of a param group: "adamw?lr=0.001&..."."""
        return _calls.text(lib.shard_checkpoint_group, self._c, group)

    def groups(self):
        """Returns the optimizers of all param groups."""
        return [self.group(group) for group in range(self.info().num_groups)]

    def scalar(self, scalar):
        """Returns the name and value of a number, by its place."""
        name, value = ctypes.c_char_p(), ctypes.c_double()
        lib.shard_checkpoint_scalar(self._c, scalar, ctypes.byref(name),
                                    ctypes.byref(value))
        return decode(name.value), value.value

    def scalars(self):
        """Returns the numbers that belong to no tensor, as a dict:
        "loss_scale.scale"."""
        return dict(self.scalar(i) for i in range(self.info().num_scalars))

    def blob_info(self, blob):
        """Returns a blob's name, BlobRule, and the rank that saved it."""
        name = ctypes.c_char_p()
        rule, rank = ctypes.c_int32(), ctypes.c_int32()
        lib.shard_checkpoint_blob_info(self._c, blob, ctypes.byref(name),
                                       ctypes.byref(rule), ctypes.byref(rank))
        return BlobInfo(decode(name.value),
                        member(_c.BlobRule, rule.value), rank.value)

    def blob(self, blob):
        """Returns a blob's bytes, by its place."""
        return _calls.copied(lib.shard_checkpoint_blob, self._c, blob,
                             closing=0)

    def blobs(self):
        """Returns a dict from BlobInfo to bytes."""
        return {self.blob_info(i): self.blob(i)
                for i in range(self.info().num_blobs)}

    # ---- The whole -----------------------------------------------------------

    def verify(self, progress=None, **options):
        """Reads everything and compares it with its checksums. The detail of
        CORRUPT lists all problems. `progress` is a function of bytes done and
        in all, called from other threads; when it raises, the call ends and
        raises the same. Options are the fields of shard_verify_options:
        threads."""
        checkpoint = self._c
        options = _calls.fill(_c.shard_verify_options, options)
        run_with_progress(progress, options, lambda: lib.shard_checkpoint_verify(
            checkpoint, ctypes.byref(options)))

    def convert(self, root, progress=None, **options):
        """Writes a checkpoint into `root`: with another number of files
        (world_size; 1 merges), other types (dtype), or from safetensors.
        Options are the fields of shard_convert_options."""
        self._write(lib.shard_checkpoint_convert, root, progress, options)

    def export(self, path, progress=None, **options):
        """Writes a safetensors file, or with max_shard_bytes several and an
        index. Options are the fields of shard_convert_options: content,
        overwrite, threads, dtype, expand_aliases, max_shard_bytes."""
        self._write(lib.shard_checkpoint_export, path, progress, options)

    def _write(self, function, path, progress, options):
        checkpoint = self._c
        options = _calls.fill(_c.shard_convert_options, options)
        run_with_progress(progress, options, lambda: function(
            checkpoint, path, ctypes.byref(options)))

    def __repr__(self):
        if self.closed:
            return Closable.__repr__(self)
        return f"<shard.Checkpoint {self.path!r}, {len(self)} tensors>"

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def open(path):
    """Opens a checkpoint, a folder of checkpoints (its last one), or
    safetensors."""
    return Checkpoint(path)
