/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints.
 *
 * A checkpoint is a folder that describes elements, not ranks: M ranks can load
 * what N ranks saved, whatever stage, partition, units and dtypes (with
 * `convert`) either has (docs/checkpoints.md; the format:
 * docs/checkpoint-format.md).
 *
 *   ckpt/step-000042/   manifest.shard, data-00000.bin, ...
 *   ckpt/LATEST         "step-000042"
 *
 * A checkpoint exists whole or not at all, whenever a process is killed or the
 * power fails. Keys are torch's: "layer.weight", "state.layer.weight.exp_avg".
 */

#ifndef SHARD_CHECKPOINT_H_
#define SHARD_CHECKPOINT_H_

#include "shard/base.h"
#include "shard/engine.h"

SHARD_BEGIN_DECLS

/* The part of a training state that a call is about. MODEL is parameters and
 * buffers. Frozen. */
typedef int32_t shard_content;
enum shard_content_values {
  SHARD_CONTENT_ALL = 0,
  SHARD_CONTENT_MODEL = 1,
  SHARD_CONTENT_OPTIMIZER = 2
};

/* Selects the part of a training state that is saved, loaded or put into a
 * state dict; zeros select everything. The struct lies within the options of
 * these calls, so its size is frozen. */
typedef struct shard_state_filter {
  shard_content content; /* SHARD_CONTENT_ALL, _MODEL or _OPTIMIZER. */
  /* 1: without frozen parameters; a load leaves them as they are. */
  int32_t ignore_frozen;
  /* Only parameters with a name in these modules or below, and buffers in
   * them. Default: all. */
  const int32_t* submodules;
  size_t num_submodules;
  /* 1: keys have no module path in front. One submodule only, for the keys of
   * several could be the same. */
  int32_t strip_prefix;
  int32_t reserved;
} shard_state_filter;

/* Called with the progress of a long operation: this rank's bytes done and in
 * all. A result other than 0 cancels the operation, which then returns
 * CANCELLED. Called from threads of libshard, one call at a time. The function
 * must not call back into the engine, nor wait for the save. `user_data` is
 * used until the operation has ended, or the engine of a save in the background
 * has been freed. */
typedef int32_t (*shard_progress_fn)(uint64_t done, uint64_t total,
                                     void* user_data);

typedef struct shard_save_options {
  size_t struct_size;
  /* Seconds for the whole save, while ranks write. Default 1800. A rank that
   * does not come to it is found after the engine's timeout, or after this one
   * where it is shorter. */
  double timeout;
  shard_state_filter filter;
  int32_t overwrite; /* 1: replace a checkpoint of this step. */
  int32_t threads;   /* Writing threads per rank: 1 to 256. Default 4. */
  /* After the save, only the last keep_last checkpoints stay, and those whose
   * step is a multiple of keep_every. Default: all stay. */
  int64_t keep_last;
  int64_t keep_every;
  shard_progress_fn progress; /* May be NULL. */
  void* progress_user_data;
} shard_save_options;
#define SHARD_SAVE_OPTIONS_INIT                                             \
  {                                                                         \
    sizeof(shard_save_options), 0, {0, 0, NULL, 0, 0, 0}, 0, 0, 0, 0, NULL, \
        NULL                                                                \
  }

/* A save that runs in the background. */
typedef struct shard_save shard_save;

/* Saves parameters, persistent buffers, optimizer states, hyperparameters, step
 * counts, the loss scale and the host's blobs as checkpoint
 * `root`/step-NNNNNN, where NNNNNN is the number of completed steps. Every rank
 * writes the elements that it owns; rank 0 owns the buffers.
 * `root` is created if it is missing; ranks may reach it by different paths.
 *
 * With `save` NULL the call blocks until the checkpoint is durable. Else the
 * state is copied first (which takes as many bytes as this rank owns, and keeps
 * that memory for the next save), `save` is set, and training may go on. The
 * next save or load waits for this one; if this save failed and shard_save_wait
 * has not returned its error, the next save or load returns it. Freeing the
 * engine waits for the save too; while the host has `save`, at most for the
 * save's timeout.
 *
 * Same options on every rank, but for threads, timeout and progress.
 * COLLECTIVE, blocks. Errors: ALREADY_EXISTS for a checkpoint of this step
 * without `overwrite`; RESOURCE_EXHAUSTED when the disk is full; other errors
 * of the file system; FAILED_PRECONDITION unless between steps. After an error,
 * checkpoints that were there before are whole. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_save(
    shard_engine* engine, const char* root, const shard_save_options* options,
    shard_save** save) SHARD_NOEXCEPT;

/* Returns 1 once the save has ended, well or not, for NULL, and in a child of
 * fork, where the save does not run; else 0. Any thread. */
