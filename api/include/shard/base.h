/* SPDX-License-Identifier: Apache-2.0
 *
 * Conventions of every function here; versions, errors and element types.
 *
 * Errors. A function that can fail returns shard_error*: NULL is success,
 * anything else is an error the caller owns and frees with shard_error_free.
 * There is no last-error state. Outputs are set to NULL or 0 on entry and
 * written only on success; after a failed call only the error is left to free.
 * A NULL handle, output or string is SHARD_INVALID_ARGUMENT unless the comment
 * allows it.
 *
 * Memory. A call that runs out of memory returns SHARD_RESOURCE_EXHAUSTED and
 * never ends the process; free functions succeed then too, and give everything
 * back. A COLLECTIVE call that runs out of memory ends the group, for the other
 * ranks would wait: they get the same error where the ranks agree on one, else
 * SHARD_POISONED with the reason, and later calls get that too. A call that may
 * leave parameters, states or units half changed ends its engine and
 * communicator even with one rank: open another one, and load a checkpoint.
 *
 * Data. A pointer to data is to the host's memory, unless its comment says "the
 * device's": a GPU's memory for an engine on a GPU (shard_engine_options), the
 * host's for an engine on "cpu" and "cpu-async". Handles, ids, options, texts
 * and numbers are always in the host's. docs/gpu.md has a table of the
 * functions with data.
 *
 * Options. An option struct begins with struct_size. The _INIT macro sets
 * struct_size and leaves all other fields 0. 0 in any field means its default;
 * the whole pointer may be NULL. Fields named `reserved` must be 0. A
 * struct_size smaller than today's is completed with defaults; a larger one is
 * accepted when the part this library does not know is zero.
 *
 * Numbers. Ids, and the number of things that have ids, are int32_t; tensors of
 * a checkpoint or state dict, and elements, are int64_t; the bytes and the
 * length of an array that the host gives are size_t; bytes of files, and totals
 * of bytes, are uint64_t; limits in bytes of shard_plan_options are int64_t.
 * Flags are 0 or 1, and any other value is an error.
 *
 * Ownership. Each *_create or *_open gives a handle the caller frees with the
 * matching *_free, in any order: children keep what they need alive. *_free
 * accepts NULL, never fails, is local and never collective. Strings passed in
 * are NUL-terminated UTF-8 and copied.
 *
 * Text. A handle that does not change, such as a plan or a checkpoint, gives
 * names and other text as a `const char**`: UTF-8, NUL-terminated, owned by the
 * handle and valid as long as the handle. Text that changes, or that is made on
 * request, is copied into a buffer of the host's. Such a function writes at
 * most `capacity` bytes to `buffer`, the closing NUL included, and the full
 * length without the NUL to `length`. With capacity 0, which gives only the
 * length, `buffer` may be NULL. A short buffer is not an error.
 *
 * Threads. Handles may move between threads. Different handles may be used at
 * once from different threads; calls on one handle must not overlap unless the
 * comment says "any thread". A communicator and the engines on it count as one
 * handle. Error and plan handles are immutable: any thread.
 *
 * Collective. A call marked COLLECTIVE must be made by every rank of the
 * communicator, in the same order. Ranks that call different things, or that
 * have different plans or options, all get SHARD_DESYNC, whose message names
 * the first difference, its two values and their ranks. So do ranks that wait
 * for each other, some in a call on the communicator and some in one on an
 * engine of it: the message names the calls. When a rank dies the others get
 * SHARD_RANK_LOST, and shard_error_rank names it. No collective waits longer
 * than its deadline: `timeout` is in seconds, 0 or less means the default. A
 * wrong argument or a wrong state on one rank is the same error on every rank;
 * the error names that rank, nothing is changed, and training can go on. Only a
 * NULL shard_comm or shard_engine, and a wrong argument of shard_comm_open,
 * cannot be told to the other ranks. After any other error of a collective the
 * communicator and the engines on it are of no further use.
 *
 * Fork. A child of fork has none of the library's threads, and is no rank: a
 * rank is the process that opened the communicator. The child may free the
 * handles of its parent, which does nothing to the parent, and use its models,
 * plans and errors. Every other call that returns an error is
 * FAILED_PRECONDITION on a communicator, engine or save of the parent, as is
 * reading from its checkpoint. The child opens its own.
 *
 * The host. libshard never exits, aborts, installs a signal handler, or changes
 * locale, umask or working directory. It prints nothing, and writes no files
 * but checkpoints, unless the host (shard_comm_options) or its user asks for a
 * log, a trace, metrics or a dump: the variables SHARD_LOG, SHARD_LOG_FILE,
 * SHARD_TRACE, SHARD_METRICS and SHARD_DUMP, which shard_comm_open reads. */

#ifndef SHARD_BASE_H_
#define SHARD_BASE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if !defined(__linux__)
#error "libshard runs on Linux only"
#endif

#define SHARD_API __attribute__((visibility("default")))
/* Warns when a caller drops an error: that leaks it, and hides a failure. */
#define SHARD_NODISCARD __attribute__((warn_unused_result))

#ifdef __cplusplus
#define SHARD_NOEXCEPT noexcept
#define SHARD_BEGIN_DECLS extern "C" {
#define SHARD_END_DECLS }
#else
#define SHARD_NOEXCEPT
#define SHARD_BEGIN_DECLS
#define SHARD_END_DECLS
#endif

