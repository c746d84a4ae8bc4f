/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints.
 *
 * A checkpoint is a folder that knows elements, not ranks: what N ranks saved,
 * M ranks load, whatever stage, partition, units and dtypes (with `convert`)
 * either has (docs/checkpoints.md; the format: docs/checkpoint-format.md).
 *
 *   ckpt/step-000042/   manifest.shard, data-00000.bin, ...
 *   ckpt/LATEST         "step-000042"
 *
 * It exists whole or not at all, whenever a process is killed or the power
 * goes. Keys are torch's: "layer.weight", "state.layer.weight.exp_avg". */

#ifndef SHARD_CHECKPOINT_H_
#define SHARD_CHECKPOINT_H_

#include "shard/base.h"
#include "shard/engine.h"

SHARD_BEGIN_DECLS

/* The part of a training state that a call is about. Frozen. */
typedef int32_t shard_content;
enum shard_content_values {
  SHARD_CONTENT_ALL = 0,
  SHARD_CONTENT_MODEL = 1,
  SHARD_CONTENT_OPTIMIZER = 2
};

/* What saves, loads and state dicts are about; zeros are everything. It lies
 * within their options, so its size is frozen. */
typedef struct shard_state_filter {
  shard_content content; /* SHARD_CONTENT_ALL, _MODEL or _OPTIMIZER. */
  /* 1: without frozen parameters; a load leaves them as they are. */
  int32_t ignore_frozen;
  /* Only what has a name in these modules or below. Default: everything. */
  const int32_t* submodules;
  size_t num_submodules;
  /* 1: keys go without the module's path. One submodule only, for the keys of
   * several could be the same. */
  int32_t strip_prefix;
  int32_t reserved;
} shard_state_filter;

/* Called with the progress of a long operation: bytes done and in all, of this
 * rank. Not 0 cancels it, which is CANCELLED. Called from threads of libshard,
 * one call at a time; `user_data` is used until the operation has ended. */
typedef int32_t (*shard_progress_fn)(uint64_t done, uint64_t total,
                                     void* user_data);

