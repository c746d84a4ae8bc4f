/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of an engine: a rank's parameters and gradients, their first values,
 * buffers of the model, and memory of the host's own in their place.
 *
 * Pointers into the engine's memory are given by id, one tensor at a time;
 * shard_engine_unit_params gives all of a unit. */

#ifndef SHARD_TENSORS_H_
#define SHARD_TENSORS_H_

#include "shard/base.h"
#include "shard/engine.h"

SHARD_BEGIN_DECLS

/* ---- Parameters --------------------------------------------------------- */

/* Gets the parameter's elements, row-major, and their number; `numel` may be
 * NULL. The elements are in the device's memory, copies of shard_engine_summon
 * in the host's. Ranks that share a host's memory all read the same copy, which
 * libshard alone writes. After shard_engine_begin_step a unit's parameters may
 * change once its gradients are ready. The pointer is valid as long as the
 * engine, or until shard_engine_add_param_group or _set_trainable; where
 * parameters are sharded (stage 3 without shared memory), from
 * shard_engine_unit_acquire to _release, and FAILED_PRECONDITION else. A
 * zero-size parameter has numel 0. Not during a step. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_param(
    shard_engine* engine, int32_t param, const void** data,
    int64_t* numel) SHARD_NOEXCEPT;

/* Gets the parameter's elements for the host to write: on rank 0 before
 * shard_engine_broadcast_params, where parameters are not sharded
 * (shard_engine_set_param sets sharded ones), and in the copies of
 * shard_engine_summon. The first are in the device's memory, the copies in the
 * host's. FAILED_PRECONDITION else. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_writable_param(
    shard_engine* engine, int32_t param, void** data,
    int64_t* numel) SHARD_NOEXCEPT;

/* Copies a parameter's initial values from the host's memory into the engine.
 * `bytes` must be the parameter's size; memory of a GPU is INVALID_ARGUMENT for
 * an engine on a GPU. Only rank 0's values count: other ranks may make the
 * call, which checks their arguments and drops their values, so that all ranks
 * can run the same code. Local; FAILED_PRECONDITION after
 * shard_engine_broadcast_params. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_set_param(
    shard_engine* engine, int32_t param, const void* data,
    size_t bytes) SHARD_NOEXCEPT;

/* Sends rank 0's parameters to all ranks. COLLECTIVE, blocks; once, before the
 * first step. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_broadcast_params(
    shard_engine* engine, double timeout) SHARD_NOEXCEPT;

/* ---- Gradients ---------------------------------------------------------- */

/* Gets this rank's gradient of the parameter, same shape, in the device's
 * memory, to be written by the host between steps; `numel` may be NULL. The
 * gradient starts as zero and keeps its values until the host changes them. Its
 * values are unspecified after a step with max_grad_norm, skip_nonfinite or
 * dynamic loss_scaling, even a skipped one, and after every step without shared
 * memory. A step with missing_grads zeroes the gradients that do not count.
 * Where gradients are sharded (stages 2 and 3) the gradient exists, zero at
 * first, from the acquisition of its unit for the backward pass until it is
 * declared ready, and is FAILED_PRECONDITION else. A frozen parameter is
 * FAILED_PRECONDITION too. The pointer is valid as long as
 * shard_engine_param's. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_grad(
    shard_engine* engine, int32_t param, void** data,
    int64_t* numel) SHARD_NOEXCEPT;

/* Sets this rank's gradients to zero; drops the sums that were accumulated in
 * sharded gradients, and the declarations of gradients that are ready. Where
 * gradients are sharded a sum is made of all ranks' gradients, so every rank
 * calls this function equally often between two steps, in the same places
 * between its passes; the ranks need not wait for each other there. When the
 * numbers of calls differ, all ranks get DESYNC: with missing_grads at the
 * step, and the ranks that lag may still make the call; without, at the first
 * unit that is reduced, and then the error is final. Where gradients are whole
 * each rank zeroes its own as it likes; on ranks that share no memory, without
 * missing_grads, only until it declares them ready. Local; waits for reductions
 * that are on their way. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_zero_grad(
    shard_engine* engine) SHARD_NOEXCEPT;

/* ---- Memory of the host's own ------------------------------------------- */

