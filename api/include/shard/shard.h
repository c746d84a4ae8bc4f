/* SPDX-License-Identifier: Apache-2.0
 *
 * libshard: sharded data-parallel training for any engine with a C FFI.
 *
 * A host declares its parameters (shard_model), decides how they are sharded
 * (shard_plan, a pure computation), meets the other ranks (shard_comm), and
 * trains (shard_engine): it reads parameters and writes gradients through
 * pointers libshard gives it, and calls shard_engine_step once per step.
 *
 *   shard_comm_open("env:", NULL, &comm);
 *   shard_model_create("GPT", &model);
 *   shard_model_add_param(model, 0, "weight", SHARD_F32, shape, 2, &weight);
 *   shard_plan_create(model, &plan_options, &plan);
 *   shard_engine_create(plan, comm, NULL, &engine);
 *   shard_engine_set_param(engine, weight, initial, sizeof(initial));
 *   shard_engine_broadcast_params(engine, 0);
 *   for (...) {
 *     ... forward and backward: read shard_engine_param, write _grad ...
 *     shard_engine_step(engine, &step_options, &report);
 *   }
 *
 * Conventions, for every function here:
 *
 * Errors. A function that can fail returns shard_error*: NULL is success,
 * anything else is an error the caller owns and frees with shard_error_free.
 * There is no last-error state. Outputs are set to NULL or 0 on entry and
 * written only on success; a failed call leaves nothing to clean up but the
 * error. A NULL handle, output or string is SHARD_INVALID_ARGUMENT unless the
 * comment allows it.
 *
 * Memory. Running out of it is SHARD_RESOURCE_EXHAUSTED, never the end of the
 * process; free functions succeed also then, and give everything back. A
 * COLLECTIVE call that runs out of memory ends the group, for the other ranks
 * would wait: to them it is the same error where the ranks agree on one, else
 * SHARD_POISONED with the reason, and so are later calls. A call that may leave
 * parameters, states or units half changed ends its engine and communicator
 * also where there is one rank: open another one, and load a checkpoint.
 *
 * Options. An option struct begins with struct_size, which the _INIT macro
 * sets. 0 in any field means its default; the whole pointer may be NULL.
 * Fields named `reserved` must be 0. A struct_size smaller than today's is
 * completed with defaults; a larger one is accepted when the part this library
 * does not know is zero.
 *
 * Ownership. Each *_create or *_open gives a handle the caller frees with the
 * matching *_free, in any order: children keep what they need alive. *_free
 * accepts NULL, never fails, is local and never collective. Strings passed in
 * are NUL-terminated UTF-8 and copied.
 *
 * Threads. Handles may move between threads. Different handles may be used at
 * once from different threads; calls on one handle must not overlap unless the
 * comment says "any thread". A communicator and the engines on it count as one
 * handle. Error and plan handles are immutable: any thread.
 *
 * Collective. A call marked COLLECTIVE must be made by every rank of the
 * communicator, in the same order. Ranks that call different things, or that
 * have different plans or options, all get SHARD_DESYNC, whose message names
 * the first difference, its two values and their ranks; when a rank dies the
 * others get SHARD_RANK_LOST, and shard_error_rank names it. No collective
 * waits longer than its deadline: `timeout` is in seconds, 0 or less means the
 * default. A wrong argument or a wrong state on one rank is the same error on
 * every rank, names that rank, changes nothing, and training can go on; only a
 * NULL shard_comm or shard_engine, and what is wrong with a shard_comm_open,
 * cannot be told to the others. After any other error of a collective the
 * communicator and the engines on it are of no further use.
 *
 * The host. libshard never exits, aborts, prints, installs a signal handler,
 * or changes locale, umask or working directory. */

#ifndef SHARD_SHARD_H_
#define SHARD_SHARD_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#error "libshard supports POSIX systems only"
#endif
#define SHARD_API __attribute__((visibility("default")))

