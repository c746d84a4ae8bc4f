/* SPDX-License-Identifier: Apache-2.0
 *
 * Layouts, for hosts that read or write tensors themselves: where a plan puts
 * each parameter, and its names (docs/flat-layout.md); the modules and buffers
 * of the plan's model. All functions here are pure and local: any thread.
 * Parameters, flat buffers, names, modules and buffers of the model are
 * numbered from 0. A number that does not exist is INVALID_ARGUMENT, whose
 * message says how many there are; shard_plan_get_info has these counts.
 * Ignored parameters, and buffers in ignored modules, are not stored:
 * FAILED_PRECONDITION.
 *
 * A range of elements is a first one, `begin`, and a number, `numel`. */

#ifndef SHARD_LAYOUT_H_
#define SHARD_LAYOUT_H_

#include "shard/base.h"
#include "shard/plan.h"

SHARD_BEGIN_DECLS

/* Where a parameter is, and of what kind. Set info->struct_size first, here and
 * in the other results below. */
typedef struct shard_param_info {
  size_t struct_size;
  int64_t begin; /* Its first element, in its flat buffer. */
  int64_t numel;
  int64_t shape[SHARD_MAX_DIMS]; /* 0 from ndim on. */
  int32_t ndim;
  shard_dtype dtype; /* The type it is stored in; see param_dtype. */
  int32_t trainable;
  int32_t group;
  int32_t unit;
  int32_t buffer;
  int32_t num_names;  /* The FQN and the aliases. */
  int32_t first_rank; /* The owners of its first and of its last element; */
  int32_t last_rank;  /* -1 without elements. */
  int32_t reserved;
} shard_param_info;
#define SHARD_PARAM_INFO_INIT \
  { sizeof(shard_param_info), 0, 0, {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Gets where a parameter is and how it is stored. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_param_info(
    const shard_plan* plan, int32_t param,
    shard_param_info* info) SHARD_NOEXCEPT;

/* A flat buffer: parameters one after the other, of one unit, dtype and param
 * group, all trainable or all frozen. Each rank of world_size owns shard_numel
 * of the full_numel + num_padded elements. */
typedef struct shard_buffer_info {
  size_t struct_size;
  int64_t full_numel; /* Elements of its parameters, without padding. */
  int64_t num_padded; /* At the end; beside parameters where these are whole. */
  int64_t shard_numel;
  int32_t num_params;
  int32_t unit;
  shard_dtype dtype;
  int32_t trainable;
  int32_t group;          /* -1: frozen. */
  shard_dtype grad_dtype; /* 0: frozen. */
} shard_buffer_info;
#define SHARD_BUFFER_INFO_INIT \
  { sizeof(shard_buffer_info), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Gets the size and the kind of a flat buffer. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_buffer_info(
    const shard_plan* plan, int32_t buffer,
    shard_buffer_info* info) SHARD_NOEXCEPT;

/* Gets the parameter at place `index` of the buffer's num_params, by ascending
 * offset. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_buffer_param(
    const shard_plan* plan, int32_t buffer, int32_t index,
    int32_t* param) SHARD_NOEXCEPT;

/* A range of a flat buffer. */
typedef struct shard_range {
  size_t struct_size;
  int64_t begin;
  int64_t numel;
  int64_t num_padded; /* Elements among these that are no parameter's. */
} shard_range;
#define SHARD_RANGE_INIT \
  { sizeof(shard_range), 0, 0, 0 }

/* Gets the range of a flat buffer that a rank owns. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_rank_range(
    const shard_plan* plan, int32_t buffer, int32_t rank,
    shard_range* range) SHARD_NOEXCEPT;

/* The part of a parameter that is in some range of its buffer. */
typedef struct shard_slice {
  size_t struct_size;
  int64_t begin; /* In the flat buffer. */
  int64_t numel;
  int64_t param_begin; /* The same, counted from the parameter's first. */
  int32_t param;
  int32_t reserved;
} shard_slice;
#define SHARD_SLICE_INIT \
  { sizeof(shard_slice), 0, 0, 0, 0, 0 }

/* Gets the parameter slices that intersect `numel` elements of a flat buffer
 * from `begin` on, by ascending offset. All other elements of the range are
 * padding, also those behind the buffer. Writes at most `capacity` slices, and
 * the number of all slices to `count`; with capacity 0 `slices` may be NULL.
 * Set the first slice's struct_size: it is the size of each. Error: a negative
 * `begin` or `numel`. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_slices(
    const shard_plan* plan, int32_t buffer, int64_t begin, int64_t numel,
    shard_slice* slices, size_t capacity, size_t* count) SHARD_NOEXCEPT;

/* Gets a pointer to the parameter in the host's own copy of its whole flat
 * buffer: `data` has `numel` elements of the buffer's dtype, with or without
 * the padding behind the last parameter; another number is an error. Reads
 * nothing at `data`, which may be the host's memory or the device's: `view` is
 * in the same. shard_engine_param gives the pointer into an engine's memory. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_param_view(
    const shard_plan* plan, int32_t param, void* data, int64_t numel,
    void** view) SHARD_NOEXCEPT;

/* A name of a parameter. Names are numbered in module-walk order; those of
 * ignored parameters, and those in ignored modules, are left out. */
typedef struct shard_name_info {
  size_t struct_size;
  int32_t param;
  int32_t module; /* The module that it is in. */
  int32_t index;  /* Among the parameter's names: 0 its FQN, else an alias. */
  int32_t reserved;
} shard_name_info;
#define SHARD_NAME_INFO_INIT \
  { sizeof(shard_name_info), 0, 0, 0, 0 }

/* Gets the parameter and the module of a name. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_name_info(
    const shard_plan* plan, int32_t name, shard_name_info* info) SHARD_NOEXCEPT;

/* Gets the parameter's FQN, with `index` 0, or an alias. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_param_name(
    const shard_plan* plan, int32_t param, int32_t index,
    const char** name) SHARD_NOEXCEPT;

/* Finds the parameter that has this FQN or alias, an ignored one too. NOT_FOUND
 * says where its path ends. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_find_param(
    const shard_plan* plan, const char* fqn, int32_t* param) SHARD_NOEXCEPT;

/* A module of the plan's model. */
typedef struct shard_module_info {
  size_t struct_size;
  int32_t module; /* Its id. */
  int32_t parent; /* -1: the root. */
  int32_t depth;  /* 0: the root. */
  int32_t ignored;
  int32_t first_name; /* The first of its num_names names, in a row. */
  int32_t num_names;
} shard_module_info;
#define SHARD_MODULE_INFO_INIT \
  { sizeof(shard_module_info), 0, 0, 0, 0, 0, 0 }

/* Gets the module at place `index` of the module walk: pre-order, the root
 * first. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_module_info(
    const shard_plan* plan, int32_t index,
    shard_module_info* info) SHARD_NOEXCEPT;

/* Get the FQN and the class name of a module, by its id; "" is the root's FQN.
 */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_module_name(
    const shard_plan* plan, int32_t module, const char** name) SHARD_NOEXCEPT;
SHARD_NODISCARD SHARD_API shard_error* shard_plan_module_class(
    const shard_plan* plan, int32_t module,
    const char** class_name) SHARD_NOEXCEPT;

/* A buffer of the plan's model, as shard_model_add_buffer declared it. It is in
 * no flat buffer. */
typedef struct shard_model_buffer_info {
  size_t struct_size;
  int64_t numel;
  int64_t shape[SHARD_MAX_DIMS]; /* 0 from ndim on. */
  int32_t ndim;
  shard_dtype dtype;
  int32_t module;     /* The module that it is in. */
  int32_t persistent; /* 1: in checkpoints and state dicts. */
} shard_model_buffer_info;
#define SHARD_MODEL_BUFFER_INFO_INIT \
  { sizeof(shard_model_buffer_info), 0, {0}, 0, 0, 0, 0 }

/* Gets the declaration of a buffer of the model, by its id, which
 * shard_engine_buffer takes too. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_model_buffer_info(
    const shard_plan* plan, int32_t buffer,
    shard_model_buffer_info* info) SHARD_NOEXCEPT;

/* Gets the FQN of a buffer of the model, by its id. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_model_buffer_name(
    const shard_plan* plan, int32_t buffer, const char** name) SHARD_NOEXCEPT;

/* Removes from `name` the components that wrappers leave in it, wherever they
 * stand: _fsdp_wrapped_module, _checkpoint_wrapped_module, _fpw_module,
 * _orig_mod. The last component always stays. With `strip_leading_module` 1 it
 * also removes one leading "module.", which is DDP's. Any thread. */
SHARD_NODISCARD SHARD_API shard_error* shard_clean_tensor_name(
    const char* name, int32_t strip_leading_module, char* buffer,
    size_t capacity, size_t* length) SHARD_NOEXCEPT;

SHARD_END_DECLS

#endif /* SHARD_LAYOUT_H_ */
