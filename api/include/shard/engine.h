/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines: one rank's training. Options and numbers, steps, changes at run
 * time, and schedules of learning rates. tensors.h has the engine's tensors,
 * and units.h its units. */

#ifndef SHARD_ENGINE_H_
#define SHARD_ENGINE_H_

#include "shard/base.h"
#include "shard/comm.h"
#include "shard/plan.h"

SHARD_BEGIN_DECLS

/* How a step treats parameters that got no gradient since the last step
 * (units.h says which parameters these are). Frozen. */
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
  /* Where the engine's tensors live and its kernels run:
   *   "cpu"      The host's memory and processors. The default.
   *   "cuda:0"   A GPU, by its number in CUDA's order, or by its UUID,
   *              "cuda:GPU-..." or "cuda:MIG-..." (nvidia-smi -L). Loads
   *              libshard_cuda.so, which lies beside libshard.so. Several ranks
   *              may share a GPU.
   *              Options, of which `&` joins several:
   *     ?offload=states   Optimizer states and masters lie in pinned memory of
   *              the host, whose `offload_threads` threads per rank (4 where it
   *              is not given, at most 256) step them. Default: none. All ranks
   *              offload, or none does.
   *     ?collectives=nccl   Tensors move between ranks by NCCL, which one rank
   *              has to have, too; auto: by NCCL where all ranks can use it.
   * Default: staged, through memory of the host. The same on every rank.
   *     ?step=one_kernel   With NCCL, a step is one launch where ranks reach
   *              each other's memory. Default: parts. The same on every rank.
   *   "cpu-async?max_delay=SECONDS&seed=N"
   *              Runs every kernel on a thread after a pause, to find code that
   *              does not wait as it must. */
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
 * libraries that were tried, when muon finds no CBLAS, or no cuBLAS on a GPU,
 * or saying what is missing, when there is no GPU or no driver for it, or why
 * collectives=nccl cannot be used. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_create(
    const shard_plan* plan, shard_comm* comm,
    const shard_engine_options* options, shard_engine** engine) SHARD_NOEXCEPT;

/* Gets the plan that is in force; the caller frees it. The engine uses the plan
 * that it was created with until shard_engine_add_param_group or _set_trainable
 * puts another one in its place. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_plan(
    const shard_engine* engine, shard_plan** plan) SHARD_NOEXCEPT;

/* Sets or gets a hyperparameter of a param group, by the key it has in the
 * optimizer's text: "lr" is the learning rate. `group` -1 means every group
 * that has the key; a flag is 0 or 1. A new value holds from the next step on,
 * and every rank must set the same before it: the step is DESYNC otherwise.
 * Errors leave all values as they were: a group that does not exist; NOT_FOUND
 * for a key that it does not have; a value out of range, with the range;
 * FAILED_PRECONDITION for a change that would need other states, for a key
 * whose value is a word, and between shard_engine_begin_step and its step.
 * shard_engine_hyper takes one group, and returns a word as its number;
 * shard_engine_group_text has the word itself. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_set_hyper(
    shard_engine* engine, int32_t group, const char* key,
    double value) SHARD_NOEXCEPT;
SHARD_NODISCARD SHARD_API shard_error* shard_engine_hyper(
    const shard_engine* engine, int32_t group, const char* key,
    double* value) SHARD_NOEXCEPT;

/* Writes the group's optimizer with the present value of every key:
 * "sgd?lr=0.1&momentum=0&...". Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_group_text(
    const shard_engine* engine, int32_t group, char* buffer, size_t capacity,
    size_t* length) SHARD_NOEXCEPT;

/* Sets an optimizer state of `param`, after shard_engine_broadcast_params, for
 * a run that began in another program. `values` has the `count` fp32 values of
 * the whole tensor, in the host's memory; this rank keeps those that it owns.
 * `state` is torch's name, such as "exp_avg", or "master_param", the fp32 value
 * of a bf16 or f16 parameter. States stored in fewer bits are rounded to
 * nearest. "master_param" leaves the parameter itself as it is until the next
 * step. Every rank makes the same calls. docs/numerics.md lists the names that
 * states have in other programs. Errors: NOT_FOUND for a state that the
 * optimizer does not keep, listing those that it keeps; a count that is not the
 * state's; a value that is not finite, or a negative second moment of adam;
 * FAILED_PRECONDITION for a frozen parameter, before the broadcast, or between
 * shard_engine_begin_step and its step. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_set_state(
    shard_engine* engine, int32_t param, const char* state, const float* values,
    size_t count) SHARD_NOEXCEPT;

/* Gets the number of completed steps; skipped steps do not count. The same on
 * every rank between steps. This call, shard_engine_loss_scale and
 * shard_engine_growth_tracker are exact also after a step that has returned
 * early (shard_engine_step): they wait until it is known whether that step is
 * skipped. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_completed_steps(
    const shard_engine* engine, int64_t* step) SHARD_NOEXCEPT;

/* Sets the number of completed steps, 0 to 2^32 - 2. Bias corrections go on
 * from there, and an optimizer does not repeat the work of its first step.
 * Every rank sets the same, or the next step is DESYNC. shard_engine_step
 * beyond 2^32 - 2, and the load of a checkpoint of such a step, are
 * OUT_OF_RANGE. FAILED_PRECONDITION before the broadcast, or between
 * shard_engine_begin_step and its step. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_set_completed_steps(
    shard_engine* engine, int64_t step) SHARD_NOEXCEPT;

/* Gets the factor of the loss for the next backward pass; the same on every
 * rank. 1 without loss_scaling. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_loss_scale(
    const shard_engine* engine, double* scale) SHARD_NOEXCEPT;

/* Gets the number of good steps in a row since the loss scale changed or a step
 * was skipped; growth_interval of them raise the scale. torch's
 * GradScaler.state_dict calls this number _growth_tracker. The same on every
 * rank; 0 unless loss_scaling is dynamic. Local. */
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