/* Binds memory of the host's own to a parameter and its gradient, for hosts
 * whose kernels cannot use the engine's memory. It is the device's memory, as
 * the engine's tensors. A binding replaces the one before; NULL with 0 bytes
 * binds nothing; NULL for both unbinds. Stages 0 to 2.
 *
 * `values` receives the parameter: in this call, or in the first broadcast or
 * load; and in every call that changes parameters, shard_engine_step first of
 * all. With the engine's overlap, a step leaves this to the next
 * shard_engine_unit_acquire of the unit, after the last step too. The engine
 * never reads `values`: before the broadcast, the host sets parameters as
 * without a binding. A load that fails leaves `values` as they were.
 *
 * `grad` takes the place of the engine's gradient, and shard_engine_grad
 * returns it. This call leaves its values as they are. From then on they are
 * zeroed where the engine's would be: by shard_engine_zero_grad, a change of
 * the plan, and shard_engine_join; where gradients are sharded, by the
 * acquisition for the backward pass; where missing_grads is not ERROR, when
 * they do not count. A step changes no others. The engine reads them between
 * their declaration and the end of the step. While the parameter is frozen it
 * does not use them. Once unbound, the engine's own gradient is unspecified
 * until the host writes or zeroes it.
 *
 * The memory has the bytes of the parameter, in the types of shard_engine_param
 * and _grad (shard_buffer_info). It stays the host's, and must be valid until
 * it is bound no more or the engine is freed; freeing does not touch it. Each
 * rank binds memory of its own, or none: results are the same to the bit.
 * shard_engine_add_param_group and _set_trainable keep bindings.
 *
 * Cost: every step copies each bound tensor of a parameter that is trainable,
 * one read and one write per byte, on the calling thread, and so does each pass
 * that accumulates sharded gradients. In fp32 on 2 ranks, with both bound, a
 * step of AdamW moves 32 bytes per parameter and rank instead of 16.
 *
 * Errors: INVALID_ARGUMENT for a parameter that does not exist, for other
 * sizes, for memory that overlaps the engine's or other bound memory of this
 * rank, for memory that does not lie where the engine's tensors do
 * (shard_engine_device), where that is known, and in stage 3;
 * FAILED_PRECONDITION for a parameter that is ignored,
 * the gradient of a frozen one, while units are in use, gradients are ready or
 * parameters are summoned, and after shard_engine_begin_step. After these
 * errors everything is as before. A copy into `values` that fails or takes too
 * long (RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED) is final, as in a step: `values`
 * must then be valid until the engine is freed. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_bind_param(
    shard_engine* engine, int32_t param, void* values, size_t values_bytes,
    void* grad, size_t grad_bytes) SHARD_NOEXCEPT;

/* ---- Buffers ------------------------------------------------------------ */

/* Gets this rank's copy of a buffer of shard_model_add_buffer, row-major, for
 * the host to read and write, and its number of elements; `numel` may be NULL.
 * The memory is the host's (never a device's), aligned to 64 bytes, zero at
 * first, and the engine's own: the pointer is valid, and stays the same, until
 * shard_engine_free. The calls that change the values are
 * shard_engine_broadcast_buffers and loads of checkpoints and state dicts. A
 * load that fails while tensors are read leaves the buffers that it loads zero.
 * A buffer without elements has numel 0, and `data` may be NULL. Any state of
 * the engine. Errors: INVALID_ARGUMENT for an id that does not exist;
 * FAILED_PRECONDITION for a buffer in an ignored module. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_buffer(
    shard_engine* engine, int32_t buffer, void** data,
    int64_t* numel) SHARD_NOEXCEPT;

/* Replaces the buffers of all ranks by those of rank `root`, those that are not
 * persistent too, as DDP's broadcast_buffers does before a forward pass. A host
 * calls this function after it has set first values, and, where ranks keep
 * statistics of their own, whenever these should become the same. A save stores
 * rank 0's, and needs no broadcast before it. A broadcast waits for all
 * transfers of the engine: before each forward pass, it leaves overlap and
 * prefetch nothing to hide.
 * `timeout` in seconds; 0: the engine's. The same root on every rank. Allowed
 * between steps, and before shard_engine_broadcast_params, which leaves buffers
 * as they are. COLLECTIVE, blocks. Errors: INVALID_ARGUMENT for a root that is
 * no rank; FAILED_PRECONDITION while units are in use, gradients are declared
 * ready or parameters are summoned; DESYNC, also where another rank is in
 * shard_engine_join. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_broadcast_buffers(
    shard_engine* engine, int32_t root, double timeout) SHARD_NOEXCEPT;

SHARD_END_DECLS

#endif /* SHARD_TENSORS_H_ */