typedef struct shard_save_options {
  size_t struct_size;
  /* Seconds for the whole save, while ranks write. Default 1800. A rank that
   * does not come to it is found after the engine's timeout. */
  double timeout;
  shard_state_filter filter;
  int32_t overwrite; /* 1: replace a checkpoint of this step. */
  int32_t threads;   /* That write, per rank: 1 to 256. Default 4. */
  /* When it is saved, only the last keep_last checkpoints stay, and those whose
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

/* Saves parameters, optimizer states, hyperparameters, step counts, the loss
 * scale and the host's blobs as checkpoint `root`/step-NNNNNN of the step that
 * was done last. Every rank writes what it owns. `root` is made if it is
 * missing; ranks may reach it by different paths.
 *
 * With `save` NULL it blocks until the checkpoint is durable. Else the state
 * is copied first (this takes the bytes that this rank owns, and keeps that
 * memory for the next time), `save` is set, and training may go on. The next
 * save or load waits for it; if it failed and shard_save_wait has not said so,
 * that call returns its error. Freeing the engine waits for it too.
 *
 * Same options on every rank, but threads and progress. COLLECTIVE, blocks.
 * Errors: ALREADY_EXISTS for a checkpoint of this step without `overwrite`;
 * RESOURCE_EXHAUSTED when the disk is full; others of the file system. After an
 * error, what was there before is whole. FAILED_PRECONDITION unless between
 * steps. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_save(
    shard_engine* engine, const char* root, const shard_save_options* options,
    shard_save** save) SHARD_NOEXCEPT;

/* Returns 1 once the save has ended, well or not, and for NULL; else 0. Any
 * thread. */
SHARD_API int32_t shard_save_done(const shard_save* save) SHARD_NOEXCEPT;

/* Waits for the save and returns how it ended, as often as it is called:
 * DEADLINE_EXCEEDED while it goes on. `timeout` 0: the save's. Any thread,
 * blocks. */
SHARD_NODISCARD SHARD_API shard_error* shard_save_wait(
    shard_save* save, double timeout) SHARD_NOEXCEPT;

/* Releases the handle. The save goes on. */
SHARD_API void shard_save_free(shard_save* save) SHARD_NOEXCEPT;

typedef struct shard_load_options {
  size_t struct_size;
  /* Seconds for the whole load, while ranks read. Default 1800. A rank that
   * does not come to it is found after the engine's timeout. */
  double timeout;
  shard_state_filter filter; /* The checkpoint's keys are as it says. */
  /* 1: keys that are missing or unexpected are no error, but reported. Shapes
   * and types that differ stay one. */
  int32_t allow_mismatch;
  /* 1: elements of other types are converted, to nearest: f32, bf16, f16, f64,
   * and states in q8. Where only one side has master weights, they stand for
   * the parameter, and the other way around. */
  int32_t convert;
  /* 1: the checkpoint's keys go without one leading "module.". */
  int32_t strip_leading_module;
  int32_t skip_verify; /* 1: what is read is not compared with its checksums. */
  int32_t threads;     /* That read, per rank: 1 to 256. Default 4. */
  int32_t reserved;
  shard_progress_fn progress; /* May be NULL. */
  void* progress_user_data;
} shard_load_options;
#define SHARD_LOAD_OPTIONS_INIT                                             \
  {                                                                         \
    sizeof(shard_load_options), 0, {0, 0, NULL, 0, 0, 0}, 0, 0, 0, 0, 0, 0, \
        NULL, NULL                                                          \
  }

typedef struct shard_load_report {
  size_t struct_size;
  int64_t step;             /* Of what was loaded; -1: it has none. */
  int32_t saved_world_size; /* 0: unknown. */
  int32_t reserved;
  int64_t loaded;    /* Tensors that were read. */
  int64_t converted; /* Of those, as another type. */
  /* Keys; which ones: shard_engine_last_load_report_json. */
  int64_t missing;
  int64_t unexpected;
} shard_load_report;
#define SHARD_LOAD_REPORT_INIT \
  { sizeof(shard_load_report), 0, 0, 0, 0, 0, 0, 0 }

/* Loads what shard_checkpoint_save saves, at whatever world size. `path` is a
 * checkpoint, or a root: then the one that LATEST names, or the last complete
 * one. It may also be a safetensors file or a model.safetensors.index.json,
 * which have parameters only. All ranks load the same one. In place of
 * shard_engine_set_param and _broadcast_params it may load a whole model.
 *
 * Every rank reads what it owns. Names match without the components that
 * wrappers leave in them (shard_clean_tensor_name), a tied parameter under any
 * of its names. With optimizer states come hyperparameters, step counts, the
 * loss scale and blobs; at the same world size training goes on bit by bit.
 *
 * `report` may be NULL, else set report->struct_size first. Same options on
 * every rank, but threads and progress. COLLECTIVE, blocks. Errors: NOT_FOUND;
 * CORRUPT naming tensor and file; FAILED_PRECONDITION for keys, shapes or types
 * that do not fit, with lists {"missing", "unexpected", "mismatched"} as
 * detail; UNIMPLEMENTED for a newer format. After an error the state is as it
 * was, unless tensors were being read: then optimizer states and step counts
 * are as in a new engine, and, unless filter.content is
 * SHARD_CONTENT_OPTIMIZER, parameters have no values until another load or
 * broadcast. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_load(
    shard_engine* engine, const char* path, const shard_load_options* options,
    shard_load_report* report) SHARD_NOEXCEPT;

/* Returns the keys that the last load that fitted did not find, as JSON:
 * {"missing": [...], "unexpected": [...], "mismatched": []}. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_last_load_report_json(
    const shard_engine* engine, char* buffer, size_t capacity,
    size_t* length) SHARD_NOEXCEPT;

/* How a blob is mapped to another world size. Frozen.
 *   PER_RANK    at the same world size each rank gets its own, else none does;
 *               the host reads them by shard_checkpoint_blob
 *   REPLICATED  the same on all ranks
 *   SUMMED      int64 numbers that add up over the ranks, such as samples seen:
 *               at the same world size each rank gets its own, else rank r the
 *               sums of ranks r, r + M, r + 2M, ..., or zeros */
typedef int32_t shard_blob_rule;
enum shard_blob_rule_values {
  SHARD_BLOB_PER_RANK = 1,
  SHARD_BLOB_REPLICATED = 2,
  SHARD_BLOB_SUMMED = 3
};

/* Bytes of the host's that are saved with every checkpoint from here on, under
 * a name: its data loader's position, its random numbers. Names and rules are
 * the same on every rank when a checkpoint is saved. A second call replaces the
 * first; a load replaces all, with whatever the checkpoint has, or is
 * RESOURCE_EXHAUSTED where that does not fit into the host's memory. Copied.
 * INVALID_ARGUMENT for more than 1 GiB, which belongs in a file of its own, and
 * for a name with control characters or of more than 65535 bytes;
 * RESOURCE_EXHAUSTED for more names than a checkpoint holds. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_set_blob(
    shard_engine* engine, const char* name, shard_blob_rule rule,
    const void* data, size_t bytes) SHARD_NOEXCEPT;

/* Gets a blob that was set or loaded; `data` is the engine's, until the name is
 * set again or something is loaded. Both outputs may be NULL. NOT_FOUND. Local.
 */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_blob(
    const shard_engine* engine, const char* name, const void** data,
    size_t* bytes) SHARD_NOEXCEPT;

/* ---- Checkpoints without an engine -----------------------------------------
 *
 * Named tensors in files: a checkpoint, a safetensors file, or the several of
 * a model.safetensors.index.json. All of this is local. A handle is immutable,
 * and holds its files open, so that one that is replaced is read as it was: any
 * thread. All handles together hold at most a quarter of the descriptors that
 * the process may have (ulimit -n), and one each for its folder; of more files,
 * some are opened again when they are read, which is NOT_FOUND once they are
 * deleted. In a child of fork a handle of its parent cannot be read,
 * FAILED_PRECONDITION, and may be freed; the child opens its own. What is
 * counted is numbered from 0, and a number that does not exist is
 * INVALID_ARGUMENT. */
typedef struct shard_checkpoint shard_checkpoint;

/* `path` as in shard_checkpoint_load. Errors: NOT_FOUND, CORRUPT,
 * UNIMPLEMENTED for a newer format. */
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
  int32_t version;    /* Of the format; 0: it has none. */
  int64_t step;       /* -1: it has none. */
  int32_t world_size; /* That saved it; 0: unknown. */
  int32_t num_files;  /* Data files. */
  int64_t num_tensors;
  int32_t num_groups;
  int32_t num_scalars;
  int32_t num_blobs;
  int32_t reserved;
  uint64_t tensor_bytes; /* Of all tensors, aliases not counted. */
  uint64_t file_bytes;   /* Of all files, the manifest too. */
  /* Which one it is: XXH3-128 of the manifest; 0: it has none. */
  uint64_t id_low;
  uint64_t id_high;
} shard_checkpoint_info;
#define SHARD_CHECKPOINT_INFO_INIT \
  { sizeof(shard_checkpoint_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_get_info(
    const shard_checkpoint* checkpoint,
    shard_checkpoint_info* info) SHARD_NOEXCEPT;

/* Gets the folder or file that was opened. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_path(
    const shard_checkpoint* checkpoint, const char** path) SHARD_NOEXCEPT;

/* The purpose of a tensor. Frozen. BUFFER: of the host, neither stepped nor a
 * parameter. */
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
  int64_t alias_of; /* The tensor this is another name of; -1: none. */
  int64_t numel;
  uint64_t bytes;
  int32_t ndim;
  int32_t trainable; /* Of parameters. */
  int32_t group;     /* Its param group; -1: none. */
  int32_t num_slices;
  int64_t step; /* Steps that the parameter has done; -1: unknown. */
  int64_t shape[SHARD_MAX_DIMS];
} shard_tensor_info;
#define SHARD_TENSOR_INFO_INIT                                     \
  {                                                                \
    sizeof(shard_tensor_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 } \
  }

/* UNIMPLEMENTED for a tensor of more than SHARD_MAX_DIMS dimensions, which
 * safetensors may have. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_tensor(
    const shard_checkpoint* checkpoint, int64_t tensor,
    shard_tensor_info* info) SHARD_NOEXCEPT;
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_tensor_key(
    const shard_checkpoint* checkpoint, int64_t tensor,
    const char** key) SHARD_NOEXCEPT;
/* Gets the name of a tensor's element type: "f32", "q8"; of SHARD_OPAQUE what
 * the file says: "C64". */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_tensor_type(
    const shard_checkpoint* checkpoint, int64_t tensor,
    const char** type) SHARD_NOEXCEPT;
/* NOT_FOUND when there is no tensor of that key. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_find(
    const shard_checkpoint* checkpoint, const char* key,
    int64_t* tensor) SHARD_NOEXCEPT;

/* Some of a tensor's elements, at their place in a file. */
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

/* By ascending first element. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_slice(
    const shard_checkpoint* checkpoint, int64_t tensor, int32_t index,
    shard_tensor_slice* slice) SHARD_NOEXCEPT;

/* Gets a data file's name, and its bytes. Both may be NULL. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_file(
    const shard_checkpoint* checkpoint, int32_t file, const char** name,
    uint64_t* bytes) SHARD_NOEXCEPT;

/* Gets the optimizer of a param group with all values: "adamw?lr=0.001&...". */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_group(
    const shard_checkpoint* checkpoint, int32_t group,
    const char** optimizer) SHARD_NOEXCEPT;

/* Gets a number and its name, such as "loss_scale.scale". Both may be NULL. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_scalar(
    const shard_checkpoint* checkpoint, int32_t scalar, const char** name,
    double* value) SHARD_NOEXCEPT;

/* Gets a blob's name, its rule and the rank that saved it. Each may be NULL. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_blob_info(
    const shard_checkpoint* checkpoint, int32_t blob, const char** name,
    shard_blob_rule* rule, int32_t* rank) SHARD_NOEXCEPT;
/* Copies a blob's first `capacity` bytes, without a closing NUL, to `buffer`
 * and writes the number of all to `length`; with capacity 0 `buffer` may be
 * NULL. The bytes are read in pieces. After CORRUPT, those in `buffer` are of
 * no use. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_blob(
    const shard_checkpoint* checkpoint, int32_t blob, void* buffer,
    size_t capacity, size_t* length) SHARD_NOEXCEPT;

/* Reads elements [begin, begin + numel) of a tensor as they are stored into
 * `buffer` of `bytes` bytes, comparing checksums where there are some. Blocks.
 * Errors: OUT_OF_RANGE; INVALID_ARGUMENT when `bytes` is not what they have;
 * UNIMPLEMENTED for SHARD_OPAQUE; CORRUPT naming tensor and file. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_read(
    const shard_checkpoint* checkpoint, int64_t tensor, int64_t begin,
    int64_t numel, void* buffer, size_t bytes) SHARD_NOEXCEPT;

/* Reads everything and compares it with its checksums; what has none is only
 * read. Blocks; `progress` may be NULL. CORRUPT has all that is wrong as
 * detail: {"problems": ["tensor '...' is damaged in FILE ...", ...]}. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_verify(
    const shard_checkpoint* checkpoint, int32_t threads,
    shard_progress_fn progress, void* progress_user_data) SHARD_NOEXCEPT;

typedef struct shard_convert_options {
  size_t struct_size;
  shard_content content; /* As in shard_state_filter. */
  int32_t overwrite;     /* 1: replace what is there. */
  int32_t threads;       /* 1 to 256. Default 4. */
  /* The type that float tensors are converted to: SHARD_F32, _BF16, _F16 or
   * _F64. Default: each stays what it is, but in safetensors q8 becomes f32. */
  shard_dtype dtype;
  /* Checkpoints: into how many data files, as from so many ranks. Default: as
   * many as it has, at least 1. */
  int32_t world_size;
  /* Safetensors: 1 writes tied tensors under each of their names; by default
   * they are written under the first one only. */
  int32_t expand_aliases;
  /* Safetensors: several files when there are more bytes than this, and an
   * index. Default: one file. */
  uint64_t max_shard_bytes;
  shard_progress_fn progress; /* May be NULL. */
  void* progress_user_data;
} shard_convert_options;
#define SHARD_CONVERT_OPTIONS_INIT \
  { sizeof(shard_convert_options), 0, 0, 0, 0, 0, 0, 0, NULL, NULL }