/* ---- Steps -------------------------------------------------------------- */

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
 * them. COLLECTIVE, blocks. `options` and `report` may be NULL.
 *   with a report, or without shard_engine_set_stream
 *       When the call returns, every rank sees all new values and may write
 *       gradients again.
 *   without a report, after shard_engine_set_stream
 *       The call may return once the step is enqueued. What the host enqueues
 *       on its stream from then on comes after the step: it sees all new
 *       values, and may write gradients; with `overlap`, those of a unit once
 *       it acquires the unit. An error after the return is that of the next
 *       call that waits for the step, at the latest of the next step or of
 *       shard_engine_synchronize, and final. shard_engine_last_report has the
 *       report, whose seconds_total is the time of the call alone.
 * The same options, gradients and world size give the same bits on one kind of
 * processor or GPU (muon: with one BLAS and number of its threads, or one
 * version of cuBLAS). DESYNC when options differ between ranks;
 * FAILED_PRECONDITION before broadcast_params. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_step(
    shard_engine* engine, const shard_step_options* options,
    shard_step_report* report) SHARD_NOEXCEPT;

/* Where tensors lie, in the codes of DLPack (DLDeviceType). Frozen. */
typedef int32_t shard_device_kind;
enum shard_device_kind_values {
  SHARD_DEVICE_CPU = 1, /* The host's memory, which "cpu-async" has as well. */
  SHARD_DEVICE_CUDA = 2 /* A GPU's; its addresses are of no use to the host. */
};

