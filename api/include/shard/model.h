/* SPDX-License-Identifier: Apache-2.0
 *
 * Models: the modules, parameters and buffers that a host declares. */

#ifndef SHARD_MODEL_H_
#define SHARD_MODEL_H_

#include "shard/base.h"

SHARD_BEGIN_DECLS

/* A tree of modules with named parameters and buffers. Modules, parameters and
 * buffers have dense ids from 0 up, each in the order of adding; module 0 is
 * the root. The outputs for ids may be NULL. The fully qualified name (FQN) of
 * a parameter or buffer joins the names on its path with dots. A name has no
 * dots and no control characters, and with its path at most 65000 bytes. A
 * module uses each name once. */
typedef struct shard_model shard_model;

/* Creates a model whose root module has the class `class_name`, which may be
 * NULL. Errors: a class that is not UTF-8. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_model_create(
    const char* class_name, shard_model** model) SHARD_NOEXCEPT;

/* Adds a module within `parent`. `name` is one path component; `class_name` may
 * be NULL; `module` receives the id. Errors: a parent that does not exist, a
 * bad name, a name that `parent` has already, a class that is not UTF-8.
 * Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_model_add_module(
    shard_model* model, int32_t parent, const char* name,
    const char* class_name, int32_t* module) SHARD_NOEXCEPT;

/* Adds a trainable parameter of shape[0..ndim), row-major; ndim 0 is a scalar,
 * and `shape` may then be NULL. A dimension may be 0. Errors: a bad or taken
 * name, an unknown dtype, ndim above SHARD_MAX_DIMS, a negative dimension, a
 * size beyond int64. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_model_add_param(
    shard_model* model, int32_t module, const char* name, shard_dtype dtype,
    const int64_t* shape, size_t ndim, int32_t* param) SHARD_NOEXCEPT;

/* Adds a buffer of shape[0..ndim), as torch's register_buffer does: a tensor of
 * the host that is neither stepped nor sharded, such as the running_mean (f32)
 * and num_batches_tracked (i64) of a batch norm. Every rank has it whole, zero
 * at first, and the host reads and writes it (shard_engine_buffer);
 * shard_engine_broadcast_buffers makes it the same on all ranks. `persistent`
 * 1: it is saved in checkpoints and state dicts under its FQN, with the role
 * SHARD_ROLE_BUFFER, and loaded from them; 0: it is in neither. A plan keeps
 * the dtype, whatever its param_dtype. The flat buffers of a plan, which
 * shard_plan_buffer_info describes, are something else: they hold parameters.
 *
 * Any dtype but SHARD_Q8 and SHARD_OPAQUE. `shape` may be NULL for ndim 0, a
 * scalar; a dimension may be 0. Errors: a bad or taken name, an unknown dtype,
 * ndim above SHARD_MAX_DIMS, a negative dimension, a size beyond int64, a
 * `persistent` other than 0 and 1. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_model_add_buffer(
    shard_model* model, int32_t module, const char* name, shard_dtype dtype,
    const int64_t* shape, size_t ndim, int32_t persistent,
    int32_t* buffer) SHARD_NOEXCEPT;

/* Gives `param` another name, for tied weights. The parameter is stored,
 * reduced and updated once, under the name that comes first in module-walk
 * order. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_model_tie(
    shard_model* model, int32_t module, const char* name,
    int32_t param) SHARD_NOEXCEPT;

/* Freezes a parameter: it keeps its values and has no gradient and no optimizer
 * state. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_model_freeze(
    shard_model* model, int32_t param) SHARD_NOEXCEPT;

/* Ignore a parameter, or a module with everything below it: libshard neither
 * stores nor touches ignored parameters and buffers. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_model_ignore_param(
    shard_model* model, int32_t param) SHARD_NOEXCEPT;
SHARD_NODISCARD SHARD_API shard_error* shard_model_ignore_module(
    shard_model* model, int32_t module) SHARD_NOEXCEPT;

/* Gives params[0..count) an optimizer, or hyperparameters, of their own: a
 * param group. `optimizer` is a text as in shard_plan_options, or "?key=value"
 * for the plan's optimizer with other values, such as "?weight_decay=0", or ""
 * for the plan's optimizer as it is; the text is read when a plan is made.
 * Groups have ids from 1 up; group 0 holds every parameter that is in no other
 * group, with the plan's optimizer. Errors: no parameters, more than the model
 * has, a parameter that does not exist, has a group already or is listed twice.
 * Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_model_add_param_group(
    shard_model* model, const char* optimizer, const int32_t* params,
    size_t count, int32_t* group) SHARD_NOEXCEPT;

SHARD_API void shard_model_free(shard_model* model) SHARD_NOEXCEPT;

SHARD_END_DECLS

#endif /* SHARD_MODEL_H_ */