SHARD_API int32_t shard_save_done(const shard_save* save) SHARD_NOEXCEPT;

/* Waits for the save and returns its result, in every call; DEADLINE_EXCEEDED
 * when the save still goes on after `timeout` seconds. `timeout` 0: the save's.
 * Any thread, blocks. */
SHARD_NODISCARD SHARD_API shard_error* shard_save_wait(
    shard_save* save, double timeout) SHARD_NOEXCEPT;

/* Releases the handle. The save goes on; where its engine has been freed, the
 * call waits for the end of the save, so a function that the save calls must
 * not make it then. */
SHARD_API void shard_save_free(shard_save* save) SHARD_NOEXCEPT;

typedef struct shard_load_options {
  size_t struct_size;
  /* Seconds for the whole load, while ranks read. Default 1800. A rank that
   * does not come to it is found after the engine's timeout, or after this one
   * where it is shorter. */
  double timeout;
  shard_state_filter filter; /* The part to load, and the checkpoint's keys. */
  /* 1: keys that are missing or unexpected are no error, but reported. Shapes
   * and types that differ stay one. */
  int32_t allow_mismatch;
  /* 1: elements of other types are converted, rounded to nearest: f32, bf16,
   * f16, f64, and states in q8. Where only the checkpoint or only the engine
   * has master weights, master weights and parameter stand for each other. */
  int32_t convert;
  /* 1: one leading "module." of the checkpoint's keys is left out. */
  int32_t strip_leading_module;
  int32_t skip_verify; /* 1: bytes are not compared with their checksums. */
  int32_t threads;     /* Reading threads per rank: 1 to 256. Default 4. */
  int32_t reserved;
  shard_progress_fn progress; /* May be NULL. */
  void* progress_user_data;
} shard_load_options;
#define SHARD_LOAD_OPTIONS_INIT                                             \
  {                                                                         \
    sizeof(shard_load_options), 0, {0, 0, NULL, 0, 0, 0}, 0, 0, 0, 0, 0, 0, \
        NULL, NULL                                                          \
  }

/* The result of a load. */
typedef struct shard_load_report {
  size_t struct_size;
  int64_t step;             /* The checkpoint's; -1: it has none. */
  int32_t saved_world_size; /* 0: unknown. */
  int32_t reserved;
  int64_t loaded;    /* Tensors that were read. */
  int64_t converted; /* Those among them that were converted. */
  /* The numbers of keys; shard_engine_last_load_report_json names them. */
  int64_t missing;
  int64_t unexpected;
} shard_load_report;
#define SHARD_LOAD_REPORT_INIT \
  { sizeof(shard_load_report), 0, 0, 0, 0, 0, 0, 0 }

/* Loads a checkpoint of shard_checkpoint_save, at whatever world size. `path`
 * is a checkpoint, or a root: then the checkpoint that LATEST names is loaded,
 * or the last complete one. `path` may also be a safetensors file or a
 * model.safetensors.index.json, which have parameters and buffers only. All
 * ranks load the same one. Loading a whole model may take the place of
 * shard_engine_set_param and _broadcast_params.
 *
 * Every rank reads the elements that it owns. Names match without the
 * components that wrappers leave in them (shard_clean_tensor_name), a tied
 * parameter under any of its names. With optimizer states, hyperparameters,
 * step counts, the loss scale and blobs are loaded too; at the same world size
 * training goes on bit by bit.
 *
 * `report` may be NULL, else set report->struct_size first. Same options on
 * every rank, but for threads, timeout and progress. COLLECTIVE, blocks.
 * Errors: NOT_FOUND; CORRUPT naming tensor and file; FAILED_PRECONDITION for
 * keys, shapes or types that do not fit, with lists {"missing", "unexpected",
 * "mismatched"} as detail; UNIMPLEMENTED for a newer format. After an error the
 * state is as it was, unless tensors were being read: then optimizer states and
 * step counts are as in a new engine, and parameters have no values until
 * another load or broadcast, unless filter.content is SHARD_CONTENT_OPTIMIZER.
 */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_load(
    shard_engine* engine, const char* path, const shard_load_options* options,
    shard_load_report* report) SHARD_NOEXCEPT;