/* Gets where the engine's tensors lie: the kind, and the number of the device
 * among those of its kind, 0 for the host's memory. `ordinal` may be NULL. Any
 * thread. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_device(
    const shard_engine* engine, shard_device_kind* kind,
    int32_t* ordinal) SHARD_NOEXCEPT;

/* Describes how the engine works, for programs, as a JSON document:
 *   {"device": "cuda:0", "transport": "nccl 2.28.9", "sum_order": "ranks"}
 * `device` is the spec of the engine's device. `transport` is how tensors move
 * between ranks:
 *   "none"    they do not: there is one rank
 *   "direct"  ranks read each other's tensors where they lie
 *   "host"    through memory that ranks on a host share
 *   "staged"  as "host", by copies from and to GPUs
 *   "nccl N"  by NCCL of that version
 * `sum_order` is the order in which gradients are added over ranks: "ranks",
 * that of the ranks, first within each shard group unless the plan is
 * deterministic; or "library", for some one that the transport chooses. A step
 * that is one launch (step=one_kernel) adds in the order of the ranks in either
 * case. With NCCL `sums` has the sets of ranks over which gradients are added,
 * one after the other, with the order for each dtype of gradients:
 *   "sums": [{"ranks": 8, "f32": "library", "bf16": "ranks"}]
 * and, where the ranks of such a set are on several hosts, the number of these,
 * `"hosts": 2`.
 * `registered_bytes` is how much of the tensors' memory is registered with it,
 * and where nothing is, `not_registered` says why; `window_bytes` is how much
 * of that all ranks have in windows, and where an engine of several ranks is
 * created without any, `no_windows` says why. With step=one_kernel and several
 * ranks `one_kernel` is whether a step may be one launch, and where none is,
 * `not_one_kernel` says why. More keys may come. Local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_json(
    const shard_engine* engine, char* buffer, size_t capacity,
    size_t* length) SHARD_NOEXCEPT;

/* Describes the accelerators of this machine, for programs, as a JSON document:
 *   {"cuda": {"driver": "13.0",
 *             "devices": [{"spec": "cuda:0", "name": ...,
 *                          "uuid": "GPU-...", "compute_capability": "9.0",
 *                          "memory_bytes": ..., "free_bytes": ...,
 *                          "error": ""}],
 *             "nccl": {"library": ..., "version": ..., "error": "",
 *                      "oldest": "2.18.0", "path": ..., "of_process": false,
 *                      "functions": {"ncclMemAlloc": true, ...}},
 *             "cublas": {"library": ..., "version": ..., "error": ""},
 *             "error": ""}}
 * An `error` that is not "" says why something is not there, or cannot be used,
 * and what to do. Where NCCL can be used, `oldest` is the oldest version that
 * libshard uses, `of_process` says whether the process had the library before,
 * and `functions` which functions of later versions it has. `driver` is ""
 * where there is none, and nccl and cublas are not looked for then; they are
 * null where libshard_cuda.so does not load. Each GPU is opened for a moment,
 * which may take a second. Any thread. */
SHARD_NODISCARD SHARD_API shard_error* shard_devices_json(
    char* buffer, size_t capacity, size_t* length) SHARD_NOEXCEPT;

/* Sets the stream on which the host enqueues its own work. The engine's calls
 * take place in the order of this stream: work that the host enqueued before a
 * call comes before the engine's, and work that the host enqueues after the
 * call comes after. `stream` is the device's own form of a stream, a CUstream
 * on a GPU, and must live until the engine is freed or another stream is set.
 * While the host captures it as a CUDA graph, the engine's calls are
 * FAILED_PRECONDITION, do nothing and can be made again, but for those after
 * shard_engine_capture_begin.
 * NULL is the device's usual stream, which a new engine uses; with it every
 * step waits for its end. Work on the old stream comes before later work on the
 * new one. Each rank sets its own stream, between steps or before
 * shard_engine_broadcast_params. Where NCCL moves tensors, engines that use one
 * stream, NULL included, are called in the same order on all ranks, or they
 * wait for each other until the deadline: engines that different threads call
 * need streams of their own there (docs/gpu.md). Errors leave the stream as it
 * was: INVALID_ARGUMENT for a stream that is not of the engine's device, which
 * on "cpu" and "cpu-async" is every stream but NULL, for there the host works
 * in its threads; FAILED_PRECONDITION while a step is begun, units are
 * acquired, gradients are ready or parameters are summoned, naming the state.
 * Local; a stream that is the host's thread waits for the work of the old one.
 */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_set_stream(
    shard_engine* engine, void* stream) SHARD_NOEXCEPT;

