/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines: one rank's training. Parameters, gradients, units, steps, changes at
 * run time, and schedules of learning rates. */

#ifndef SHARD_ENGINE_H_
#define SHARD_ENGINE_H_

#include "shard/base.h"
#include "shard/comm.h"
#include "shard/plan.h"

SHARD_BEGIN_DECLS

/* How a step treats parameters that got no gradient since the last step
 * ("Units" below says which parameters these are). Frozen. */
typedef int32_t shard_missing_grads;
enum shard_missing_grads_values {
  /* The step is an error that names their units. The default. */
  SHARD_MISSING_ERROR = 0,
  /* Their gradients are zeros. */
  SHARD_MISSING_ZERO = 1,
  /* Parameters that got no gradient on any rank are left as they are:
   * parameter, states and step count. Where only other ranks have a gradient of
   * a parameter, this rank's counts as zeros. */
  SHARD_MISSING_SKIP = 2
};

typedef struct shard_engine_options {
  size_t struct_size;
  /* Seconds for creation and the default of this engine's waits. Default: the
   * communicator's. */
  double timeout;
  /* The factor by which the host multiplies its loss, so that fp16 gradients do
   * not vanish; steps divide by it. Default "": no factor. The same on every
   * rank.
   *   "static?scale=1024"
   *   "dynamic?init_scale=65536&growth_factor=2&backoff_factor=0.5
   *    &growth_interval=2000&min_scale=1&max_scale=16777216"
   *                               (without the line break)
   * static needs its scale. dynamic skips steps with gradients that are not
   * finite, on all ranks, and lowers the scale by backoff_factor;
   * growth_interval good steps in a row raise it. Values not given are those
   * shown. */
  const char* loss_scaling;
  /* Default SHARD_MISSING_ERROR. The same on every rank. */
  shard_missing_grads missing_grads;
  /* 1: where ranks share no memory, shard_engine_step returns while parameters
   * are still on their way to this rank: acquire each unit before you read its
   * parameters. The same on every rank. */
  int32_t overlap;
  /* Where the engine's tensors live and its kernels run: "cpu" (default), or
   * "cpu-async?max_delay=SECONDS&seed=N", which runs every kernel on a thread
   * after a pause, to find code that does not wait as it must. */
  const char* device;
} shard_engine_options;
#define SHARD_ENGINE_OPTIONS_INIT \
  { sizeof(shard_engine_options), 0, NULL, 0, 0, NULL }

typedef struct shard_engine shard_engine;