/* Writes the missing and unexpected keys of the last load that succeeded, as
 * JSON: {"missing": [...], "unexpected": [...], "mismatched": []}. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_last_load_report_json(
    const shard_engine* engine, char* buffer, size_t capacity,
    size_t* length) SHARD_NOEXCEPT;

/* How a blob is mapped to another world size. Frozen.
 *   PER_RANK    at the same world size each rank gets its own blob, at another
 *               no rank gets any; shard_checkpoint_blob reads all of them
 *   REPLICATED  every rank gets the blob, which was the same on all ranks
 *   SUMMED      int64 numbers that add up over the ranks, such as samples seen:
 *               at the same world size each rank gets its own, at another rank
 *               r of M gets the sums of ranks r, r + M, r + 2M, ..., or zeros
 */
typedef int32_t shard_blob_rule;
enum shard_blob_rule_values {
  SHARD_BLOB_PER_RANK = 1,
  SHARD_BLOB_REPLICATED = 2,
  SHARD_BLOB_SUMMED = 3
};

/* Sets a blob: bytes of the host's that are saved under a name with every
 * checkpoint from here on, such as its data loader's position or its random
 * numbers. The bytes are copied from the host's memory. Names and rules must be
 * the same on every rank when a checkpoint is saved. A second call for a name
 * replaces the first; a load replaces all blobs by those of the checkpoint, and
 * is RESOURCE_EXHAUSTED where they do not fit into the host's memory.
 * INVALID_ARGUMENT for more than 1 GiB, which belongs in a file of its own, and
 * for a name with control characters or of more than 65535 bytes;
 * RESOURCE_EXHAUSTED for more names than a checkpoint holds. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_set_blob(
    shard_engine* engine, const char* name, shard_blob_rule rule,
    const void* data, size_t bytes) SHARD_NOEXCEPT;

/* Gets a blob that was set or loaded. The engine owns `data`, in the host's
 * memory, which is valid until the name is set again or something is loaded.
 * Both outputs may be NULL. NOT_FOUND when there is no such blob. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_blob(
    const shard_engine* engine, const char* name, const void** data,
    size_t* bytes) SHARD_NOEXCEPT;

/* ---- Checkpoints without an engine -----------------------------------------
 *
 * Named tensors in files: a checkpoint, a safetensors file, or the several of
 * a model.safetensors.index.json. All functions below are local. A handle is
 * immutable: any thread. It holds its files open, so that a checkpoint that is
 * replaced is read as it was. All handles together hold at most a quarter of
 * the descriptors that the process may have (ulimit -n), and each one more for
 * its folder; beyond that, files are opened again when they are read, which is
 * NOT_FOUND once they are deleted. In a child of fork reading a handle of its
 * parent is FAILED_PRECONDITION, and freeing it is allowed; the child opens its
 * own. Tensors, files, groups, scalars and blobs are numbered from 0, and a
 * number that does not exist is INVALID_ARGUMENT. */
typedef struct shard_checkpoint shard_checkpoint;

/* Opens a checkpoint or safetensors; `path` is as in shard_checkpoint_load.
 * Errors: NOT_FOUND, CORRUPT, UNIMPLEMENTED for a newer format. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_open(
    const char* path, shard_checkpoint** checkpoint) SHARD_NOEXCEPT;

/* Formats that checkpoints are read from. Frozen. */
typedef int32_t shard_format;
enum shard_format_values {
  SHARD_FORMAT_CHECKPOINT = 1,
  SHARD_FORMAT_SAFETENSORS = 2
};

