/* SPDX-License-Identifier: Apache-2.0
 *
 * State dicts.
 *
 * A state dict has named tensors and numbers in memory, under the keys of
 * checkpoints: this rank's part of an engine's state, or the state that a host
 * loads into an engine. Numbers are "state.FQN.step" and
 * "param_groups.FQN.KEY", such as .lr; with dynamic loss_scaling the state of a
 * whole model also has those of shard_engine_set_loss_scale.
 *
 *   shard_state_dict_get     this rank's elements of every tensor; local
 *   shard_state_dict_gather  every tensor whole, on one rank or all, one after
 *                            the other in bounded memory; collective
 *   shard_state_dict_load    loads either, from every rank or from rank 0
 *                            alone; collective */

#ifndef SHARD_STATE_H_
#define SHARD_STATE_H_

#include "shard/base.h"
#include "shard/checkpoint.h"
#include "shard/engine.h"

SHARD_BEGIN_DECLS

typedef struct shard_state_dict shard_state_dict;

typedef struct shard_state_dict_options {
  size_t struct_size;
  /* Seconds. Default: the engine's timeout, after which a rank that does not
   * come is found in any case. */
  double timeout;
  shard_state_filter filter;
  /* shard_state_dict_get only. 1: tensors are copied to the host's memory, and
   * keep their values. Default: tensors are pointers into the engine, valid
   * until the next call that changes or frees the engine. They are in the
   * device's memory, but for buffers of the model and offloaded optimizer
   * states, which are in the host's. */
  int32_t copy;
  int32_t reserved;
} shard_state_dict_options;
#define SHARD_STATE_DICT_OPTIONS_INIT \
  { sizeof(shard_state_dict_options), 0, {0, 0, NULL, 0, 0, 0}, 0, 0 }

/* Gets the part of an engine's state that this rank owns; rank 0 owns the
 * buffers of shard_model_add_buffer. Other names of tied parameters are listed
 * as aliases, without elements; trainable, group and step of shard_tensor_info
 * are not filled. Local: no other rank takes part. Errors: FAILED_PRECONDITION
 * unless between steps; a module that does not exist. */
SHARD_NODISCARD SHARD_API shard_error* shard_state_dict_get(
    shard_engine* engine, const shard_state_dict_options* options,
    shard_state_dict** state) SHARD_NOEXCEPT;

/* Returns the number of tensors, aliases among them; 0 for NULL. Any thread,
 * here and below. */
SHARD_API int64_t shard_state_dict_num_tensors(const shard_state_dict* state)
    SHARD_NOEXCEPT;
/* Get a tensor's type and shape, and its key. */
SHARD_NODISCARD SHARD_API shard_error* shard_state_dict_tensor(
    const shard_state_dict* state, int64_t tensor,
    shard_tensor_info* info) SHARD_NOEXCEPT;
SHARD_NODISCARD SHARD_API shard_error* shard_state_dict_tensor_key(
    const shard_state_dict* state, int64_t tensor, char* buffer,
    size_t capacity, size_t* length) SHARD_NOEXCEPT;
/* Gets the elements that this rank holds: `numel` from `begin` on, at `data`,
 * which is NULL when there are none. Each output may be NULL. `data` is in the
 * device's memory after shard_state_dict_get without `copy`, but for buffers of
 * the model and offloaded optimizer states, and in the host's else. */
SHARD_NODISCARD SHARD_API shard_error* shard_state_dict_local(
    const shard_state_dict* state, int64_t tensor, int64_t* begin,
    int64_t* numel, const void** data) SHARD_NOEXCEPT;
/* Gets where these elements lie, as shard_engine_device does: the kind of the
 * device, and its number, which is 0 for the host's memory. That is also the
 * place of a tensor without elements here. `ordinal` may be NULL. */
SHARD_NODISCARD SHARD_API shard_error* shard_state_dict_device(
    const shard_state_dict* state, int64_t tensor, shard_device_kind* kind,
    int32_t* ordinal) SHARD_NOEXCEPT;
/* Finds the tensor of a key. NOT_FOUND when there is none. */
SHARD_NODISCARD SHARD_API shard_error* shard_state_dict_find(
    const shard_state_dict* state, const char* key,
    int64_t* tensor) SHARD_NOEXCEPT;
/* Return how many numbers there are, 0 for NULL, and get each with its key, by
 * ascending key. `value` may be NULL. */
SHARD_API int64_t shard_state_dict_num_numbers(const shard_state_dict* state)
    SHARD_NOEXCEPT;
SHARD_NODISCARD SHARD_API shard_error* shard_state_dict_number(
    const shard_state_dict* state, int64_t number, double* value, char* buffer,
    size_t capacity, size_t* length) SHARD_NOEXCEPT;

/* Receives a tensor. Its elements are at `data`, in the host's memory, during
 * the call only; `data` is NULL for an alias, and for a tensor without
 * elements. A result other than 0 ends the gathering: CANCELLED. */
typedef int32_t (*shard_tensor_fn)(const char* key,
                                   const shard_tensor_info* info,
                                   const void* data, void* user_data);

/* Calls `take` with every tensor, whole, on rank `rank`, or on all ranks when
 * `rank` is -1. Other ranks may pass NULL. Needs memory for the largest tensor
 * and 16 MiB, on the other ranks 16 MiB. Same options and `rank` on every rank.
 * COLLECTIVE, blocks; `user_data` is used during the call. Errors are those of
 * shard_state_dict_get, and CANCELLED on all ranks. */
SHARD_NODISCARD SHARD_API shard_error* shard_state_dict_gather(
    shard_engine* engine, const shard_state_dict_options* options, int32_t rank,
    shard_tensor_fn take, void* user_data) SHARD_NOEXCEPT;

/* Creates an empty state dict, for a host to fill. */
SHARD_NODISCARD SHARD_API shard_error* shard_state_dict_create(
    shard_state_dict** state) SHARD_NOEXCEPT;

/* Adds a whole tensor, whose bytes are in the host's memory, and must stay
 * where they are until the state dict was loaded or freed. Keys that begin with
 * "state." are optimizer states. Errors: a key that a tensor or a number has
 * already; a shape, dtype and `bytes` that do not fit each other; a state dict
 * of shard_state_dict_get. */
SHARD_NODISCARD SHARD_API shard_error* shard_state_dict_add(
    shard_state_dict* state, const char* key, shard_dtype dtype,
    const int64_t* shape, size_t ndim, const void* data,
    size_t bytes) SHARD_NOEXCEPT;
/* Adds a number. A second one of the same key replaces the first. Errors: a key
 * that a tensor has; a value that is not finite. */
SHARD_NODISCARD SHARD_API shard_error* shard_state_dict_add_number(
    shard_state_dict* state, const char* key, double value) SHARD_NOEXCEPT;

/* Loads a state dict as shard_checkpoint_load does a checkpoint, with the same
 * options, report and errors. With `from_rank0` 1 rank 0's state dict is loaded
 * and sent tensor by tensor; `state` may be NULL on other ranks. Else every
 * rank gives a state dict with the same tensors, whole or with the elements
 * that the rank owns. COLLECTIVE, blocks. */
SHARD_NODISCARD SHARD_API shard_error* shard_state_dict_load(
    shard_engine* engine, const shard_state_dict* state,
    const shard_load_options* options, int32_t from_rank0,
    shard_load_report* report) SHARD_NOEXCEPT;

SHARD_API void shard_state_dict_free(shard_state_dict* state) SHARD_NOEXCEPT;

SHARD_END_DECLS

#endif /* SHARD_STATE_H_ */