/* Allocates buffers and checks that all ranks hold the same plan and options.
 * COLLECTIVE, blocks. Keeps plan and comm alive. Errors beside those of every
 * collective: DESYNC when the ranks' plans, loss_scaling, missing_grads or
 * overlap differ; INVALID_ARGUMENT when the plan's world size is not the
 * communicator's, or for a bad option; UNIMPLEMENTED for a dtype that cannot be
 * stepped; RESOURCE_EXHAUSTED when there is not enough memory, or when no
 * checkpoint could hold the training state; BACKEND_UNAVAILABLE, naming all
 * libraries that were tried, when muon finds no CBLAS. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_create(
    const shard_plan* plan, shard_comm* comm,
    const shard_engine_options* options, shard_engine** engine) SHARD_NOEXCEPT;

/* Gets the parameter's elements, row-major, and their number; `numel` may be
 * NULL. Ranks that share a host's memory all read the same copy. The pointer is
 * valid as long as the engine, or until shard_engine_add_param_group or
 * _set_trainable; where parameters are sharded (stage 3 without shared memory),
 * from shard_engine_unit_acquire to _release, and FAILED_PRECONDITION else. A
 * zero-size parameter has numel 0. Not during a step. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_param(
    shard_engine* engine, int32_t param, const void** data,
    int64_t* numel) SHARD_NOEXCEPT;

/* Gets the parameter's elements for the host to write: on rank 0 before
 * shard_engine_broadcast_params, where parameters are not sharded
 * (shard_engine_set_param sets sharded ones), and in the copies of
 * shard_engine_summon. FAILED_PRECONDITION else. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_writable_param(
    shard_engine* engine, int32_t param, void** data,
    int64_t* numel) SHARD_NOEXCEPT;

/* Gets the plan that is in force; the caller frees it. The engine uses the plan
 * that it was created with until shard_engine_add_param_group or _set_trainable
 * puts another one in its place. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_plan(
    const shard_engine* engine, shard_plan** plan) SHARD_NOEXCEPT;

/* Gets this rank's gradient of the parameter, same shape, to be written by the
 * host between steps; `numel` may be NULL. The gradient starts as zero and
 * keeps its values until the host changes them. Its values are unspecified
 * after a step with max_grad_norm, skip_nonfinite or dynamic loss_scaling, even
 * a skipped one, and after every step without shared memory. A step with
 * missing_grads zeroes the gradients that do not count. Where gradients are
 * sharded (stages 2 and 3) the gradient exists, zero at first, from the
 * acquisition of its unit for the backward pass until it is declared ready, and
 * is FAILED_PRECONDITION else. A frozen parameter is FAILED_PRECONDITION too.
 * The pointer is valid as long as shard_engine_param's. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_grad(
    shard_engine* engine, int32_t param, void** data,
    int64_t* numel) SHARD_NOEXCEPT;

/* Binds memory of the host to a parameter and its gradient, for hosts whose
 * kernels cannot use the engine's memory. A binding replaces the one before;
 * NULL with 0 bytes binds nothing, so NULL for both unbinds. Stages 0 to 2.
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
 * Errors, after which all is as before but for a copy into `values` that fails
 * or takes too long (RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED), which is final as
 * in a step, and after which `values` must be valid until the engine is freed:
 * INVALID_ARGUMENT for a parameter that
 * does not exist, for other sizes, for memory that overlaps the engine's or
 * other bound memory of this rank, and in stage 3; FAILED_PRECONDITION for a
 * parameter that is ignored, the gradient of a frozen one, while units are in
 * use, gradients are ready or parameters are summoned, and after
 * shard_engine_begin_step. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_bind_param(
    shard_engine* engine, int32_t param, void* values, size_t values_bytes,
    void* grad, size_t grad_bytes) SHARD_NOEXCEPT;

/* Sets or gets a hyperparameter of a param group, by the key it has in the
 * optimizer's text: "lr" is the learning rate. `group` -1 means every group
 * that has the key; a flag is 0 or 1. A new value holds from the next step on,
 * and every rank must set the same before it: the step is DESYNC otherwise.
 * Errors leave all values as they were: a group that does not exist; NOT_FOUND
 * for a key that it does not have; a value out of range, with the range;
 * FAILED_PRECONDITION for a change that would need other states, for a key
 * whose value is a word, and between shard_engine_begin_step and its step.
 * get_hyper takes one group, and returns a word as its number;
 * shard_engine_group_text has the word itself. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_set_hyper(
    shard_engine* engine, int32_t group, const char* key,
    double value) SHARD_NOEXCEPT;
SHARD_NODISCARD SHARD_API shard_error* shard_engine_get_hyper(
    const shard_engine* engine, int32_t group, const char* key,
    double* value) SHARD_NOEXCEPT;

/* Writes the group's optimizer with the present value of every key:
 * "sgd?lr=0.1&momentum=0&...". Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_group_text(
    const shard_engine* engine, int32_t group, char* buffer, size_t capacity,
    size_t* length) SHARD_NOEXCEPT;

/* Sets an optimizer state of `param`, after shard_engine_broadcast_params, for
 * a run that began in another program. `values` has the `count` fp32 values of
 * the whole tensor; this rank keeps those that it owns. `state` is torch's
 * name, such as "exp_avg", or "master_param", the fp32 value of a bf16 or f16
 * parameter. States stored in fewer bits are rounded to nearest. "master_param"
 * leaves the parameter itself as it is until the next step. Every rank makes
 * the same calls. docs/numerics.md lists the names that states have in other
 * programs. Errors: NOT_FOUND for a state that the optimizer does not keep,
 * listing those that it keeps; a count that is not the state's; a value that is
 * not finite, or a negative second moment of adam; FAILED_PRECONDITION for a
 * frozen parameter, before the broadcast, or between shard_engine_begin_step
 * and its step. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_set_state(
    shard_engine* engine, int32_t param, const char* state, const float* values,
    size_t count) SHARD_NOEXCEPT;

/* Gets the number of completed steps; skipped steps do not count. The same on
 * every rank between steps. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_get_step(
    const shard_engine* engine, int64_t* step) SHARD_NOEXCEPT;

/* Sets the number of completed steps, 0 to 2^32 - 2. Bias corrections go on
 * from there, and an optimizer does not repeat the work of its first step.
 * Every rank sets the same, or the next step is DESYNC. shard_engine_step
 * beyond 2^32 - 2, and the load of a checkpoint of such a step, are
 * OUT_OF_RANGE. FAILED_PRECONDITION before the broadcast, or between
 * shard_engine_begin_step and its step. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_set_step(
    shard_engine* engine, int64_t step) SHARD_NOEXCEPT;

/* Gets the factor of the loss for the next backward pass; the same on every
 * rank. 1 without loss_scaling. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_loss_scale(
    const shard_engine* engine, double* scale) SHARD_NOEXCEPT;

/* Gets the number of good steps in a row since the loss scale changed or a step
 * was skipped; growth_interval of them raise the scale. torch's
 * GradScaler.state_dict calls this number _growth_tracker. The same on every
 * rank; 0 unless loss_scaling is dynamic. INVALID_ARGUMENT for NULL, and no
 * other error. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_growth_tracker(
    const shard_engine* engine, int64_t* good_steps) SHARD_NOEXCEPT;

/* Sets the loss scale and the growth tracker, for a run that goes on with the
 * dynamic loss scaling of another program. Checkpoints keep both numbers; so do
 * state dicts, as "loss_scale.scale" and "loss_scale.good_steps". Every rank
 * sets the same, or a later step is DESYNC. Errors leave both as they were:
 * INVALID_ARGUMENT for a scale that is no number of fp32 within the bounds of
 * loss_scaling, for another scale than the static one, and for good_steps
 * outside 0 to growth_interval - 1; FAILED_PRECONDITION before the broadcast
 * and within a step. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_set_loss_scale(
    shard_engine* engine, double scale, int64_t good_steps) SHARD_NOEXCEPT;

/* Sets this rank's gradients to zero; sums accumulated in sharded gradients,
 * and gradients declared ready, are dropped. Where gradients are sharded a sum
 * is made of all ranks' gradients, so every rank calls this function equally
 * often between two steps, in the same places between its passes. Ranks that
 * did not get DESYNC: with missing_grads at the step, where the ranks that lag
 * may still make the call; else at the first unit that is reduced, and then the
 * error is final. Ranks need not wait for each other there. Where gradients are
 * whole each rank zeroes its own as it likes; on ranks that share no memory,
 * without missing_grads, only until it declares them ready. Local; waits for
 * reductions that are on their way. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_zero_grad(
    shard_engine* engine) SHARD_NOEXCEPT;

/* Copies a parameter's initial values into the engine. `bytes` must be the
 * parameter's size. Only rank 0's values count: other ranks may make the call,
 * which checks their arguments and drops their values, so that all ranks can
 * run the same code. Local; FAILED_PRECONDITION after
 * shard_engine_broadcast_params. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_set_param(
    shard_engine* engine, int32_t param, const void* data,
    size_t bytes) SHARD_NOEXCEPT;

/* Sends rank 0's parameters to all ranks. COLLECTIVE, blocks; once, before the
 * first step. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_broadcast_params(
    shard_engine* engine, double timeout) SHARD_NOEXCEPT;

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
 * calls it after it has set first values, and where ranks keep statistics of
 * their own as often as these should be the same. A save stores rank 0's, and
 * needs no broadcast before it. It waits for all transfers of the engine, so
 * that one before each forward pass ends what overlap and prefetch had begun.
 * `timeout` in seconds; 0: the engine's. The same root on every rank. Allowed
 * between steps, and before shard_engine_broadcast_params, which leaves buffers
 * as they are. COLLECTIVE, blocks. Errors: INVALID_ARGUMENT for a root that is
 * no rank; FAILED_PRECONDITION while units are in use, gradients are declared
 * ready or parameters are summoned; DESYNC, also where another rank is in
 * shard_engine_join. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_broadcast_buffers(
    shard_engine* engine, int32_t root, double timeout) SHARD_NOEXCEPT;

/* ---- Units -------------------------------------------------------------- */