typedef struct shard_checkpoint_info {
  size_t struct_size;
  shard_format format;
  int32_t version;    /* The format's; 0: it has none. */
  int64_t step;       /* -1: it has none. */
  int32_t world_size; /* The ranks that saved it; 0: unknown. */
  int32_t num_files;  /* Data files. */
  int64_t num_tensors;
  int32_t num_groups;
  int32_t num_scalars;
  int32_t num_blobs;
  int32_t reserved;
  uint64_t tensor_bytes; /* All tensors, aliases not counted. */
  uint64_t file_bytes;   /* All files, the manifest too. */
  /* The identity of its contents: XXH3-128 of the manifest; 0: it has none. */
  uint64_t id_low;
  uint64_t id_high;
} shard_checkpoint_info;
#define SHARD_CHECKPOINT_INFO_INIT \
  { sizeof(shard_checkpoint_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Gets the format, the step and the counts of a checkpoint. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_get_info(
    const shard_checkpoint* checkpoint,
    shard_checkpoint_info* info) SHARD_NOEXCEPT;

/* Gets the folder or file that was opened. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_path(
    const shard_checkpoint* checkpoint, const char** path) SHARD_NOEXCEPT;

/* The purpose of a tensor. A BUFFER is the host's (shard_model_add_buffer): it
 * is neither a parameter nor updated by steps. Frozen. */
typedef int32_t shard_role;
enum shard_role_values {
  SHARD_ROLE_PARAM = 1,
  SHARD_ROLE_BUFFER = 2,
  SHARD_ROLE_STATE = 3
};

typedef struct shard_tensor_info {
  size_t struct_size;
  shard_dtype dtype;
  shard_role role;
  int64_t alias_of; /* The tensor that this one names again; -1: none. */
  int64_t numel;
  uint64_t bytes;
  int32_t ndim;
  int32_t trainable; /* Parameters only. */
  int32_t group;     /* Its param group; -1: none. */
  int32_t num_slices;
  int64_t step; /* Steps that the parameter has done; -1: unknown. */
  int64_t shape[SHARD_MAX_DIMS];
} shard_tensor_info;
#define SHARD_TENSOR_INFO_INIT                                     \
  {                                                                \
    sizeof(shard_tensor_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 } \
  }

/* Get a tensor's type and shape, and its key. UNIMPLEMENTED for a tensor of
 * more than SHARD_MAX_DIMS dimensions, which safetensors may have. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_tensor(
    const shard_checkpoint* checkpoint, int64_t tensor,
    shard_tensor_info* info) SHARD_NOEXCEPT;
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_tensor_key(
    const shard_checkpoint* checkpoint, int64_t tensor,
    const char** key) SHARD_NOEXCEPT;
/* Gets the name of a tensor's element type: "f32", "q8"; for SHARD_OPAQUE the
 * name in the file: "C64". */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_tensor_type(
    const shard_checkpoint* checkpoint, int64_t tensor,
    const char** type) SHARD_NOEXCEPT;
/* Finds the tensor of a key. NOT_FOUND when there is none. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_find(
    const shard_checkpoint* checkpoint, const char* key,
    int64_t* tensor) SHARD_NOEXCEPT;

/* A part of a tensor's elements, at their place in a file. Of SHARD_OPAQUE,
 * whose elements may have any size, begin and numel count bytes. */
typedef struct shard_tensor_slice {
  size_t struct_size;
  int64_t begin; /* First element. */
  int64_t numel;
  uint64_t offset; /* In the file. */
  uint64_t bytes;
  int32_t file;
  int32_t has_checksum;
  uint64_t checksum_low; /* XXH3-128. */
  uint64_t checksum_high;
} shard_tensor_slice;
#define SHARD_TENSOR_SLICE_INIT \
  { sizeof(shard_tensor_slice), 0, 0, 0, 0, 0, 0, 0, 0 }

/* Gets a slice of a tensor; slices are ordered by their first element. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_slice(
    const shard_checkpoint* checkpoint, int64_t tensor, int32_t index,
    shard_tensor_slice* slice) SHARD_NOEXCEPT;

/* Gets a data file's name and size. Both outputs may be NULL. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_file(
    const shard_checkpoint* checkpoint, int32_t file, const char** name,
    uint64_t* bytes) SHARD_NOEXCEPT;

/* Gets the optimizer of a param group with all values: "adamw?lr=0.001&...". */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_group(
    const shard_checkpoint* checkpoint, int32_t group,
    const char** optimizer) SHARD_NOEXCEPT;

/* Gets a number and its name, such as "loss_scale.scale". Both outputs may be
 * NULL. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_scalar(
    const shard_checkpoint* checkpoint, int32_t scalar, const char** name,
    double* value) SHARD_NOEXCEPT;

/* Gets a blob's name, its rule and the rank that saved it. Each output may be
 * NULL. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_blob_info(
    const shard_checkpoint* checkpoint, int32_t blob, const char** name,
    shard_blob_rule* rule, int32_t* rank) SHARD_NOEXCEPT;
/* Copies a blob's first `capacity` bytes, without a closing NUL, to `buffer` in
 * the host's memory, and writes the number of all to `length`; with capacity 0
 * `buffer` may be NULL. The bytes are read in pieces. After CORRUPT, the
 * contents of `buffer` are unspecified. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_blob(
    const shard_checkpoint* checkpoint, int32_t blob, void* buffer,
    size_t capacity, size_t* length) SHARD_NOEXCEPT;

/* Reads elements [begin, begin + numel) of a tensor, in the type that they are
 * stored in, into `buffer` of `bytes` bytes in the host's memory, and compares
 * checksums where there are some. Of SHARD_OPAQUE, `begin` and `numel` count
 * bytes. Blocks. Errors: OUT_OF_RANGE; INVALID_ARGUMENT when `bytes` is not the
 * size of these elements; CORRUPT naming tensor and file. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_read(
    const shard_checkpoint* checkpoint, int64_t tensor, int64_t begin,
    int64_t numel, void* buffer, size_t bytes) SHARD_NOEXCEPT;

typedef struct shard_verify_options {
  size_t struct_size;
  int32_t threads; /* Reading threads: 1 to 256. Default 4. */
  int32_t reserved;
  shard_progress_fn progress; /* May be NULL. */
  void* progress_user_data;
} shard_verify_options;
#define SHARD_VERIFY_OPTIONS_INIT \
  { sizeof(shard_verify_options), 0, 0, NULL, NULL }

/* Reads everything and compares it with its checksums; bytes without a checksum
 * are only read. `options` may be NULL. Blocks. The detail of CORRUPT lists all
 * problems: {"problems": ["tensor '...' is damaged in FILE ...", ...]}. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_verify(
    const shard_checkpoint* checkpoint,
    const shard_verify_options* options) SHARD_NOEXCEPT;

typedef struct shard_convert_options {
  size_t struct_size;
  shard_content content; /* As in shard_state_filter. */
  int32_t overwrite;     /* 1: replace an existing checkpoint or file. */
  int32_t threads;       /* 1 to 256. Default 4. */
  /* The type that float tensors are converted to: SHARD_F32, _BF16, _F16 or
   * _F64. Default: each keeps its type, but in safetensors q8 becomes f32. */
  shard_dtype dtype;
  /* Checkpoints: the number of data files, as if so many ranks had saved.
   * Default: as many as the source has, at least 1. */
  int32_t world_size;
  /* Safetensors: 1 writes tied tensors under each of their names; by default
   * they are written under the first one only. */
  int32_t expand_aliases;
  /* Safetensors: tensors of more bytes than this together are written as
   * several files and an index. Default: one file. */
  uint64_t max_shard_bytes;
  shard_progress_fn progress; /* May be NULL. */
  void* progress_user_data;
} shard_convert_options;
#define SHARD_CONVERT_OPTIONS_INIT \
  { sizeof(shard_convert_options), 0, 0, 0, 0, 0, 0, 0, NULL, NULL }