#ifdef __cplusplus
#define SHARD_NOEXCEPT noexcept
extern "C" {
#else
#define SHARD_NOEXCEPT
#endif

/* ---- Version ------------------------------------------------------------ */

#define SHARD_VERSION_MAJOR 0
#define SHARD_VERSION_MINOR 1
#define SHARD_VERSION_PATCH 0

/* "0.1.0": of the library that is loaded, which may be newer than the header.
 * Static storage. Any thread. */
SHARD_API const char* shard_version(void) SHARD_NOEXCEPT;

/* The number in the SONAME, libshard.so.N. Any thread. */
SHARD_API int32_t shard_abi_version(void) SHARD_NOEXCEPT;

/* ---- Errors ------------------------------------------------------------- */

/* 0 to 16 are the canonical codes of absl and gRPC. Frozen. */
typedef int32_t shard_code;
enum {
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

/* All of these accept NULL, which is success: SHARD_OK, "", -1, "". Returned
 * strings live as long as the error. Any thread. */
SHARD_API shard_code shard_error_code(const shard_error* error) SHARD_NOEXCEPT;
/* What was wrong, with which value, and what to do. One line, UTF-8. */
SHARD_API const char* shard_error_message(const shard_error* error)
    SHARD_NOEXCEPT;
/* The rank the error is about, or -1. */
SHARD_API int32_t shard_error_rank(const shard_error* error) SHARD_NOEXCEPT;
/* "" or a JSON document, for lists such as missing keys. */
SHARD_API const char* shard_error_detail(const shard_error* error)
    SHARD_NOEXCEPT;
SHARD_API void shard_error_free(shard_error* error) SHARD_NOEXCEPT;

/* "RANK_LOST"; "UNKNOWN_CODE" for other values. Static storage. Any thread. */
SHARD_API const char* shard_code_name(shard_code code) SHARD_NOEXCEPT;

/* ---- Communicators ------------------------------------------------------ */

/* Frozen. */
enum {
  SHARD_LOG_ERROR = 1,
  SHARD_LOG_WARNING = 2,
  SHARD_LOG_INFO = 3,
  SHARD_LOG_DEBUG = 4
};

/* Called from any thread that uses the library; `message` lives for the call.
 * It must not call back into the same handle. */
typedef void (*shard_log_fn)(int32_t level, const char* message,
                             void* user_data);

typedef struct shard_comm_options {
  size_t struct_size;
  /* This rank and the number of ranks, where the URL does not say it. Ignored
   * as long as world_size is 0. REQUIRES: 0 <= rank < world_size. */
  int32_t rank;
  int32_t world_size;
  /* Seconds to wait for the other ranks to come, and the default of every
   * later wait. Default 60. Every rank should give the same. */
  double timeout;
  /* Default: no logging. */
  shard_log_fn log;
  void* log_user_data;
  /* The most verbose level that is logged. Default SHARD_LOG_WARNING. */
  int32_t log_level;
  int32_t reserved;
} shard_comm_options;
#define SHARD_COMM_OPTIONS_INIT \
  { sizeof(shard_comm_options), 0, 0, 0, 0, 0, 0, 0 }

typedef struct shard_comm shard_comm;

/* Meets the other ranks. COLLECTIVE, blocks. URLs:
 *
 *   "env:"         rank, world size and meeting point from the environment:
 *                  SHARD_RANK and SHARD_WORLD_SIZE (set by `shardctl run`),
 *                  else torchrun's, Open MPI's or Slurm's variables; without
 *                  any of them, one rank. Half of a group set is an error.
 *   "local:"       one rank.
 *   "threads:N"    N threads of this process; each opens with its own rank and
 *                  world_size N. "?name=x" keeps groups apart; those without a
 *                  name are told apart by N.
 *   "shm:NAME"     processes of this host and user that give the same NAME.
 *                  They meet at an abstract Unix socket with their user id in
 *                  its name, and believe no other user's process there.
 *
 * "?timeout=SECONDS" may follow any URL. So may "?direct=0": the ranks then act
 * as if they shared no memory, and exchange tensors as ranks on several hosts
 * would; for trying that on one machine. "&delay=SECONDS" and
 * "&bandwidth=BYTES_PER_SECOND" simulate a link: an exchange of tensors takes
 * at least the delay, and the bytes a rank sends at that rate. Every rank
 * should give the same.
 *
 * Errors: INVALID_ARGUMENT for a bad URL, a rank outside the world, or world
 * sizes that differ (on all ranks); DEADLINE_EXCEEDED naming the ranks that did
 * not come; ALREADY_EXISTS when rank or NAME is taken, by this user or another,
 * which on ranks above 0 is PERMISSION_DENIED. Ranks of which only some
 * say direct=0 get DESYNC from their first collective. */
SHARD_API shard_error* shard_comm_open(const char* url,
                                       const shard_comm_options* options,
                                       shard_comm** comm) SHARD_NOEXCEPT;

/* -1 and 0 for NULL. Any thread. */
SHARD_API int32_t shard_comm_rank(const shard_comm* comm) SHARD_NOEXCEPT;
SHARD_API int32_t shard_comm_world_size(const shard_comm* comm) SHARD_NOEXCEPT;

/* One line for people: transport, rank, world size, and where they came from.
 * "" for NULL. Lives as long as the handle. Any thread. */
SHARD_API const char* shard_comm_describe(const shard_comm* comm)
    SHARD_NOEXCEPT;

/* COLLECTIVE, blocks. Returns once every rank has called it. */
SHARD_API shard_error* shard_comm_barrier(shard_comm* comm,
                                          double timeout) SHARD_NOEXCEPT;

/* COLLECTIVE, blocks. Replaces values[i] by its sum over the ranks, in rank
 * order, so that every rank gets the same bits. For losses and counts: at most
 * 2^20 of them. */
SHARD_API shard_error* shard_comm_sum(shard_comm* comm, double* values,
                                      size_t count,
                                      double timeout) SHARD_NOEXCEPT;

/* Ends the group from one side: every other rank's current or next collective
 * returns SHARD_POISONED with `reason`. For a host that failed between two
 * collectives and will not come to the next. Any thread, never blocks. */
SHARD_API shard_error* shard_comm_abort(shard_comm* comm,
                                        const char* reason) SHARD_NOEXCEPT;

/* COLLECTIVE, blocks. A last barrier, so that no rank takes another's leaving
 * for a death. Then free; engines on it still give out their parameters.
 * Leaving without it, by freeing the communicator and all engines on it, is
 * safe, and is a lost rank to those that still wait. */
SHARD_API shard_error* shard_comm_shutdown(shard_comm* comm,
                                           double timeout) SHARD_NOEXCEPT;

SHARD_API void shard_comm_free(shard_comm* comm) SHARD_NOEXCEPT;

/* ---- Models ------------------------------------------------------------- */

/* Element types. Frozen. */
enum { SHARD_F32 = 1, SHARD_BF16 = 2, SHARD_F16 = 3, SHARD_F64 = 4 };

#define SHARD_MAX_DIMS 8

/* A tree of modules with named parameters. Modules and parameters have dense
 * ids from 0 up, in the order of adding; module 0 is the root. A parameter's
 * fully qualified name (FQN) joins the names on its path with dots. A name has
 * no dots and no control characters, and with its path at most 65000 bytes. */
typedef struct shard_model shard_model;

/* `class_name`: the root module's; may be NULL. Local. */
SHARD_API shard_error* shard_model_create(const char* class_name,
                                          shard_model** model) SHARD_NOEXCEPT;

/* `name`: one path component. `class_name` may be NULL; `module`
 * receives the id. Errors: a parent that does not exist, a bad name, a name
 * that `parent` has already. Local. */
SHARD_API shard_error* shard_model_add_module(shard_model* model,
                                              int32_t parent, const char* name,
                                              const char* class_name,
                                              int32_t* module) SHARD_NOEXCEPT;

/* Adds a trainable parameter of shape[0..ndim), row-major; ndim 0 is a scalar,
 * and `shape` may then be NULL. A dimension may be 0. Errors: a bad or taken
 * name, an unknown dtype, ndim above SHARD_MAX_DIMS, a negative dimension, a
 * size beyond int64. Local. */
SHARD_API shard_error* shard_model_add_param(shard_model* model, int32_t module,
                                             const char* name, int32_t dtype,
                                             const int64_t* shape, int32_t ndim,
                                             int32_t* param) SHARD_NOEXCEPT;

/* Gives `param` another name: tied weights. It is stored, reduced and updated
 * once, under the name that comes first in module-walk order. Local. */
SHARD_API shard_error* shard_model_tie(shard_model* model, int32_t module,
                                       const char* name,
                                       int32_t param) SHARD_NOEXCEPT;

/* A frozen parameter keeps its values and has no gradient and no optimizer
 * state. Local. */
SHARD_API shard_error* shard_model_freeze(shard_model* model,
                                          int32_t param) SHARD_NOEXCEPT;

/* libshard neither stores nor touches what is ignored; a module is ignored
 * with everything below it. Local. */
SHARD_API shard_error* shard_model_ignore_param(shard_model* model,
                                                int32_t param) SHARD_NOEXCEPT;
SHARD_API shard_error* shard_model_ignore_module(shard_model* model,
                                                 int32_t module) SHARD_NOEXCEPT;

/* Gives params[0..count) an optimizer, or hyperparameters, of their own: a
 * param group. `optimizer` as in shard_plan_options, or "?key=value" for the
 * plan's optimizer with other values, such as "?weight_decay=0", and "" for
 * that with the same; it is read when a plan is made. Groups have ids from 1
 * up; group 0 holds every parameter that no other names, with the plan's
 * optimizer. Errors: no parameters, one that does not exist, one that has a
 * group already or stands twice. Local. */
SHARD_API shard_error* shard_model_add_param_group(
    shard_model* model, const char* optimizer, const int32_t* params,
    size_t count, int32_t* group) SHARD_NOEXCEPT;

SHARD_API void shard_model_free(shard_model* model) SHARD_NOEXCEPT;

/* ---- Plans -------------------------------------------------------------- */

/* How parameters are divided among ranks. Frozen. */
enum {
  /* Flat buffers cut into equal pieces, as FSDP does. The default. */
  SHARD_PARTITION_EVEN = 1,
  /* Whole parameters, each to the least loaded rank, largest first, as
   * ZeroRedundancyOptimizer does. */
  SHARD_PARTITION_GREEDY = 2,
  /* Whole parameters by gradient bucket; see bucket_bytes. */
  SHARD_PARTITION_BUCKET = 3,
  /* Whole parameters by `owners`. */
  SHARD_PARTITION_MANUAL = 4
};

/* What steps a trainable parameter in bf16 or f16. Frozen. */
enum {
  /* An fp32 copy, the master weights: 4 bytes of state per element. The
   * parameter is its value rounded to nearest even. The default. */
  SHARD_MASTERS_F32 = 1,
  /* Nothing is kept: it is widened, updated in fp32 and rounded to nearest
   * even. Updates below half its last digit are lost. */
  SHARD_MASTERS_NONE_NEAREST = 2,
  /* The same, rounded up or down at random such that the mean is right; bf16
   * only. The bits come from a counter-based generator keyed by (seed, step,
   * parameter, element): they do not depend on the world size. */
  SHARD_MASTERS_NONE_STOCHASTIC = 3
};

/* Non-zero when `module` is to be a unit. `nonwrapped_numel`: its elements, but
 * for those of ignored parameters and of units within it. Called by
 * shard_plan_create only, on its thread, of modules within before those around
 * them. */
typedef int32_t (*shard_wrap_fn)(int32_t module, int64_t nonwrapped_numel,
                                 void* user_data);

typedef struct shard_plan_options {
  size_t struct_size;
  /* ZeRO stage: 0 and 1 shard optimizer states, 2 also gradients, 3 also
   * parameters; each where that saves memory (docs/units.md). What is not
   * sharded exists once per host where ranks share memory. States are sharded
   * over all ranks in stage 0, too: that costs no more communication than
   * copies of them would. */
  int32_t stage;
  /* REQUIRED, at least 1. It must be the communicator's. */
  int32_t world_size;
  int32_t partition;
  /* BUCKET only: 1 cuts buckets at total/world_size and spreads the pieces;
   * 0 gives bucket i to rank i mod world_size. */
  int32_t shard_buckets;
  /* BUCKET only: a bucket is closed when it holds this many gradient bytes,
   * parameters taken last to first. Default 25 MiB. */
  int64_t bucket_bytes;
  /* MANUAL only: the owner of parameter i, and the number of entries, which
   * must be the number of parameters. Not read for frozen or ignored ones. */
  const int32_t* owners;
  size_t owners_len;
  /* The optimizer and its hyperparameters by torch's names; those not given
   * have torch's defaults. Default "adamw". Of parameters in no param group.
   *   adamw, adam  lr beta1 beta2 eps weight_decay amsgrad profile states
   *   sgd          lr momentum dampening weight_decay nesterov
   *   adagrad      lr lr_decay weight_decay initial_accumulator_value eps
   *   rmsprop      lr alpha eps weight_decay momentum centered
   *   adadelta     lr rho eps weight_decay
   *   adamax       lr beta1 beta2 eps weight_decay
   *   rprop        lr etaminus etaplus step_size_min step_size_max
   *   lion         lr beta1 beta2 weight_decay
   *   lamb         lr beta1 beta2 eps weight_decay
   *   adafactor    lr beta2_decay eps1 eps2 d weight_decay
   *   muon         lr weight_decay momentum nesterov ns_steps eps adjust_lr_fn
   * for example
   *   "adamw?lr=3e-4&beta1=0.9&beta2=0.95&eps=1e-8&weight_decay=0.1"
   *   "sgd?lr=0.1&momentum=0.9&nesterov=1"
   * All but lion and muon take maximize=1. Flags are 0 or 1. amsgrad, centered,
   * and whether momentum is 0 decide which states there are: they cannot change
   * later, nor can words. rprop reads lr on the first step only, as torch does.
   * profile=torch|apex|deepspeed_cpu|llmc|llmc_cpu|ggml: whose arithmetic is
   * followed, to the order of operations (docs/numerics.md); llmc, llmc_cpu and
   * ggml are adamw's, and amsgrad is torch's. states=f32|bf16|q8: how exp_avg
   * and its like are stored; q8 is 8 bits and a scale per 256 elements.
   * lamb, adafactor and muon step whole parameters: each is owned by one rank,
   * in every partition, and all ranks' shares are as large as the largest. muon
   * steps matrices only, and needs a CBLAS (SHARD_BLAS_LIBRARY, else the usual
   * names): give vectors, embeddings and heads a param group of adamw.
   * adjust_lr_fn=original|match_rms_adamw. */
  const char* optimizer;
  /* 1: gradients of bf16 and f16 parameters are kept in fp32. Default: as the
   * parameter. They are summed in fp32 either way. */
  int32_t f32_grads;
  /* SHARD_MASTERS_*. */
  int32_t masters;
  /* Of SHARD_MASTERS_NONE_STOCHASTIC and of states narrower than fp32, which
   * are always rounded so. */
  uint64_t seed;
  /* Which modules become units: what is gathered and reduced together
   * (docs/units.md). The root always is one. Policies, any of which may say so,
   * separated by '|', with the results of torch.distributed.fsdp.wrap:
   *   always                     every module
   *   class?names=Block,MLP      by class name
   *   size?min_numel=100000000&force_leaf=MultiheadAttention
   *       &exclude=ModuleList,ModuleDict                (without the line
   * break) modules with so many elements beyond those of units within; neither
   * force_leaf nor what is below it, and never exclude itself. A tied parameter
   * counts once, in the module of its first name, where torch counts it in
   * every child that has it. Values not given are those shown. Default: the
   * root only. */
  const char* wrap;
  /* One more policy, asked where the others do not wrap. May be NULL. */
  shard_wrap_fn wrap_predicate;
  void* wrap_user_data;
  /* What parameters declared as SHARD_F32 are stored and computed in:
   * SHARD_F32, SHARD_BF16 or SHARD_F16; gradients follow. Default: as declared.
   */
  int32_t param_dtype;
  /* Stage 3 without shared memory: so many consecutive ranks shard the
   * parameters among them, and other such groups hold them again. It divides
   * world_size. Default: world_size. */
  int32_t shard_group_size;
  /* With a narrower param_dtype: modules of these classes, separated by commas,
   * become units of their own that stay f32 with all below them. */
  const char* f32_classes;
  /* A flat buffer that is cut evenly is closed before its gradients (or frozen
   * parameters) would take more bytes. Default 25 MiB. */
  int64_t buffer_bytes;
  /* How many units' gathers or reductions are in flight beside the unit in use,
   * up to 64; each takes a slot. -1: none. Default 1. */
  int32_t prefetch;
  /* Stages 2 and 3: 1 keeps every rank's gradients whole, so that they
   * accumulate without communication. */
  int32_t whole_grads;
  /* 1: sums of gradients are kept in fp32 and made in rank order, so that no
   * result depends on stage, units, buffer_bytes, prefetch, overlap or
   * shard_group_size (docs/numerics.md). */
  int32_t deterministic;
  /* Stage 3: 1 keeps parameters whole from the forward pass to the step, as in
   * stage 2, instead of gathering them again for the backward pass
   * (reshard_after_forward=False). */
  int32_t keep_after_forward;
} shard_plan_options;
#define SHARD_PLAN_OPTIONS_INIT                                              \
  {                                                                          \
    sizeof(shard_plan_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0, 0, 0, 0, 0                                                  \
  }

/* Predicted bytes, page rounding included; the engine uses exactly these. */
typedef struct shard_memory {
  size_t struct_size;
  /* Per host where its ranks share memory, which hold one copy; else per rank.
   */
  uint64_t param_bytes;
  uint64_t grad_bytes;      /* Per rank. */
  uint64_t state_bytes;     /* Per rank: optimizer state, master weights too. */
  uint64_t workspace_bytes; /* Per rank: of lamb, adafactor and muon. */
  uint64_t transient_bytes; /* Per rank: slots of units in use or in flight. */
} shard_memory;
#define SHARD_MEMORY_INIT \
  { sizeof(shard_memory), 0, 0, 0, 0, 0 }

typedef struct shard_plan shard_plan;

/* Decides every unit, flat buffer, slot and owner. Pure and local: the same
 * inputs give the same plan on any machine, for any world size, without
 * allocating what it plans. Copies the model. Errors name the offending
 * option, parameter and value; two names of one key in checkpoints are one. */
SHARD_API shard_error* shard_plan_create(const shard_model* model,
                                         const shard_plan_options* options,
                                         shard_plan** plan) SHARD_NOEXCEPT;

/* Equal on two ranks exactly when their plans are. 0 for NULL. Any thread. */
SHARD_API uint64_t shard_plan_fingerprint(const shard_plan* plan)
    SHARD_NOEXCEPT;

/* Param groups, group 0 among them; 0 for NULL. Any thread. */
SHARD_API int32_t shard_plan_num_groups(const shard_plan* plan) SHARD_NOEXCEPT;

/* Units, the root among them; 0 for NULL. They are numbered from 0, the root,
 * in module-walk order. Any thread. */
SHARD_API int32_t shard_plan_num_units(const shard_plan* plan) SHARD_NOEXCEPT;

/* The unit a parameter is in; one of several names is where its first is in
 * module-walk order. FAILED_PRECONDITION for an ignored parameter. Any thread.
 */
SHARD_API shard_error* shard_plan_unit_of(const shard_plan* plan, int32_t param,
                                          int32_t* unit) SHARD_NOEXCEPT;

/* The unit whose outermost module this is; NOT_FOUND when there is none. Any
 * thread. */
SHARD_API shard_error* shard_plan_unit_of_module(const shard_plan* plan,
                                                 int32_t module,
                                                 int32_t* unit) SHARD_NOEXCEPT;

/* A unit's outermost module. Any thread. */
SHARD_API shard_error* shard_plan_unit_module(const shard_plan* plan,
                                              int32_t unit,
                                              int32_t* module) SHARD_NOEXCEPT;

/* What engines use whose ranks share memory, and where they do not. Set
 * memory->struct_size first. Any thread. */
SHARD_API shard_error* shard_plan_memory(const shard_plan* plan,
                                         shard_memory* memory) SHARD_NOEXCEPT;
SHARD_API shard_error* shard_plan_memory_unshared(
    const shard_plan* plan, shard_memory* memory) SHARD_NOEXCEPT;

/* The plan for people, and for programs. Writes at most `capacity` bytes to
 * `buffer`, the closing NUL included, and the full length without it to
 * `length`; ask with capacity 0 (buffer may then be NULL) to learn the length.
 * A short buffer is not an error. Any thread. */
SHARD_API shard_error* shard_plan_text(const shard_plan* plan, char* buffer,
                                       size_t capacity,
                                       size_t* length) SHARD_NOEXCEPT;
SHARD_API shard_error* shard_plan_json(const shard_plan* plan, char* buffer,
                                       size_t capacity,
                                       size_t* length) SHARD_NOEXCEPT;

/* What the host may not have meant, a line each; "" when there is nothing:
 * units with frozen and with trainable parameters, and what that costs; modules
 * that stay f32 by f32_classes. As shard_plan_text. */
SHARD_API shard_error* shard_plan_warnings(const shard_plan* plan, char* buffer,
                                           size_t capacity,
                                           size_t* length) SHARD_NOEXCEPT;

SHARD_API void shard_plan_free(shard_plan* plan) SHARD_NOEXCEPT;

/* ---- Layouts ------------------------------------------------------------ */

/* What a plan decided, for hosts that read or write tensors themselves: where
 * each parameter is and what it is called (docs/flat-layout.md). All of it is
 * pure and local: any thread. What is counted here is numbered from 0, and a
 * number that does not exist is INVALID_ARGUMENT with how many there are.
 * Ignored parameters have no place: FAILED_PRECONDITION.
 *
 * Ranges of elements are [begin, end], both inclusive, as in FSDP's metadata; a
 * range of nothing has end = begin - 1. */

/* Set info->struct_size first, here and in the other results below. */
typedef struct shard_param_info {
  size_t struct_size;
  int64_t numel;
  int64_t begin; /* Of its elements, in its flat buffer. */
  int64_t end;
  int64_t shape[SHARD_MAX_DIMS]; /* 0 from ndim on. */
  int32_t ndim;
  int32_t dtype; /* In which it is stored; see param_dtype. */
  int32_t trainable;
  int32_t group;
  int32_t unit;
  int32_t buffer;
  int32_t num_names;  /* Its FQN, and its aliases. */
  int32_t first_rank; /* The owners of its first and of its last element; */
  int32_t last_rank;  /* -1 without elements. */
  int32_t reserved;
} shard_param_info;
#define SHARD_PARAM_INFO_INIT \
  { sizeof(shard_param_info), 0, 0, 0, {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Parameters of the model, ignored ones among them; 0 for NULL. */
SHARD_API int32_t shard_plan_num_params(const shard_plan* plan) SHARD_NOEXCEPT;

SHARD_API shard_error* shard_plan_param_info(
    const shard_plan* plan, int32_t param,
    shard_param_info* info) SHARD_NOEXCEPT;

/* Parameters one after the other, of one unit, dtype and param group, all
 * trainable or all frozen. Rank r of world_size owns shard_numel elements of
 * full_numel + num_padded. */
typedef struct shard_buffer_info {
  size_t struct_size;
  int64_t full_numel; /* Of its parameters together, without padding. */
  int64_t num_padded; /* At the end; beside parameters where these are whole. */
  int64_t shard_numel;
  int32_t num_params;
  int32_t unit;
  int32_t dtype;
  int32_t trainable;
  int32_t group;      /* -1: frozen. */
  int32_t grad_dtype; /* 0: frozen. */
} shard_buffer_info;
#define SHARD_BUFFER_INFO_INIT \
  { sizeof(shard_buffer_info), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* 0 for NULL. */
SHARD_API int32_t shard_plan_num_buffers(const shard_plan* plan) SHARD_NOEXCEPT;

SHARD_API shard_error* shard_plan_buffer_info(
    const shard_plan* plan, int32_t buffer,
    shard_buffer_info* info) SHARD_NOEXCEPT;

/* The parameter at place `index` of the buffer's num_params, by ascending
 * offset. */
SHARD_API shard_error* shard_plan_buffer_param(const shard_plan* plan,
                                               int32_t buffer, int32_t index,
                                               int32_t* param) SHARD_NOEXCEPT;

typedef struct shard_range {
  size_t struct_size;
  int64_t begin;
  int64_t end;
  int64_t num_padded; /* So many of these elements are no parameter's. */
} shard_range;
#define SHARD_RANGE_INIT \
  { sizeof(shard_range), 0, 0, 0 }

/* What a rank owns of a flat buffer. */
SHARD_API shard_error* shard_plan_rank_range(const shard_plan* plan,
                                             int32_t buffer, int32_t rank,
                                             shard_range* range) SHARD_NOEXCEPT;

/* The part of a parameter that is in some range of its buffer. */
typedef struct shard_slice {
  size_t struct_size;
  int64_t begin; /* In the flat buffer. */
  int64_t end;
  int64_t param_begin; /* The same elements, counted from the parameter's. */
  int64_t param_end;
  int32_t param;
  int32_t reserved;
} shard_slice;
#define SHARD_SLICE_INIT \
  { sizeof(shard_slice), 0, 0, 0, 0, 0, 0 }

/* The parameters that have elements in [begin, end] of a flat buffer, by
 * ascending offset, and which these are; what is behind the buffer counts as
 * padding. Writes at most `capacity` slices and the number of all to `count`;
 * ask with capacity 0 (slices may then be NULL) to learn it. Set the first
 * slice's struct_size: it is the size of each. `num_padded` is what the caller
 * takes for padding in the range; it is checked, and changes nothing. Errors: a
 * negative or reversed range; padding that is negative or larger than it. */
SHARD_API shard_error* shard_plan_slices(const shard_plan* plan, int32_t buffer,
                                         int64_t begin, int64_t end,
                                         int64_t num_padded,
                                         shard_slice* slices, size_t capacity,
                                         size_t* count) SHARD_NOEXCEPT;

/* Where the parameter is in the host's own copy of its whole flat buffer:
 * `data` has `numel` elements of the buffer's dtype, with or without the
 * padding behind the last parameter; another number is an error. Reads nothing.
 * In an engine's memory: shard_engine_param. */
SHARD_API shard_error* shard_plan_param_view(const shard_plan* plan,
                                             int32_t param, void* data,
                                             int64_t numel,
                                             void** view) SHARD_NOEXCEPT;

/* A name of a parameter. Names are numbered in module-walk order; those of
 * ignored parameters, and those in ignored modules, are left out. */
typedef struct shard_name_info {
  size_t struct_size;
  int32_t param;
  int32_t module; /* That it is in. */
  int32_t index;  /* Among the parameter's names: 0 its FQN, else an alias. */
  int32_t reserved;
} shard_name_info;
#define SHARD_NAME_INFO_INIT \
  { sizeof(shard_name_info), 0, 0, 0, 0 }

SHARD_API shard_error* shard_plan_num_names(const shard_plan* plan,
                                            int32_t* count) SHARD_NOEXCEPT;
SHARD_API shard_error* shard_plan_name_info(
    const shard_plan* plan, int32_t name, shard_name_info* info) SHARD_NOEXCEPT;

/* The parameter's FQN, with `index` 0, or an alias. `buffer`, `capacity` and
 * `length` as in shard_plan_text, here and below. */
SHARD_API shard_error* shard_plan_param_name(const shard_plan* plan,
                                             int32_t param, int32_t index,
                                             char* buffer, size_t capacity,
                                             size_t* length) SHARD_NOEXCEPT;

/* The parameter that has this FQN or alias, an ignored one too. NOT_FOUND says
 * where its path ends. */
SHARD_API shard_error* shard_plan_find_param(const shard_plan* plan,
                                             const char* fqn,
                                             int32_t* param) SHARD_NOEXCEPT;

typedef struct shard_module_info {
  size_t struct_size;
  int32_t module; /* Its id. */
  int32_t parent; /* -1: the root. */
  int32_t depth;  /* 0: the root. */
  int32_t ignored;
  int32_t first_name; /* Of the num_names names in it, which follow another. */
  int32_t num_names;
} shard_module_info;
#define SHARD_MODULE_INFO_INIT \
  { sizeof(shard_module_info), 0, 0, 0, 0, 0, 0 }

/* Modules, ignored ones among them; 0 for NULL. */
SHARD_API int32_t shard_plan_num_modules(const shard_plan* plan) SHARD_NOEXCEPT;

/* The module at place `index` of the module walk: pre-order, the root first. */
SHARD_API shard_error* shard_plan_module_info(
    const shard_plan* plan, int32_t index,
    shard_module_info* info) SHARD_NOEXCEPT;

/* The FQN and the class name of a module, by its id; "" is the root's FQN. */
SHARD_API shard_error* shard_plan_module_name(const shard_plan* plan,
                                              int32_t module, char* buffer,
                                              size_t capacity,
                                              size_t* length) SHARD_NOEXCEPT;
SHARD_API shard_error* shard_plan_module_class(const shard_plan* plan,
                                               int32_t module, char* buffer,
                                               size_t capacity,
                                               size_t* length) SHARD_NOEXCEPT;

/* `name` without the components that wrappers leave in it, wherever they stand:
 * _fsdp_wrapped_module, _checkpoint_wrapped_module, _fpw_module, _orig_mod. The
 * last component always stays. With `strip_leading_module` 1 also without one
 * leading "module.", which is DDP's. Any thread. */
SHARD_API shard_error* shard_clean_tensor_name(const char* name,
                                               int32_t strip_leading_module,
                                               char* buffer, size_t capacity,
                                               size_t* length) SHARD_NOEXCEPT;

/* ---- Engines ------------------------------------------------------------ */

typedef struct shard_engine_options {
  size_t struct_size;
  /* Seconds for creation and the default of this engine's waits. Default: the
   * communicator's. */
  double timeout;
  /* The same on every rank. What the host multiplies its loss by, so that fp16
   * gradients do not vanish; steps divide by it. Default "": nothing.
   *   "static?scale=1024"
   *   "dynamic?init_scale=65536&growth_factor=2&backoff_factor=0.5
   *    &growth_interval=2000&min_scale=1&max_scale=16777216"
   *                               (without the line break)
   * static needs its scale. dynamic skips steps with gradients that are not
   * finite, on all ranks, and lowers the scale by backoff_factor;
   * growth_interval good steps in a row raise it. Values not given are those
   * shown. */
  const char* loss_scaling;
  /* SHARD_MISSING_*. The same on every rank. */
  int32_t missing_grads;
  /* 1: where ranks share no memory, shard_engine_step returns while parameters
   * are still on their way to this rank: acquire each unit before you read its
   * parameters. The same on every rank. */
  int32_t overlap;
  /* Where the engine's tensors live and its kernels run: "cpu" (default), or
   * "cpu-async?max_delay=SECONDS&seed=N", which runs every kernel on a thread
   * after a pause, to find what does not wait as it must. */
  const char* device;
} shard_engine_options;
#define SHARD_ENGINE_OPTIONS_INIT \
  { sizeof(shard_engine_options), 0, 0, 0, 0, 0 }

/* Parameters that got no gradient since the last step ("Units" below says which
 * those are). Default: the step is an error that names their units. */
#define SHARD_MISSING_ZERO 1 /* Their gradients are zeros. */
/* Those that got none on any rank are left as they are: parameter, states and
 * step count. One that got some on other ranks counts as zeros on this one. */
#define SHARD_MISSING_SKIP 2

typedef struct shard_engine shard_engine;

/* Allocates buffers and checks that all ranks hold the same plan and options.
 * COLLECTIVE, blocks. Keeps plan and comm alive. Errors beside those of every
 * collective: DESYNC when the ranks' plans, loss_scaling, missing_grads or
 * overlap differ; INVALID_ARGUMENT when the plan's world size is not the
 * communicator's, or for a bad option; UNIMPLEMENTED for a
 * stage or dtype this version cannot step; RESOURCE_EXHAUSTED when there is not
 * enough memory, or no checkpoint could hold what it trains;
 * BACKEND_UNAVAILABLE when muon finds no CBLAS, with all that was tried. */
SHARD_API shard_error* shard_engine_create(
    const shard_plan* plan, shard_comm* comm,
    const shard_engine_options* options, shard_engine** engine) SHARD_NOEXCEPT;

/* The parameter's elements, row-major, `numel` of them. On ranks that share a
 * host they exist once and all ranks read the same memory: read only, except
 * on rank 0 before shard_engine_broadcast_params. Valid as long as the engine,
 * or until shard_engine_add_param_group or _set_trainable; where parameters are
 * sharded (stage 3 without shared memory), from shard_engine_unit_acquire to
 * _release, and FAILED_PRECONDITION else. A zero-size parameter has numel 0.
 * Not during a step. Local. */
SHARD_API shard_error* shard_engine_param(shard_engine* engine, int32_t param,
                                          void** data,
                                          int64_t* numel) SHARD_NOEXCEPT;

/* This rank's gradient of the parameter, same shape, to be written by the host
 * between steps. Starts as zero and keeps its values until the host changes
 * them, but a step with max_grad_norm, skip_nonfinite or dynamic loss_scaling,
 * a skipped one too, leaves it unspecified; so does every step without shared
 * memory; and one with missing_grads makes zeros of what does not count. Where
 * gradients are sharded (stages 2 and 3) it is there while its unit is acquired
 * for the backward pass, from zeros on, until it is declared ready, and
 * FAILED_PRECONDITION else; so is that of a frozen parameter. Valid as long as
 * shard_engine_param's. Local. */
SHARD_API shard_error* shard_engine_grad(shard_engine* engine, int32_t param,
                                         void** data,
                                         int64_t* numel) SHARD_NOEXCEPT;

/* A hyperparameter of a param group, by the key it has in the optimizer's text.
 * `group` -1 means every group that has the key; a flag is 0 or 1. A new value
 * holds from the next step on, and every rank must set the same before it: the
 * step is DESYNC otherwise. Errors leave all values as they were: a group that
 * does not exist; NOT_FOUND for a key that it does not have; a value out of
 * range, with the range; FAILED_PRECONDITION for a change that would need other
 * states, and for words. get_hyper takes one group, and gives the number of a
 * word: shard_engine_group_text has the word. Local. */
SHARD_API shard_error* shard_engine_set_hyper(shard_engine* engine,
                                              int32_t group, const char* key,
                                              double value) SHARD_NOEXCEPT;
SHARD_API shard_error* shard_engine_get_hyper(const shard_engine* engine,
                                              int32_t group, const char* key,
                                              double* value) SHARD_NOEXCEPT;

/* The group's optimizer with the values it has now, every key:
 * "sgd?lr=0.1&momentum=0&...". `buffer`, `capacity` and `length` as in
 * shard_plan_text. Local. */
SHARD_API shard_error* shard_engine_group_text(const shard_engine* engine,
                                               int32_t group, char* buffer,
                                               size_t capacity,
                                               size_t* length) SHARD_NOEXCEPT;

/* For a run that began in another program, after shard_engine_broadcast_params:
 * an optimizer state of `param`, `count` values in fp32 of the whole tensor, of
 * which this rank keeps what it owns. `state` is torch's name, "exp_avg"; or
 * "master_param", the fp32 value of a bf16 or f16 parameter. States stored in
 * fewer bits are rounded to nearest. "master_param" leaves the parameter itself
 * as it is until the next step. Every rank does the same. docs/numerics.md says
 * what the states are called elsewhere. Errors: NOT_FOUND for a state that the
 * optimizer does not keep, listing those that it does; a count that is not the
 * state's; a value that is not finite, or a negative second moment of adam;
 * FAILED_PRECONDITION for a frozen parameter, or before the broadcast. Local.
 */
SHARD_API shard_error* shard_engine_set_state(shard_engine* engine,
                                              int32_t param, const char* state,
                                              const float* values,
                                              size_t count) SHARD_NOEXCEPT;

/* And how many steps it had done, 0 to 2^32 - 2: bias corrections go on from
 * there, and what an optimizer does in its first step only is not done again.
 * Every rank sets the same, or the next step is DESYNC. Steps are counted up to
 * 2^32 - 2: a checkpoint beyond it and the step after it are OUT_OF_RANGE.
 * FAILED_PRECONDITION before the broadcast. Local. */
SHARD_API shard_error* shard_engine_set_step(shard_engine* engine,
                                             int64_t step) SHARD_NOEXCEPT;

/* What the host multiplies its loss by before the next backward pass; the same
 * on every rank. 1 without loss_scaling. Local. */
SHARD_API shard_error* shard_engine_loss_scale(const shard_engine* engine,
                                               double* scale) SHARD_NOEXCEPT;

/* Gets the number of good steps in a row since the loss scale changed or a step
 * was skipped; growth_interval of them raise the scale. torch's
 * GradScaler.state_dict calls this number _growth_tracker. The same on every
 * rank; 0 unless loss_scaling is dynamic. INVALID_ARGUMENT for NULL, and no
 * other error. Local. */
SHARD_API shard_error* shard_engine_growth_tracker(
    const shard_engine* engine, int64_t* good_steps) SHARD_NOEXCEPT;

/* Sets the loss scale and the growth tracker, for a run that goes on with the
 * dynamic loss scaling of another program. Checkpoints keep both numbers; so do
 * state dicts, as "loss_scale.scale" and "loss_scale.good_steps". Every rank
 * sets the same, or a later step is DESYNC. Errors leave both as they were:
 * INVALID_ARGUMENT for a scale that is no number of fp32 within the bounds of
 * loss_scaling, for another scale than the static one, and for good_steps
 * outside 0 to growth_interval - 1; FAILED_PRECONDITION before the broadcast
 * and within a step. Local. */
SHARD_API shard_error* shard_engine_set_loss_scale(
    shard_engine* engine, double scale, int64_t good_steps) SHARD_NOEXCEPT;

/* Sets this rank's gradients to zero; what was accumulated in sharded ones, and
 * declared ready, is dropped. Where gradients are sharded a sum is made of all
 * ranks' gradients, so every rank calls this equally often between two steps,
 * in the same places between its passes; a step before which they did not is
 * DESYNC, with missing_grads at the step, where the ranks that lag may still
 * call it, else at the first unit that is reduced, and for good. Ranks need not
 * wait for each other there. Where gradients are whole each rank zeroes its own
 * as it likes, on ranks that share no memory and without missing_grads until it
 * declares them ready. Local; waits for reductions that are on their way. */
SHARD_API shard_error* shard_engine_zero_grad(shard_engine* engine)
    SHARD_NOEXCEPT;

/* Copies initial values in. `bytes` must be the parameter's size. Rank 0's
 * values are the ones that count: other ranks may call it, their arguments are
 * checked and their values dropped, so that all ranks can run the same code.
 * Local; FAILED_PRECONDITION after shard_engine_broadcast_params. */
SHARD_API shard_error* shard_engine_set_param(shard_engine* engine,
                                              int32_t param, const void* data,
                                              size_t bytes) SHARD_NOEXCEPT;

/* Makes rank 0's parameters everybody's. COLLECTIVE, blocks; once, before the
 * first step. */
SHARD_API shard_error* shard_engine_broadcast_params(
    shard_engine* engine, double timeout) SHARD_NOEXCEPT;

/* ---- Units -------------------------------------------------------------- */

/* Forward and backward passes go unit by unit (shard_plan_options.wrap):
 *
 *   acquire(FORWARD)  compute  release             for each unit
 *   acquire(BACKWARD) compute  grads_ready  release
 *   shard_engine_step
 *
 * In stages 0 and 1 on ranks that share memory all of it is optional. In stages
 * 2 and 3 the backward half is needed, and in stage 3 without shared memory
 * both. Units of one nesting depth share transient memory: as many may be in
 * use at once as the plan's prefetch allows, plus one.
 *
 * In every stage alike, a step counts the gradients that this rank declared
 * (unit_grads_ready, param_grad_ready) since the last step or zero_grad, and no
 * others, whatever lies in their place. A rank that declared none, because it
 * released its units as they were or acquired none, has none in this step; see
 * missing_grads. That holds from the rank's first acquire for a backward pass,
 * or its first declaration, on. Until then, and for good in a host that makes
 * no such call, whole gradients all count, as they lie there. Ranks may differ
 * in that where they share memory, or with missing_grads.
 *
 * States of a unit: IDLE, FORWARD, BACKWARD_PRE, BACKWARD_POST; of the engine:
 * IDLE, FORWARD_BACKWARD, SUMMON_FULL_PARAMS. A call in the wrong one is
 * FAILED_PRECONDITION and names it. Where a call has to exchange something with
 * the other ranks, marked COLLECTIVE*, an error on one rank is the error of all
 * ranks, and final: later calls return it; unless all ranks made the same
 * mistake. Ranks that exchange different things are DESYNC. */
#define SHARD_PASS_FORWARD 1
#define SHARD_PASS_BACKWARD 2
/* The host writes every element of the unit's gradients, so that they need not
 * be zeros before; elements that it leaves out are unspecified. Otherwise as
 * BACKWARD. Not with missing_grads. */
#define SHARD_PASS_BACKWARD_OVERWRITE 3

/* IDLE to FORWARD or BACKWARD_PRE. When it returns the unit's parameters are
 * there: at once where ranks share memory, and in stages 0 to 2; in stage 3
 * without shared memory they are gathered, and those of the units that were
 * acquired next in the step before are fetched ahead. For a backward pass there
 * is room for its gradients, with BACKWARD zeros in stages 2 and 3. `timeout`
 * in seconds; 0: the engine's. COLLECTIVE*, blocks. */
SHARD_API shard_error* shard_engine_unit_acquire(shard_engine* engine,
                                                 int32_t unit, int32_t pass,
                                                 double timeout) SHARD_NOEXCEPT;

/* Releases an acquired unit: FORWARD, BACKWARD_PRE or BACKWARD_POST to IDLE. A
 * unit that is released from BACKWARD_PRE has no gradients in this pass; with
 * missing_grads it has those that shard_engine_param_grad_ready declared. Where
 * such gradients are sharded the release declares the unit as
 * shard_engine_unit_grads_ready does, is COLLECTIVE*, and waits for the other
 * ranks at most as long as the engine's timeout. Every other release is local
 * and does not wait. Errors: INVALID_ARGUMENT for a unit that does not exist;
 * FAILED_PRECONDITION for one that is IDLE, before
 * shard_engine_broadcast_params, and while parameters are summoned. */
SHARD_API shard_error* shard_engine_unit_release(shard_engine* engine,
                                                 int32_t unit) SHARD_NOEXCEPT;

/* BACKWARD_PRE to BACKWARD_POST: this rank's gradients of the unit are written,
 * and the host no longer touches them. They are reduced while it goes on. In
 * stages 0 and 1 also from IDLE. After shard_engine_param_grad_ready for some
 * parameters of the unit, the others have none in this pass (missing_grads).
 * Once per step, but for passes under no_sync. COLLECTIVE*. */
SHARD_API shard_error* shard_engine_unit_grads_ready(
    shard_engine* engine, int32_t unit) SHARD_NOEXCEPT;

/* The same for one parameter; the last of a unit's makes the unit ready. */
SHARD_API shard_error* shard_engine_param_grad_ready(
    shard_engine* engine, int32_t param) SHARD_NOEXCEPT;

/* 1: gradients that become ready from here on are accumulated, and another
 * backward pass follows before the step; 0, as at first: they are the last. In
 * stages 0 and 1, and with the plan's whole_grads, the host adds to its
 * gradients and nothing is exchanged; where gradients are sharded each pass is
 * reduced and added to this rank's sum. The same on every rank. Local. */
SHARD_API shard_error* shard_engine_no_sync(shard_engine* engine,
                                            int32_t on) SHARD_NOEXCEPT;

/* The same on every rank. */
typedef struct shard_step_options {
  size_t struct_size;
  /* Learning rate of all param groups from this step on. Default: what it was;
   * at first the optimizer's. shard_engine_set_hyper sets that of one group, or
   * 0. */
  double lr;
  /* Scales gradients down so that their global norm is at most this:
   * coefficient min(1, max_grad_norm / (norm + 1e-6)). Default: no clipping,
   * and the norm is not computed. */
  double max_grad_norm;
  /* What the sum of the ranks' gradients is divided by. Default: world_size. */
  double grad_divisor;
  /* What the loss was multiplied by. Default: shard_engine_loss_scale. Not
   * together with loss_scaling. */
  double loss_scale;
  /* Seconds. */
  double timeout;
  /* 1: skip the step, on all ranks, when a gradient is not finite. Implied by
   * max_grad_norm and by dynamic loss_scaling. Costs the same extra pass. */
  int32_t skip_nonfinite;
  /* 1: the sum of the ranks' gradients is divided by the number of ranks that
   * have not joined (shard_engine_join), not by world_size. */
  int32_t average_active;
  /* Which norm max_grad_norm bounds and the report has: 1, 2, any p above 0 for
   * which it cannot overflow, or infinity for the largest magnitude. Default 2.
   * Those other than 1, 2 and infinity cost another pass over the gradients. */
  double grad_norm_type;
  /* Bounds every element of the averaged gradient to [-clip_value, clip_value].
   * Default: no bound. Not together with max_grad_norm. */
  double clip_value;
} shard_step_options;
#define SHARD_STEP_OPTIONS_INIT \
  { sizeof(shard_step_options), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

typedef struct shard_step_report {
  size_t struct_size;
  int64_t step;     /* Steps done so far, skipped ones not counted. */
  double grad_norm; /* Before clipping, after division; -1: not computed. */
  int32_t skipped; /* 1: gradients were not finite, parameters are as before. */
  int32_t active_ranks;  /* That have not joined. */
  uint64_t bytes_moved;  /* Read and written by this rank's kernels. */
  double seconds_wait;   /* For other ranks. */
  double seconds_reduce; /* Sum and norm; 0 in the one-pass form. */
  double seconds_update; /* Update and publish; with the sum in one pass. */
  double seconds_total;
  double loss_scale; /* What this step divided the gradients by for the loss. */
  /* Tensors that this rank sent since the step before, or read of other ranks'
   * memory to reduce them ahead of the step; how many of those were through
   * before the host waited for them; the seconds they took; and those that the
   * host waited. */
  uint64_t bytes_communicated;
  uint64_t bytes_overlapped;
  double seconds_communication;
  double seconds_exposed;
} shard_step_report;
#define SHARD_STEP_REPORT_INIT \
  { sizeof(shard_step_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Reduces the gradients of all ranks, updates, and publishes the parameters:
 * when it returns, every rank sees all new values and may write gradients
 * again. COLLECTIVE, blocks. `options` and `report` may be NULL. The same
 * options, gradients and world size give the same bits on one kind of processor
 * (muon: with one BLAS and number of its threads). DESYNC when options
 * differ between ranks; FAILED_PRECONDITION before broadcast_params. */
SHARD_API shard_error* shard_engine_step(
    shard_engine* engine, const shard_step_options* options,
    shard_step_report* report) SHARD_NOEXCEPT;

/* Optional, before the backward pass: says what the step after it will be, so
 * that each unit is updated, and its parameters spread, as soon as its
 * gradients are ready on all ranks, while the host still computes the others.
 * Parameters of a unit change from then on; other results are those of
 * shard_engine_step, to the bit. The step itself then takes no options, or the
 * same. FAILED_PRECONDITION with what needs all gradients before anything is
 * updated: max_grad_norm, skip_nonfinite, dynamic loss_scaling, missing_grads.
 * COLLECTIVE, blocks. */
SHARD_API shard_error* shard_engine_begin_step(
    shard_engine* engine, const shard_step_options* options) SHARD_NOEXCEPT;

/* For a rank that is out of input while others still have some: takes its part
 * in all that they exchange, with gradients of zero, and in their steps, until
 * every rank has joined; then all return, and may go on with a next epoch.
 * `steps`, which may be NULL: how many those were. `timeout` seconds for each
 * wait; 0: the engine's. In the meantime the other ranks only acquire, release,
 * declare ready and step; what they set by shard_engine_set_hyper is this
 * rank's too. COLLECTIVE with those, blocks. FAILED_PRECONDITION while units
 * are in use or gradients are ready. */
SHARD_API shard_error* shard_engine_join(shard_engine* engine, double timeout,
                                         int64_t* steps) SHARD_NOEXCEPT;

/* ---- Full parameters, and changes at run time ------------------------------
 */

/* From here on shard_engine_param gives whole private copies of the parameters
 * in `module` (0: all) and below, on rank `rank` or, with -1, on all; on the
 * others it is FAILED_PRECONDITION for those. The host may read and change the
 * copies; the engine has its own until shard_engine_summon_end, so a host that
 * fails in between has changed nothing. Meanwhile only shard_engine_param and
 * summon_end are allowed. Takes the copies' bytes. The same on every rank.
 * COLLECTIVE, blocks. Errors: FAILED_PRECONDITION while units are in use,
 * INVALID_ARGUMENT for a module or rank that does not exist, DESYNC. */
SHARD_API shard_error* shard_engine_summon(shard_engine* engine, int32_t module,
                                           int32_t rank,
                                           double timeout) SHARD_NOEXCEPT;

/* Frees the copies. With `write_back` 1 they become the parameters first: every
 * rank writes what it owns from its own copies, or all from those of the one
 * rank that has them. Master weights follow where a parameter's bits have
 * changed, and keep their precision elsewhere. COLLECTIVE, blocks. */
SHARD_API shard_error* shard_engine_summon_end(shard_engine* engine,
                                               int32_t write_back,
                                               double timeout) SHARD_NOEXCEPT;

/* Gives `params`, which are frozen or in the default group, a group of their
 * own, as shard_model_add_param_group does; they become trainable. "?key=value"
 * inherits from the default group as it is now. Both calls put another plan in
 * the place of the old one, between steps: all pointers from shard_engine_param
 * and _grad are no longer valid, gradients are zero, parameters keep their
 * values. States of parameters that were and are trainable stay where the
 * optimizer has one of that name and type; others begin as zeros, and their
 * parameters count their steps from 0. Frozen parameters lose their states.
 * Owners of other parameters stay as they were. Needs the memory of both plans.
 * The same on every rank, which agree on the new plan's fingerprint; on an
 * error everything is as before. `group` may be NULL. COLLECTIVE, block. */
SHARD_API shard_error* shard_engine_add_param_group(
    shard_engine* engine, const char* optimizer, const int32_t* params,
    size_t count, double timeout, int32_t* group) SHARD_NOEXCEPT;

/* Freezes (`trainable` 0) or trains (1) parameters from here on. */
SHARD_API shard_error* shard_engine_set_trainable(
    shard_engine* engine, const int32_t* params, size_t count,
    int32_t trainable, double timeout) SHARD_NOEXCEPT;

/* Bytes this engine really has allocated; param_bytes is the host's. Set
 * memory->struct_size first. Local. */
SHARD_API shard_error* shard_engine_memory(const shard_engine* engine,
                                           shard_memory* memory) SHARD_NOEXCEPT;

SHARD_API void shard_engine_free(shard_engine* engine) SHARD_NOEXCEPT;

/* ---- Checkpoints -----------------------------------------------------------
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

/* What of a training state is meant. Frozen. */
enum { SHARD_STATE_ALL = 0, SHARD_STATE_MODEL = 1, SHARD_STATE_OPTIMIZER = 2 };

/* Hears of long work: bytes done and in all, of this rank. Not 0 cancels it,
 * which is CANCELLED. Called from threads of libshard, one call at a time. */
typedef int32_t (*shard_progress_fn)(uint64_t done, uint64_t total,
                                     void* user_data);

typedef struct shard_save_options {
  size_t struct_size;
  /* Seconds for the whole save, while ranks write. Default 1800. A rank that
   * does not come to it is found after the engine's timeout. */
  double timeout;
  int32_t content;       /* SHARD_STATE_ALL, _MODEL or _OPTIMIZER. */
  int32_t ignore_frozen; /* 1: without frozen parameters. */
  /* Only what has a name in these modules or below. Default: everything. */
  const int32_t* submodules;
  int32_t num_submodules;
  /* 1: keys go without the module's path. One submodule only, for the keys of
   * several could be the same. */
  int32_t strip_prefix;
  int32_t overwrite; /* 1: replace a checkpoint of this step. */
  int32_t threads;   /* That write, per rank: 1 to 256. Default 4. */
  /* When it is saved, only the last keep_last checkpoints stay, and those whose
   * step is a multiple of keep_every. Default: all stay. */
  int64_t keep_last;
  int64_t keep_every;
  shard_progress_fn progress; /* May be NULL. */
  void* progress_user_data;
} shard_save_options;
#define SHARD_SAVE_OPTIONS_INIT \
  { sizeof(shard_save_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* A save in the background. */
typedef struct shard_async shard_async;

/* Saves parameters, optimizer states, hyperparameters, step counts, the loss
 * scale and the host's blobs as checkpoint `root`/step-NNNNNN of the step that
 * was done last. Every rank writes what it owns. `root` is made if it is
 * missing; ranks may reach it by different paths.
 *
 * With `async` NULL it blocks until the checkpoint is durable. Else the state
 * is copied first (this takes the bytes that this rank owns, and keeps that
 * memory for the next time), `async` is set, and training may go on. The next
 * save or load waits for it; if it failed and shard_async_wait has not said so,
 * that call returns its error. Freeing the engine waits for it too.
 *
 * Same options on every rank, but threads and progress. COLLECTIVE, blocks.
 * Errors: ALREADY_EXISTS for a checkpoint of this step without `overwrite`;
 * RESOURCE_EXHAUSTED when the disk is full; others of the file system. After an
 * error, what was there before is whole. FAILED_PRECONDITION unless between
 * steps. */
SHARD_API shard_error* shard_checkpoint_save(
    shard_engine* engine, const char* root, const shard_save_options* options,
    shard_async** async) SHARD_NOEXCEPT;

/* Whether it is through. Any thread; 1 for NULL. */
SHARD_API int32_t shard_async_done(const shard_async* async) SHARD_NOEXCEPT;

/* Waits for it, and says how it ended, every time: DEADLINE_EXCEEDED while it
 * has not. `timeout` 0: the save's. Any thread, blocks. */
SHARD_API shard_error* shard_async_wait(shard_async* async,
                                        double timeout) SHARD_NOEXCEPT;

/* Does not wait, nor stop it. */
SHARD_API void shard_async_free(shard_async* async) SHARD_NOEXCEPT;

typedef struct shard_load_options {
  size_t struct_size;
  /* Seconds for the whole load, while ranks read. Default 1800. A rank that
   * does not come to it is found after the engine's timeout. */
  double timeout;
  int32_t content;       /* As in shard_save_options. */
  int32_t ignore_frozen; /* 1: frozen parameters stay as they are. */
  const int32_t* submodules;
  int32_t num_submodules;
  int32_t strip_prefix; /* 1: the checkpoint's keys go without the path. */
  /* 1: keys that are missing or unexpected are no error, but reported. */
  int32_t not_strict;
  /* 1: elements of other types are converted, to nearest: f32, bf16, f16, f64,
   * and states in q8. Where only one side has master weights, they stand for
   * the parameter, and the other way around. */
  int32_t convert;
  /* 1: the checkpoint's keys go without one leading "module.". */
  int32_t strip_leading_module;
  int32_t no_verify; /* 1: what is read is not compared with its checksums. */
  int32_t threads;   /* That read, per rank: 1 to 256. Default 4. */
  int32_t reserved;
  shard_progress_fn progress; /* May be NULL. */
  void* progress_user_data;
} shard_load_options;
#define SHARD_LOAD_OPTIONS_INIT \
  { sizeof(shard_load_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

typedef struct shard_load_report {
  size_t struct_size;
  int64_t step;             /* Of what was loaded; -1: it has none. */
  int32_t saved_world_size; /* 0: unknown. */
  int32_t reserved;
  int64_t loaded;    /* Tensors that were read. */
  int64_t converted; /* Of those, as another type. */
  /* Keys; which ones: shard_engine_load_json. */
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
 * are as in a new engine, and, unless `content` is SHARD_STATE_OPTIMIZER,
 * parameters have no values until another load or broadcast. */
SHARD_API shard_error* shard_checkpoint_load(
    shard_engine* engine, const char* path, const shard_load_options* options,
    shard_load_report* report) SHARD_NOEXCEPT;

/* What the last load that fitted did not find, as JSON: {"missing": [...],
 * "unexpected": [...], "mismatched": []}. As shard_plan_text. Local. */
SHARD_API shard_error* shard_engine_load_json(const shard_engine* engine,
                                              char* buffer, size_t capacity,
                                              size_t* length) SHARD_NOEXCEPT;

/* How what the ranks saved becomes that of the ranks that load. Frozen.
 *   PER_RANK    at the same world size each rank gets its own, else none does;
 *               the host reads them by shard_checkpoint_blob
 *   REPLICATED  the same on all ranks
 *   SUMMED      int64 numbers that add up over the ranks, such as samples seen:
 *               at the same world size each rank gets its own, else rank r the
 *               sums of ranks r, r + M, r + 2M, ..., or zeros */
enum {
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
SHARD_API shard_error* shard_engine_set_blob(shard_engine* engine,
                                             const char* name, int32_t rule,
                                             const void* data,
                                             size_t bytes) SHARD_NOEXCEPT;

/* What was set or loaded; `data` is the engine's, until the name is set again
 * or something is loaded. NOT_FOUND. Local. */
SHARD_API shard_error* shard_engine_blob(const shard_engine* engine,
                                         const char* name, const void** data,
                                         size_t* bytes) SHARD_NOEXCEPT;

/* ---- Checkpoints without an engine -----------------------------------------
 *
 * Named tensors in files: a checkpoint, a safetensors file, or the several of
 * a model.safetensors.index.json. All of this is local. A handle is immutable,
 * and holds its files open, so that one that is replaced is read as it was: any
 * thread. All handles together hold at most a quarter of the descriptors that
 * the process may have (ulimit -n); of more files, some are opened again when
 * they are read, which is NOT_FOUND once they are deleted. What is counted is
 * numbered from 0, and a number that does not exist is INVALID_ARGUMENT. */
typedef struct shard_checkpoint shard_checkpoint;

/* `path` as in shard_checkpoint_load. Errors: NOT_FOUND, CORRUPT,
 * UNIMPLEMENTED for a newer format. */
SHARD_API shard_error* shard_checkpoint_open(
    const char* path, shard_checkpoint** checkpoint) SHARD_NOEXCEPT;

enum { SHARD_FORMAT_CHECKPOINT = 1, SHARD_FORMAT_SAFETENSORS = 2 };

typedef struct shard_checkpoint_info {
  size_t struct_size;
  int32_t format;
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

SHARD_API shard_error* shard_checkpoint_get_info(
    const shard_checkpoint* checkpoint,
    shard_checkpoint_info* info) SHARD_NOEXCEPT;

/* The folder or file that was opened. As shard_plan_text, here and below. */
SHARD_API shard_error* shard_checkpoint_path(const shard_checkpoint* checkpoint,
                                             char* buffer, size_t capacity,
                                             size_t* length) SHARD_NOEXCEPT;

/* Element types of files beyond those of parameters. Frozen. Q8 are optimizer
 * states in 8 bits, whose scales are the tensor KEY.q8_scale. OPAQUE is a type
 * of safetensors that libshard does not read, such as complex numbers, or one
 * that came later; shard_checkpoint_tensor_type has its name. Such tensors are
 * listed, and shard_checkpoint_export copies them as they are; their values are
 * UNIMPLEMENTED. */
enum {
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

/* What tensors are for. Frozen. BUFFER: of the host, neither stepped nor a
 * parameter. */
enum { SHARD_ROLE_PARAM = 1, SHARD_ROLE_BUFFER = 2, SHARD_ROLE_STATE = 3 };

typedef struct shard_tensor_info {
  size_t struct_size;
  int32_t dtype;
  int32_t role;
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
SHARD_API shard_error* shard_checkpoint_tensor(
    const shard_checkpoint* checkpoint, int64_t tensor,
    shard_tensor_info* info) SHARD_NOEXCEPT;
SHARD_API shard_error* shard_checkpoint_tensor_key(
    const shard_checkpoint* checkpoint, int64_t tensor, char* buffer,
    size_t capacity, size_t* length) SHARD_NOEXCEPT;
/* The name of a tensor's element type: "f32", "q8"; of SHARD_OPAQUE what the
 * file says: "C64". */
SHARD_API shard_error* shard_checkpoint_tensor_type(
    const shard_checkpoint* checkpoint, int64_t tensor, char* buffer,
    size_t capacity, size_t* length) SHARD_NOEXCEPT;
/* NOT_FOUND when there is no tensor of that key. */
SHARD_API shard_error* shard_checkpoint_find(const shard_checkpoint* checkpoint,
                                             const char* key,
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
SHARD_API shard_error* shard_checkpoint_slice(
    const shard_checkpoint* checkpoint, int64_t tensor, int32_t index,
    shard_tensor_slice* slice) SHARD_NOEXCEPT;

/* A data file's name, and its bytes. `bytes` may be NULL. */
SHARD_API shard_error* shard_checkpoint_file(const shard_checkpoint* checkpoint,
                                             int32_t file, uint64_t* bytes,
                                             char* buffer, size_t capacity,
                                             size_t* length) SHARD_NOEXCEPT;

/* The optimizer of a param group with all values: "adamw?lr=0.001&...". */
SHARD_API shard_error* shard_checkpoint_group(
    const shard_checkpoint* checkpoint, int32_t group, char* buffer,
    size_t capacity, size_t* length) SHARD_NOEXCEPT;

/* A number by its name, such as "loss_scale.scale". `value` may be NULL. */
SHARD_API shard_error* shard_checkpoint_scalar(
    const shard_checkpoint* checkpoint, int32_t scalar, double* value,
    char* buffer, size_t capacity, size_t* length) SHARD_NOEXCEPT;

/* A blob's name, its rule and the rank that saved it. Both may be NULL. */
SHARD_API shard_error* shard_checkpoint_blob_info(
    const shard_checkpoint* checkpoint, int32_t blob, int32_t* rule,
    int32_t* rank, char* buffer, size_t capacity,
    size_t* length) SHARD_NOEXCEPT;
/* Its bytes: as shard_plan_text, but without a closing NUL. Any number of them:
 * they are read in pieces. After CORRUPT, those in `buffer` are of no use. */
SHARD_API shard_error* shard_checkpoint_blob(const shard_checkpoint* checkpoint,
                                             int32_t blob, void* buffer,
                                             size_t capacity,
                                             size_t* length) SHARD_NOEXCEPT;

/* Reads elements [begin, begin + numel) of a tensor as they are stored into
 * `buffer` of `bytes` bytes, comparing checksums where there are some. Blocks.
 * Errors: OUT_OF_RANGE; INVALID_ARGUMENT when `bytes` is not what they have;
 * UNIMPLEMENTED for SHARD_OPAQUE; CORRUPT naming tensor and file. */
SHARD_API shard_error* shard_checkpoint_read(const shard_checkpoint* checkpoint,
                                             int64_t tensor, int64_t begin,
                                             int64_t numel, void* buffer,
                                             size_t bytes) SHARD_NOEXCEPT;

/* Reads everything and compares it with its checksums; what has none is only
 * read. Blocks; `progress` may be NULL. CORRUPT has all that is wrong as
 * detail: {"problems": ["tensor '...' is damaged in FILE ...", ...]}. */
SHARD_API shard_error* shard_checkpoint_verify(
    const shard_checkpoint* checkpoint, int32_t threads,
    shard_progress_fn progress, void* progress_user_data) SHARD_NOEXCEPT;

typedef struct shard_convert_options {
  size_t struct_size;
  int32_t content;   /* As in shard_save_options. */
  int32_t overwrite; /* 1: replace what is there. */
  int32_t threads;   /* 1 to 256. Default 4. */
  /* What float tensors become: SHARD_F32, _BF16, _F16 or _F64. Default: each
   * stays what it is, but in safetensors q8 becomes f32. */
  int32_t dtype;
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
  { sizeof(shard_convert_options), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Writes a checkpoint into `root`, as shard_checkpoint_save does: with another
 * number of files, of other types, or from safetensors (then of step 0). With
 * blobs of the host the checkpoint still says how many ranks saved them, as
 * their rules need it. Tensors and blobs are streamed: memory stays below 64
 * MiB and 16 MiB per thread. Blocks. UNIMPLEMENTED for a tensor of
 * SHARD_OPAQUE. */
SHARD_API shard_error* shard_checkpoint_write(
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
 * the file system cannot exchange two files (RENAME_EXCHANGE): then those that
 * were already replaced stay replaced, and the old index of a set of several
 * files is deleted, for it would name files of both. */
SHARD_API shard_error* shard_checkpoint_export(
    const shard_checkpoint* checkpoint, const char* path,
    const shard_convert_options* options) SHARD_NOEXCEPT;

SHARD_API void shard_checkpoint_free(shard_checkpoint* checkpoint)
    SHARD_NOEXCEPT;

/* ---- State dicts -----------------------------------------------------------
 *
 * Named tensors and numbers in memory, under the keys of checkpoints: what this
 * rank has of an engine's state, or what a host loads into one. Numbers are
 * "state.FQN.step" and "param_groups.FQN.KEY", such as .lr; of a whole model
 * with dynamic loss_scaling also those of shard_engine_set_loss_scale.
 *
 *   sharded   shard_state_get: this rank's elements of every tensor; local
 *   whole     shard_state_gather: every tensor whole, on one rank or all, one
 *             after the other in bounded memory; collective
 *   loading   shard_state_load, from either, on every rank or on rank 0 alone;
 *             collective */
typedef struct shard_state shard_state;

typedef struct shard_state_options {
  size_t struct_size;
  /* Seconds; default: the engine's, after which a rank that does not come is
   * found in any case. */
  double timeout;
  int32_t content; /* As in shard_save_options, down to strip_prefix. */
  int32_t ignore_frozen;
  const int32_t* submodules;
  int32_t num_submodules;
  int32_t strip_prefix;
  /* shard_state_get, 1: of tensors a copy, which stays what it is. Default:
   * pointers into the engine, valid until the next call that changes or frees
   * it. */
  int32_t copy;
  int32_t reserved;
} shard_state_options;
#define SHARD_STATE_OPTIONS_INIT \
  { sizeof(shard_state_options), 0, 0, 0, 0, 0, 0, 0, 0 }

/* What this rank owns of an engine's state. Other names of tied parameters are
 * there as aliases, without elements; trainable, group and step of
 * shard_tensor_info are not filled. Local: no other rank takes part. Errors:
 * FAILED_PRECONDITION unless between steps, a module that does not exist. */
SHARD_API shard_error* shard_state_get(shard_engine* engine,
                                       const shard_state_options* options,
                                       shard_state** state) SHARD_NOEXCEPT;

/* Tensors, aliases among them; 0 for NULL. Any thread, here and below. */
SHARD_API int64_t shard_state_num_tensors(const shard_state* state)
    SHARD_NOEXCEPT;
SHARD_API shard_error* shard_state_tensor(
    const shard_state* state, int64_t tensor,
    shard_tensor_info* info) SHARD_NOEXCEPT;
SHARD_API shard_error* shard_state_tensor_key(const shard_state* state,
                                              int64_t tensor, char* buffer,
                                              size_t capacity,
                                              size_t* length) SHARD_NOEXCEPT;
/* What of it is here: elements [begin, begin + numel) at `data`, which is NULL
 * when there are none. */
SHARD_API shard_error* shard_state_local(const shard_state* state,
                                         int64_t tensor, int64_t* begin,
                                         int64_t* numel,
                                         const void** data) SHARD_NOEXCEPT;
/* NOT_FOUND when there is no tensor of that key. */
SHARD_API shard_error* shard_state_find(const shard_state* state,
                                        const char* key,
                                        int64_t* tensor) SHARD_NOEXCEPT;
/* Numbers, by ascending key. `value` may be NULL; text as shard_plan_text. */
SHARD_API int64_t shard_state_num_numbers(const shard_state* state)
    SHARD_NOEXCEPT;
SHARD_API shard_error* shard_state_number(const shard_state* state,
                                          int64_t number, double* value,
                                          char* buffer, size_t capacity,
                                          size_t* length) SHARD_NOEXCEPT;

/* Gets a tensor: its elements at `data`, during the call only; NULL for an
 * alias, and when there are none. Not 0 ends it: CANCELLED. */
typedef int32_t (*shard_tensor_fn)(const char* key,
                                   const shard_tensor_info* info,
                                   const void* data, void* user_data);

/* Calls `take` with every tensor, whole, on rank `rank`, or with -1 on all; on
 * the others it may be NULL. Takes the bytes of the largest tensor and 16 MiB,
 * on the others 16 MiB. Same options and `rank` on every rank. COLLECTIVE,
 * blocks. Errors as shard_state_get; CANCELLED on all ranks. */
SHARD_API shard_error* shard_state_gather(shard_engine* engine,
                                          const shard_state_options* options,
                                          int32_t rank, shard_tensor_fn take,
                                          void* user_data) SHARD_NOEXCEPT;

/* An empty one, for a host to fill. */
SHARD_API shard_error* shard_state_create(shard_state** state) SHARD_NOEXCEPT;

/* Adds a whole tensor, whose bytes must stay where they are until the state
 * dict was loaded or freed. Keys that begin with "state." are optimizer states.
 * Errors: a key that a tensor or a number has already, a shape, dtype or
 * `bytes` that do not go together, or a state dict of shard_state_get. */
SHARD_API shard_error* shard_state_add(shard_state* state, const char* key,
                                       int32_t dtype, const int64_t* shape,
                                       int32_t ndim, const void* data,
                                       size_t bytes) SHARD_NOEXCEPT;
/* Adds a number. A second one of the same key replaces the first. Errors: a key
 * that a tensor has; a value that is not finite. */
SHARD_API shard_error* shard_state_add_number(shard_state* state,
                                              const char* key,
                                              double value) SHARD_NOEXCEPT;

/* Loads a state dict as shard_checkpoint_load does a checkpoint, with the same
 * options, report and errors. `from_rank0` 1: rank 0's, which is sent tensor by
 * tensor; elsewhere `state` may be NULL. Else every rank has one of the same
 * tensors, whole or with the elements it owns. COLLECTIVE, blocks. */
SHARD_API shard_error* shard_state_load(
    shard_engine* engine, const shard_state* state,
    const shard_load_options* options, int32_t from_rank0,
    shard_load_report* report) SHARD_NOEXCEPT;

SHARD_API void shard_state_free(shard_state* state) SHARD_NOEXCEPT;

/* ---- Schedules ---------------------------------------------------------- */

/* The learning rate of step `step`, which counts from 1, for a host to put into
 * shard_step_options.lr. A pure function of its arguments:
 *   constant      lr warmup
 *   linear        lr warmup total min_lr
 *   cosine        lr warmup total min_lr
 *   inverse_sqrt  lr warmup min_lr
 *   wsd           lr warmup total decay min_lr shape
 * for example "cosine?lr=3e-4&warmup=2000&total=100000&min_lr=3e-5". Steps 1 to
 * `warmup` rise linearly to lr; beyond `total` the last value stays. Where
 * min_lr is 0, its default, that value is 0, which a step's lr takes for "as
 * before": set it with shard_engine_set_hyper then. Formulas:
 * docs/training-loop.md. Errors name key, value and range. Any thread. */
SHARD_API shard_error* shard_schedule_lr(const char* schedule, int64_t step,
                                         double* lr) SHARD_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SHARD_SHARD_H_ */