/* Forward and backward passes go unit by unit (shard_plan_options.wrap):
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
 * returns, the unit's parameters can be read. Where ranks share memory, and in
 * stages 0 to 2, nothing is gathered, and it waits only for an update that is
 * still on its way (overlap). In stage 3 without shared memory it gathers the
 * parameters, and fetches ahead those of the units that were acquired next in
 * the step before. For a backward pass it makes room for the unit's gradients,
 * which with BACKWARD are zeros in stages 2 and 3; where gradients are sharded
 * it waits until the room is free. `timeout` in seconds; 0: the engine's.
 * COLLECTIVE*, blocks. */
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
 * and, unless `grads` is NULL, shard_engine_grad. Local. */
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

/* How a step treats the gradients. The same on every rank. */
typedef struct shard_step_options {
  size_t struct_size;
  /* Scales gradients down so that their global norm is at most this:
   * coefficient min(1, max_grad_norm / (norm + 1e-6)). Default: no clipping,
   * and the norm is not computed. */
  double max_grad_norm;
  /* The divisor of the sum of the ranks' gradients. Default: world_size. */
  double grad_divisor;
  /* The factor that the loss was multiplied by. Default:
   * shard_engine_loss_scale. Not together with loss_scaling. */
  double loss_scale;
  /* Seconds. */
  double timeout;
  /* 1: skip the step, on all ranks, when a gradient is not finite. Implied by
   * max_grad_norm and by dynamic loss_scaling. Costs the same extra pass. */
  int32_t skip_nonfinite;
  /* 1: the sum of the ranks' gradients is divided by the number of ranks that
   * have not joined (shard_engine_join), not by world_size. */
  int32_t average_active;
  /* The norm that max_grad_norm bounds and that is reported: 1, 2, any p above
   * 0 for which it cannot overflow, or infinity for the largest magnitude.
   * Default 2. Norms other than 1, 2 and infinity cost another pass over the
   * gradients. */
  double grad_norm_type;
  /* Bounds every element of the averaged gradient to [-clip_value, clip_value].
   * Default: no bound. Not together with max_grad_norm. */
  double clip_value;
} shard_step_options;
#define SHARD_STEP_OPTIONS_INIT \
  { sizeof(shard_step_options), 0, 0, 0, 0, 0, 0, 0, 0 }