/* Writes a checkpoint into `root`, as shard_checkpoint_save does: with another
 * number of files, with other types, or from safetensors (then of step 0).
 * Where the source has blobs of the host, the checkpoint keeps the number of
 * ranks that saved them, which the rules of blobs need. Tensors and blobs are
 * streamed: memory stays below 64 MiB and 16 MiB per thread. Tensors of
 * SHARD_OPAQUE are copied byte by byte, whatever the dtype; a checkpoint with
 * some is of version 3 of the format, and UNIMPLEMENTED for a library that
 * knows only versions 1 and 2. Blocks. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_convert(
    const shard_checkpoint* checkpoint, const char* root,
    const shard_convert_options* options) SHARD_NOEXCEPT;

/* Writes a safetensors file. `path` ends in ".safetensors"; several files are
 * named after it, model-00001-of-00002.safetensors and so on, with
 * model.safetensors.index.json. The files get their names when all of them are
 * durable. Memory stays below 64 MiB and 16 MiB per thread. Blocks. Errors:
 * ALREADY_EXISTS for an existing file without `overwrite`; FAILED_PRECONDITION
 * for anything of that name that is not a regular file, such as a symbolic
 * link, which `overwrite` does not replace either; errors of reading, such as
 * CORRUPT, and of writing; CANCELLED. After an error the files that were there
 * before have their names again, and the new ones are deleted. If the file
 * system fails the undoing as well, or memory has run out, files may stay under
 * temporary names; every file that has its final name is whole, and an index
 * names files of one set: all new files stay with the new index, or old files
 * with theirs, or old and new files without one; a new file that no index names
 * may stay. A single file that was replaced stays so when the sync after it
 * fails and the file system cannot exchange two files (RENAME_EXCHANGE). */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_export(
    const shard_checkpoint* checkpoint, const char* path,
    const shard_convert_options* options) SHARD_NOEXCEPT;

SHARD_API void shard_checkpoint_free(shard_checkpoint* checkpoint)
    SHARD_NOEXCEPT;

SHARD_END_DECLS

#endif /* SHARD_CHECKPOINT_H_ */