SHARD_BEGIN_DECLS

/* ---- Version ------------------------------------------------------------ */

/* The version of this header, for the preprocessor. */
#define SHARD_VERSION_MAJOR 0
#define SHARD_VERSION_MINOR 2
#define SHARD_VERSION_PATCH 0

/* Returns the version of the library that is loaded, which may be newer than
 * the header: "0.2.0". Static storage. Any thread. */
SHARD_API const char* shard_version(void) SHARD_NOEXCEPT;

/* Returns the number in the SONAME, libshard.so.N. Any thread. */
SHARD_API int32_t shard_abi_version(void) SHARD_NOEXCEPT;

/* ---- Errors ------------------------------------------------------------- */

/* The codes of errors. 0 to 16 are the canonical codes of absl and gRPC.
 * Frozen. */
typedef int32_t shard_code;
enum shard_code_values {
  SHARD_OK = 0,
  SHARD_CANCELLED = 1,
  SHARD_UNKNOWN = 2,
  SHARD_INVALID_ARGUMENT = 3,
  SHARD_DEADLINE_EXCEEDED = 4,
  SHARD_NOT_FOUND = 5,
  SHARD_ALREADY_EXISTS = 6,
  SHARD_PERMISSION_DENIED = 7,
  SHARD_RESOURCE_EXHAUSTED = 8,
  SHARD_FAILED_PRECONDITION = 9,
  SHARD_ABORTED = 10,
  SHARD_OUT_OF_RANGE = 11,
  SHARD_UNIMPLEMENTED = 12,
  SHARD_INTERNAL = 13,
  SHARD_UNAVAILABLE = 14,
  SHARD_DATA_LOSS = 15,
  SHARD_UNAUTHENTICATED = 16,
  SHARD_DESYNC = 64,             /* Ranks differ, or called different things. */
  SHARD_RANK_LOST = 65,          /* A rank died: shard_error_rank. */
  SHARD_CORRUPT = 66,            /* Stored bytes are not what was written. */
  SHARD_POISONED = 67,           /* Unusable after an earlier error. */
  SHARD_BACKEND_UNAVAILABLE = 68 /* Not on this machine or in this build. */
};

typedef struct shard_error shard_error;

/* Returns the code of an error. These functions accept NULL, which stands for
 * success: they then return SHARD_OK, "", -1 and "". Returned strings live as
 * long as the error. Any thread. */
SHARD_API shard_code shard_error_code(const shard_error* error) SHARD_NOEXCEPT;
/* Returns the message: the problem, the value that has it, and the remedy. One
 * line, UTF-8. */
SHARD_API const char* shard_error_message(const shard_error* error)
    SHARD_NOEXCEPT;
/* Returns the rank that the error is about, or -1. */
SHARD_API int32_t shard_error_rank(const shard_error* error) SHARD_NOEXCEPT;
/* Returns a JSON document with lists such as missing keys, or "". */
SHARD_API const char* shard_error_detail(const shard_error* error)
    SHARD_NOEXCEPT;
SHARD_API void shard_error_free(shard_error* error) SHARD_NOEXCEPT;

/* Returns the name of a code, such as "RANK_LOST"; "UNKNOWN_CODE" for other
 * values. Static storage. Any thread. */
SHARD_API const char* shard_code_name(shard_code code) SHARD_NOEXCEPT;

/* ---- Element types ------------------------------------------------------ */

/* The types of elements. Parameters are F32, BF16 or F16, and frozen ones F64
 * too: a plan may have others in F64, but no engine is made for it. The other
 * types are in files only. Q8 is an optimizer state in 8 bits, whose scales are
 * the tensor KEY.q8_scale. OPAQUE is a type of safetensors that libshard does
 * not read, such as complex numbers, or one that came later;
 * shard_checkpoint_tensor_type has its name. Such tensors are listed,
 * shard_checkpoint_read gives their bytes, and shard_checkpoint_convert and
 * _export copy them as they are; loading them is UNIMPLEMENTED. Frozen. */
typedef int32_t shard_dtype;
enum shard_dtype_values {
  SHARD_F32 = 1,
  SHARD_BF16 = 2,
  SHARD_F16 = 3,
  SHARD_F64 = 4,
  SHARD_Q8 = 5,
  SHARD_F8_E4M3 = 6,
  SHARD_F8_E5M2 = 7,
  SHARD_I8 = 16,
  SHARD_I16 = 17,
  SHARD_I32 = 18,
  SHARD_I64 = 19,
  SHARD_U8 = 20,
  SHARD_U16 = 21,
  SHARD_U32 = 22,
  SHARD_U64 = 23,
  SHARD_BOOL = 24,
  SHARD_OPAQUE = 32
};

/* Returns the name of an element type: "f32", "bf16", "opaque"; "unknown" for
 * another value. Static storage. Any thread. */
SHARD_API const char* shard_dtype_name(shard_dtype dtype) SHARD_NOEXCEPT;

/* Returns the bytes of an element; 0 for SHARD_OPAQUE, whose elements may have
 * any size, and for a value that is no type. Any thread. */
SHARD_API size_t shard_dtype_size(shard_dtype dtype) SHARD_NOEXCEPT;

/* The most dimensions that a tensor of a model has. */
enum shard_limits { SHARD_MAX_DIMS = 8 };

SHARD_END_DECLS

#endif /* SHARD_BASE_H_ */