/* Begins a capture of this engine's work, in a CUDA graph of the host's: call
 * it after cudaStreamBeginCapture of the stream of shard_engine_set_stream.
 * Until shard_engine_capture_end all that the engine enqueues is part of that
 * graph and does not run; only shard_engine_zero_grad and one shard_engine_step
 * without a report are allowed. The step's options say what kind of step is
 * captured; it is not counted. A capture of a step ends the use of graphs of
 * the captures before, unless a rank refuses the step. With several ranks each
 * captures a graph, and the step is COLLECTIVE. UNIMPLEMENTED for several
 * ranks without collectives=nccl, for one with direct=0, with offload, and on
 * devices without graphs. FAILED_PRECONDITION while the stream is not
 * captured, in state FILLING, while a step is begun, units are acquired,
 * gradients are ready or parameters are summoned; with missing_grads; on an
 * engine whose units or gradients were ever marked; for several ranks with
 * overlap or a plan that shards gradients or parameters; and after a replay
 * that nothing has waited for. An error of the step before is final, others
 * leave the engine as it was. Local, blocks until the step before has ended. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_capture_begin(
    shard_engine* engine) SHARD_NOEXCEPT;

/* Ends a capture of this engine's work; call it before cudaStreamEndCapture.
 * Errors: the first of the work that was captured; FAILED_PRECONDITION without
 * shard_engine_capture_begin, and where the host's capture has ended before or
 * is invalid. What was captured is then of no use. After a captured step that
 * several ranks have entered, COLLECTIVE, blocks: an error of one is that of
 * all. Else, and after a step that a rank refused, local. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_capture_end(
    shard_engine* engine) SHARD_NOEXCEPT;

/* Gives the captured step the values of the next one: options,
 * hyperparameters, and the number of the step. Call it before each launch of a
 * graph with a captured step, and launch the graph on the stream of
 * shard_engine_set_stream before another step. The step counts as one of
 * shard_engine_step without a report, whose bits it has, once it has run; one
 * that was not launched is not counted. Its report has no times. The call first
 * waits for the step before, and so for all that its stream was given; the loss
 * scale of this step is then that of shard_engine_loss_scale. `options` may be
 * NULL. FAILED_PRECONDITION where nothing was captured, where the captured step
 * uses memory that is not used any more (another plan,
 * shard_engine_bind_param), while a step is begun, and for a step of another
 * kind: with a norm where none was captured or without one, with another
 * ns_steps of muon, or where parameters have done more or fewer different
 * numbers of steps than then, as after a checkpoint was loaded.
 * Capture again then, or step without the graph. FAILED_PRECONDITION also where
 * a graph was launched without this call, or twice after one, and has run: it
 * has stepped with old values. The next of this call, shard_engine_step and
 * what saves or gathers states says so, once for each rank that launched it.
 * With several ranks it waits for theirs, and ends the communicator where they
 * do not come within the engine's timeout. DESYNC where a rank does another
 * thing, such as a step without the graph. COLLECTIVE, blocks, but not for the
 * launches of other ranks. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_before_replay(
    shard_engine* engine, const shard_step_options* options) SHARD_NOEXCEPT;

/* Gets the report of the last finished step, and first waits for one that is in
 * progress, at most for the engine's timeout. Steps within shard_engine_join
 * count. Set report->struct_size first. FAILED_PRECONDITION before the first
 * step. Local, blocks. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_last_report(
    const shard_engine* engine, shard_step_report* report) SHARD_NOEXCEPT;

/* Waits until everything that the engine was given has run: a step that has
 * returned early, and reductions and gathers of units. Work of the host's that
 * the engine does not wait for is left out. `timeout` is in seconds; 0: the
 * engine's. Errors: that of the work, which is final, as from every later
 * collective call; DEADLINE_EXCEEDED names work that is late, which goes on.
 * Local, blocks. */
SHARD_NODISCARD SHARD_API shard_error* shard_engine_synchronize(
    shard_engine* engine, double timeout) SHARD_NOEXCEPT;

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
 * on rank `rank` or, with -1, on all ranks, in the host's memory on every
 * device. shard_engine_param then returns the copies; on ranks without them it
 * is FAILED_PRECONDITION for these parameters. The host may read the copies,
 * and change them through shard_engine_writable_param. The engine's own
 * parameters stay as they are until shard_engine_summon_end, so a host that
 * fails in between has changed nothing. Meanwhile only these two functions and
 * shard_engine_summon_end are allowed. Needs memory for the copies. The same
 * arguments on every rank. COLLECTIVE, blocks. Errors: FAILED_PRECONDITION
 * while units are in use, INVALID_ARGUMENT for a module or rank that does not
 * exist, DESYNC. */
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
 * Needs the memory of both plans; buffers of the model stay where they are. The
 * same arguments on every rank; the ranks agree on the new plan's fingerprint.
 * After a wrong argument everything is as before. `group` may be NULL.
 * COLLECTIVE, blocks. */
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

/* The other calls on an engine: whoever includes this header has them all. */
/* IWYU pragma: begin_exports */
#include "shard/tensors.h"
#include "shard/units.h"
/* IWYU pragma: end_exports */

#endif /* SHARD_ENGINE_H_ */