/* Writes a checkpoint into `root`, as shard_checkpoint_save does: with another
 * number of files, of other types, or from safetensors (then of step 0). With
 * blobs of the host the checkpoint still says how many ranks saved them, as
 * their rules need it. Tensors and blobs are streamed: memory stays below 64
 * MiB and 16 MiB per thread. Blocks. UNIMPLEMENTED for a tensor of
 * SHARD_OPAQUE. */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_convert(
    const shard_checkpoint* checkpoint, const char* root,
    const shard_convert_options* options) SHARD_NOEXCEPT;

/* Writes a safetensors file. `path` ends in ".safetensors"; several files are
 * named after it, model-00001-of-00002.safetensors and so on, with
 * model.safetensors.index.json. A file gets its name when all of them are
 * durable. Memory as above. Blocks. Errors: ALREADY_EXISTS for a file that is
 * there without `overwrite`; FAILED_PRECONDITION for anything of that name
 * that is not a regular file, such as a symbolic link, which `overwrite` does
 * not replace either; those of reading, such as CORRUPT, and of writing;
 * CANCELLED. After an error the files that were there are there again, unless
 * the file system fails the undoing as well: then the old index of a set of
 * several files is deleted, for it would name files of both. A single file that
 * was replaced stays so when the sync after it fails and the file system cannot
 * exchange two files (RENAME_EXCHANGE). */
SHARD_NODISCARD SHARD_API shard_error* shard_checkpoint_export(
    const shard_checkpoint* checkpoint, const char* path,
    const shard_convert_options* options) SHARD_NOEXCEPT;

SHARD_API void shard_checkpoint_free(shard_checkpoint* checkpoint)
    SHARD_NOEXCEPT;

SHARD_END_DECLS

#endif /* SHARD_CHECKPOINT_H_ */