/* The results and the times of a step. */
typedef struct shard_step_report {
  size_t struct_size;
  int64_t step;     /* Steps done so far, skipped ones not counted. */
  double grad_norm; /* Before clipping, after division; -1: not computed. */
  int32_t skipped; /* 1: gradients were not finite, parameters are as before. */
  int32_t active_ranks;  /* Ranks that have not joined. */
  uint64_t bytes_moved;  /* Read and written by this rank's kernels. */
  double seconds_wait;   /* For other ranks. */
  double seconds_reduce; /* Sum and norm; 0 in the one-pass form. */
  double seconds_update; /* Update and publish; with the sum in one pass. */
  double seconds_total;
  double loss_scale; /* This step divided the gradients by it. */
  /* Bytes of tensors that this rank has sent since the step before, or has read
   * from other ranks' memory to reduce them ahead of the step; how many of
   * these bytes were through before the host waited for them; the seconds that
   * the transfers took; and the seconds that the host waited. */
  uint64_t bytes_communicated;
  uint64_t bytes_overlapped;
  double seconds_communication;
  double seconds_exposed;
} shard_step_report;
#define SHARD_STEP_REPORT_INIT \
  { sizeof(shard_step_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Reduces the gradients of all ranks, updates the parameters, and publishes
 * them: when the call returns, every rank sees all new values and may write
 * gradients again. COLLECTIVE, blocks. `options` and `report` may be NULL. The
 * same options, gradients and world size give the same bits on one kind of
 * processor (muon: with one BLAS and number of its threads). DESYNC when
 * options differ between ranks; FAILED_PRECONDITION before broadcast_params. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_step(
    shard_engine* engine, const shard_step_options* options,
    shard_step_report* report) SHARD_NOEXCEPT;

/* Announces the options of the next step before the backward pass, so that each
 * unit is updated, and its parameters sent, as soon as its gradients are ready
 * on all ranks, while the host still computes others. Optional. Parameters of a
 * unit change from then on; all else is as with shard_engine_step alone, to the
 * bit. The step itself then takes no options, or the same ones.
 * FAILED_PRECONDITION with options that need all gradients before anything is
 * updated: max_grad_norm, skip_nonfinite, dynamic loss_scaling, missing_grads.
 * COLLECTIVE, blocks. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_begin_step(
    shard_engine* engine, const shard_step_options* options) SHARD_NOEXCEPT;

/* Takes part in the exchanges and steps of the other ranks, with gradients of
 * zero, until every rank has joined. For a rank that is out of input while
 * others still have some. Then all ranks return, and may go on with a next
 * epoch. `steps`, which may be NULL, receives the number of these steps.
 * `timeout` is the seconds for each wait; 0: the engine's. In the meantime the
 * other ranks only acquire, release, declare ready and step; hyperparameters
 * that they set by shard_engine_set_hyper are set on this rank too. COLLECTIVE
 * with their calls, blocks. FAILED_PRECONDITION while units are in use or
 * gradients are ready. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_join(
    shard_engine* engine, double timeout, int64_t* steps) SHARD_NOEXCEPT;

/* ---- Full parameters, and changes at run time ------------------------------
 */

/* Makes whole private copies of the parameters in `module` (0: all) and below,
 * on rank `rank` or, with -1, on all ranks. shard_engine_param then returns the
 * copies; on ranks without them it is FAILED_PRECONDITION for these parameters.
 * The host may read the copies, and change them through
 * shard_engine_writable_param. The engine's own parameters stay as they are
 * until shard_engine_summon_end, so a host that fails in between has changed
 * nothing. Meanwhile only these two functions and shard_engine_summon_end are
 * allowed. Needs memory for the copies. The same arguments on every rank.
 * COLLECTIVE, blocks. Errors: FAILED_PRECONDITION while units are in use,
 * INVALID_ARGUMENT for a module or rank that does not exist, DESYNC. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_summon(
    shard_engine* engine, int32_t module, int32_t rank,
    double timeout) SHARD_NOEXCEPT;

/* Frees the copies of shard_engine_summon. With `write_back` 1 they are first
 * written to the parameters: every rank writes the elements that it owns, from
 * its own copies or from those of the one rank that has them. Master weights
 * follow where a parameter's bits have changed, and keep their precision
 * elsewhere. COLLECTIVE, blocks. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_summon_end(
    shard_engine* engine, int32_t write_back, double timeout) SHARD_NOEXCEPT;

/* Gives `params`, which are frozen or in the default group, a group of their
 * own, as shard_model_add_param_group does; they become trainable. "?key=value"
 * inherits from the default group as it is now. This call and
 * shard_engine_set_trainable replace the plan, between steps: all pointers from
 * shard_engine_param and _grad are no longer valid, gradients are zero,
 * parameters keep their values. A parameter that was and is trainable keeps
 * each state of which its optimizer has one of that name and type; other states
 * begin as zeros, and their parameters count their steps from 0. Frozen
 * parameters lose their states. Owners of other parameters stay as they were.
 * Needs the memory of both plans. The same arguments on every rank; the ranks
 * agree on the new plan's fingerprint. After a wrong argument everything is as
 * before.
 * `group` may be NULL. COLLECTIVE, blocks. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_add_param_group(
    shard_engine* engine, const char* optimizer, const int32_t* params,
    size_t count, double timeout, int32_t* group) SHARD_NOEXCEPT;

/* Freezes (`trainable` 0) or trains (1) parameters from here on, by a new plan
 * as shard_engine_add_param_group does. COLLECTIVE, blocks. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_set_trainable(
    shard_engine* engine, const int32_t* params, size_t count,
    int32_t trainable, double timeout) SHARD_NOEXCEPT;

/* Gets the bytes that this engine has allocated, which shard_plan_memory
 * predicts. host_bytes takes every rank of the host to have as much as this
 * one. Set memory->struct_size first. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_memory(
    const shard_engine* engine, shard_memory* memory) SHARD_NOEXCEPT;

SHARD_API void shard_engine_free(shard_engine* engine) SHARD_NOEXCEPT;

/* ---- Schedules ---------------------------------------------------------- */

/* Computes the learning rate of step `step`, which counts from 1, for a host to
 * set with shard_engine_set_hyper. A pure function of its arguments:
 *   constant      lr warmup
 *   linear        lr warmup total min_lr
 *   cosine        lr warmup total min_lr
 *   inverse_sqrt  lr warmup min_lr
 *   wsd           lr warmup total decay min_lr shape
 * for example "cosine?lr=3e-4&warmup=2000&total=100000&min_lr=3e-5". Steps 1 to
 * `warmup` rise linearly to lr; beyond `total` the last value, min_lr, stays,
 * which is 0 by default. Formulas: docs/training-loop.md. Errors name key,
 * value and range. Any thread. */
SHARD_NODISCARD SHARD_API shard_error* shard_schedule_lr(
    const char* schedule, int64_t step, double* lr) SHARD_NOEXCEPT;

SHARD_END_DECLS

#endif /* SHARD_ENGINE_H_ */
