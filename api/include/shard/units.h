/* SPDX-License-Identifier: Apache-2.0
 *
 * Units of an engine, in forward and backward passes.
 *
 * Passes go unit by unit (shard_plan_options.wrap):
 *
 *   acquire(FORWARD)  compute  release             for each unit
 *   acquire(BACKWARD) compute  mark_unit_grads_ready  release
 *   shard_engine_step
 *
 * In stages 0 and 1 on ranks that share memory all of these calls but the step
 * are optional. In stages 2 and 3 those of the backward pass are needed, and in
 * stage 3 without shared memory those of both passes. Units of one nesting
 * depth share transient memory: one more of them may be in use at once than the
 * plan's prefetch allows.
 *
 * In every stage alike, a step counts the gradients that this rank declared
 * (mark_unit_grads_ready, mark_param_grad_ready) since the last step or
 * zero_grad, and no others, whatever values the others hold. A rank that
 * declared no gradients, because it released its units as they were or acquired
 * none, has none in this step; see missing_grads. This rule holds from the
 * rank's first acquire for a backward pass, or its first declaration, on. Until
 * then, and always in a host that makes no such call, all whole gradients count
 * with the values that they hold. Only ranks that share memory, or that have
 * missing_grads, may differ in whether they have made such a call.
 *
 * States of a unit: IDLE, FORWARD, BACKWARD_PRE, BACKWARD_POST; of the engine:
 * IDLE, FORWARD_BACKWARD, SUMMON_FULL_PARAMS. A call in the wrong state is
 * FAILED_PRECONDITION, which names the state. COLLECTIVE* marks calls that
 * exchange something with the other ranks where that is needed. There an error
 * on one rank is the error of all ranks, and final, so that later calls return
 * it, unless all ranks made the same mistake. Ranks that exchange different
 * things get DESYNC. */

#ifndef SHARD_UNITS_H_
#define SHARD_UNITS_H_

#include "shard/base.h"
#include "shard/engine.h"

SHARD_BEGIN_DECLS

/* The pass that a unit is acquired for. Frozen. */
typedef int32_t shard_pass;
enum shard_pass_values {
  SHARD_PASS_FORWARD = 1,
  SHARD_PASS_BACKWARD = 2,
  /* As BACKWARD, but the unit's gradients do not start as zeros: the host
   * writes every element. Elements that the host leaves out are unspecified.
   * Not with missing_grads. */
  SHARD_PASS_BACKWARD_OVERWRITE = 3
};

/* Acquires a unit for a pass: IDLE to FORWARD or BACKWARD_PRE. When the call
 * returns, the unit's parameters can be read; on a GPU, by work that the host's
 * stream is given from then on, and the call may return before they are there.
 * Where ranks share memory, and in stages 0 to 2, nothing is gathered, and it
 * waits only for an update that is still on its way (overlap). In stage 3
 * without shared memory it gathers the parameters, and fetches ahead those of
 * the units that were acquired next in the step before. Where ranks of several
 * hosts do so, those of a host share the memory, and all acquire and release
 * units in the same order (DESYNC if not). For a backward pass where gradients
 * are sharded it waits until there is room for the unit's gradients, which with
 * BACKWARD are zeros. Whole gradients, also those that a plan of stage 2 or 3
 * keeps whole, have the values that the host left (shard_engine_zero_grad).
 * `timeout` in seconds; 0: the engine's. COLLECTIVE*, blocks. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_unit_acquire(
    shard_engine* engine, int32_t unit, shard_pass pass,
    double timeout) SHARD_NOEXCEPT;

/* Releases an acquired unit: FORWARD, BACKWARD_PRE or BACKWARD_POST to IDLE. A
 * unit that is released from BACKWARD_PRE has no gradients in this pass; with
 * missing_grads it has those that shard_engine_mark_param_grad_ready declared.
 * Where such gradients are sharded the release declares the unit as
 * shard_engine_mark_unit_grads_ready does, is COLLECTIVE*, and waits for the
 * other ranks, at most for the engine's timeout. Every other release is local
 * and does not wait. Errors: INVALID_ARGUMENT for a unit that does not exist;
 * FAILED_PRECONDITION for one that is IDLE, before
 * shard_engine_broadcast_params, and while parameters are summoned. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_unit_release(
    shard_engine* engine, int32_t unit) SHARD_NOEXCEPT;

/* Gets all parameters of a unit in one call, by ascending id. `params`, `data`
 * and `grads` have `capacity` entries and receive as many, each parameter's id,
 * elements and gradient; each may be NULL. The entries behind those, of as
 * many as the plan has parameters, are set to 0 or NULL; after an error all of
 * these are. `count` receives the number of all, and may be NULL. A frozen
 * parameter's gradient is NULL; other errors are those of shard_engine_param
 * and, unless `grads` is NULL, shard_engine_grad. The three arrays are in the
 * host's memory, and the elements where these functions say. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_unit_params(
    shard_engine* engine, int32_t unit, int32_t* params, const void** data,
    void** grads, size_t capacity, size_t* count) SHARD_NOEXCEPT;

/* Declares that this rank's gradients of the unit are written and that the host
 * no longer touches them: BACKWARD_PRE to BACKWARD_POST. The gradients are
 * reduced while the host goes on. In stages 0 and 1 also from IDLE. After
 * shard_engine_mark_param_grad_ready for some parameters of the unit, the
 * others have none in this pass (missing_grads). Once per step, but for passes
 * that accumulate (shard_engine_set_accumulate). COLLECTIVE*. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_mark_unit_grads_ready(
    shard_engine* engine, int32_t unit) SHARD_NOEXCEPT;

/* Declares the gradient of one parameter; the last one of a unit makes the unit
 * ready. A parameter that does not exist, or is frozen, is an error of all
 * ranks where a wrong unit in shard_engine_mark_unit_grads_ready would be.
 * COLLECTIVE*. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_mark_param_grad_ready(
    shard_engine* engine, int32_t param) SHARD_NOEXCEPT;

/* Sets whether backward passes accumulate. With 1, another pass follows before
 * the step for the gradients that become ready from here on; with 0, the
 * initial value, they are the last of the step. (PyTorch calls this no_sync.)
 * In stages 0 and 1, and with the plan's whole_grads, the host adds to its
 * gradients and nothing is exchanged; where gradients are sharded each pass is
 * reduced and added to this rank's sum. The same on every rank. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_set_accumulate(
    shard_engine* engine, int32_t accumulate) SHARD_NOEXCEPT;

SHARD_END_DECLS

#endif /* SHARD_UNITS_H_ */
