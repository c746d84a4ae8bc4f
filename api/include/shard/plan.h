/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans: how a model is sharded over ranks, a pure computation. */

#ifndef SHARD_PLAN_H_
#define SHARD_PLAN_H_

#include "shard/base.h"
#include "shard/model.h"

SHARD_BEGIN_DECLS

/* How parameters are divided among ranks. Frozen. */
typedef int32_t shard_partition;
enum shard_partition_values {
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

/* The precision in which a bf16 or f16 parameter is stepped. Frozen. */
typedef int32_t shard_masters;
enum shard_masters_values {
  /* An fp32 copy, the master weights: 4 bytes of state per element. The
   * parameter is its value rounded to nearest even. The default. */
  SHARD_MASTERS_F32 = 1,
  /* No copy is kept: the parameter is widened, updated in fp32 and rounded to
   * nearest even. Updates below half its last digit are lost. */
  SHARD_MASTERS_NONE_NEAREST = 2,
  /* No copy is kept: the updated parameter is rounded up or down at random such
   * that the mean is right; bf16 only. The bits come from a counter-based
   * generator keyed by (seed, step, parameter, element): they do not depend on
   * the world size. */
  SHARD_MASTERS_NONE_STOCHASTIC = 3
};

/* Returns non-zero when `module` is to be a unit. `nonwrapped_numel` is the
 * number of its elements, without those of ignored parameters and of units
 * within it. Called by shard_plan_create only, on its thread, with inner
 * modules before those around them; `user_data` is not used after
 * shard_plan_create returns. */
typedef int32_t (*shard_wrap_fn)(int32_t module, int64_t nonwrapped_numel,
                                 void* user_data);

typedef struct shard_plan_options {
  size_t struct_size;
  /* ZeRO stage: 0 and 1 shard optimizer states, 2 also gradients, 3 also
   * parameters; each where that saves memory (docs/units.md). Tensors that are
   * not sharded exist once per host where ranks share memory; over several
   * hosts, on "cpu", such parameters do. Stage 0, too, shards states over all
   * ranks: copies of the states would not save communication. */
  int32_t stage;
  /* The number of ranks: REQUIRED, at least 1, and equal to the communicator's.
   */
  int32_t world_size;
  shard_partition partition;
  /* BUCKET only: 1 cuts buckets at total/world_size and spreads the pieces;
   * 0 gives bucket i to rank i mod world_size. */
  int32_t shard_buckets;
  /* BUCKET only: a bucket is closed when it holds this many gradient bytes,
   * parameters taken last to first. Default 25 MiB. */
  int64_t bucket_bytes;
  /* MANUAL only: owners[i] is the rank that owns parameter i, and num_owners
   * must be the number of parameters. Entries of frozen and ignored parameters
   * are not read. */
  const int32_t* owners;
  size_t num_owners;
  /* The optimizer of parameters in no param group, and its hyperparameters by
   * torch's names; those not given have torch's defaults. Default "adamw".
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
   *                matmul_precision
   * for example
   *   "adamw?lr=3e-4&beta1=0.9&beta2=0.95&eps=1e-8&weight_decay=0.1"
   *   "sgd?lr=0.1&momentum=0.9&nesterov=1"
   * All but lion and muon take maximize=1. Flags are 0 or 1. amsgrad, centered,
   * and whether momentum is 0 decide which states there are: they cannot change
   * later, nor can words. rprop reads lr on the first step only, as torch does.
   * profile=torch|apex|deepspeed_cpu|llmc|llmc_cpu|ggml names the program whose
   * arithmetic is followed, to the order of operations (docs/numerics.md); only
   * adamw has llmc, llmc_cpu and ggml, and only torch has amsgrad.
   * states=f32|bf16|q8 is the type in which exp_avg and its like are stored; q8
   * is 8 bits and a scale per 256 elements. lamb, adafactor and muon step whole
   * parameters: each is owned by one rank, in every partition, and all ranks'
   * shares are as large as the largest. muon steps matrices only: give vectors,
   * embeddings and heads a param group of adamw. It needs a CBLAS
   * (SHARD_BLAS_LIBRARY, else the usual names), and on a GPU cuBLAS of CUDA 12
   * or 13 instead. adjust_lr_fn=original|match_rms_adamw.
   * matmul_precision=highest|high|medium is the least precision of its products
   * on a GPU: fp32, TF32 or bf16, as torch's set_float32_matmul_precision names
   * them. A processor multiplies in fp32 whatever it is. */
  const char* optimizer;
  /* 1: gradients of bf16 and f16 parameters are kept in fp32. Default: as the
   * parameter. They are summed in fp32 either way. */
  int32_t f32_grads;
  /* Default SHARD_MASTERS_F32. */
  shard_masters masters;
  /* The seed of stochastic rounding: of parameters with
   * SHARD_MASTERS_NONE_STOCHASTIC, and of states narrower than fp32, which are
   * always rounded so. */
  uint64_t seed;
  /* The policies that make modules units, whose parameters are gathered and
   * whose gradients are reduced together (docs/units.md). The root is always a
   * unit. Policies are separated by '|', a module is a unit when any of them
   * selects it, and their results are those of torch.distributed.fsdp.wrap:
   *   always                     every module
   *   class?names=Block,MLP      by class name
   *   size?min_numel=100000000&force_leaf=MultiheadAttention
   *       &exclude=ModuleList,ModuleDict      (without the line break)
   *                              modules by size
   *
   * The last one takes modules with at least min_numel elements beyond those of
   * units within; neither force_leaf nor what is below it, and never exclude
   * itself. A tied parameter counts once, in the module of its first name,
   * where torch counts it in every child that has it. Values not given are
   * those shown. A class in names that no module has is an error; so is a size
   * policy when the model has min_numel elements but no module inside it can be
   * taken. A model with fewer elements is one unit. Default: the root only. */
  const char* wrap;
  /* One more policy, asked where the others do not wrap. May be NULL. */
  shard_wrap_fn wrap_predicate;
  void* wrap_user_data;
  /* The type in which parameters declared as SHARD_F32 are stored and computed:
   * SHARD_F32, SHARD_BF16 or SHARD_F16; gradients follow. Default: as declared.
   */
  shard_dtype param_dtype;
  /* Stage 3 without shared memory: the number of consecutive ranks that shard
   * the parameters among them; every such group holds all parameters. It must
   * divide world_size. Default: world_size. */
  int32_t shard_group_size;
  /* With a narrower param_dtype: modules of these classes, separated by commas,
   * become units of their own that stay f32 with all below them. A class that
   * no module has is an error. */
  const char* f32_classes;
  /* A flat buffer that is cut evenly is closed before its gradients (or frozen
   * parameters) would take more bytes. Default 25 MiB. */
  int64_t buffer_bytes;
  /* The number of units whose gathers or reductions are in flight beside the
   * unit in use, up to 64; each takes a slot. -1: none. Default 1. */
  int32_t prefetch;
  /* Stages 2 and 3: 1 keeps every rank's gradients whole, so that they
   * accumulate without communication. */
  int32_t whole_grads;
  /* 1: gradients are summed in rank order and the sums are kept in fp32, so
   * that no result depends on stage, units, buffer_bytes, prefetch, overlap,
   * shard_group_size or NCCL (docs/numerics.md). */
  int32_t deterministic;
  /* Stage 3: 1 keeps parameters whole, as in stage 2, instead of gathering them
   * again for each pass (reshard_after_forward=False). */
  int32_t keep_after_forward;
  /* 1: it is an error instead of a warning when the plan keeps tensors whole
   * that its stage shards, because a rank's part and the slots would take no
   * less memory. For one rank there is nothing to shard, and no error; nor for
   * parameters with shard_group_size 1, where each rank is to hold them all. */
  int32_t require_sharding;
  int32_t reserved;
} shard_plan_options;
#define SHARD_PLAN_OPTIONS_INIT                                              \
  {                                                                          \
    sizeof(shard_plan_options), 0, 0, 0, 0, 0, NULL, 0, NULL, 0, 0, 0, NULL, \
        NULL, NULL, 0, 0, NULL, 0, 0, 0, 0, 0, 0, 0                          \
  }

/* Where the ranks of a plan run. */
typedef struct shard_placement {
  size_t struct_size;
  /* 1 to world_size. Default: world_size, all on one host, whose memory they
   * share. Where there are several hosts, the ranks of each share parameters
   * that are not sharded, on "cpu", and no other tensors. */
  int32_t ranks_per_host;
  /* 1: ranks of one host share no memory either, as with direct=0 in a
   * communicator's URL. Ranks that met by tcp:// and are all on one host share
   * their parameters alone: memory is as with 1, but with parameters that are
   * not sharded once. */
  int32_t separate_memory;
  /* As in shard_engine_options. Default "cpu". */
  const char* device;
} shard_placement;
#define SHARD_PLACEMENT_INIT \
  { sizeof(shard_placement), 0, 0, NULL }

/* The memory of engines in bytes, rounded up to pages. */
typedef struct shard_memory {
  size_t struct_size;
  /* Per host where its ranks hold one copy: where they share memory and, over
   * several hosts, where parameters are not sharded, on "cpu"; else per rank.
   */
  uint64_t param_bytes;
  uint64_t grad_bytes;  /* Per rank. */
  uint64_t state_bytes; /* Per rank: optimizer state, master weights too. */
  /* Per rank: for lamb, adafactor and muon; where a GPU steps, which with
   * offload it does not, for muon alone. */
  uint64_t workspace_bytes;
  uint64_t transient_bytes; /* Per rank: slots of units in use or in flight. */
  /* All of the above and model_buffer_bytes once more, by the memory that holds
   * them: the device's own per rank ("cpu" has none), and the host's per host,
   * for all its ranks. With what collectives need of either: the host's is in
   * pinned_bytes; the device's, with collectives=nccl, is for the gradients of
   * other ranks (docs/gpu.md), without the memory that NCCL takes for itself.
   */
  uint64_t device_bytes;
  uint64_t host_bytes; /* At most UINT64_MAX. */
  /* The page-locked part of host_bytes, for a device with memory of its own:
   * the model's buffers, and 4 MiB per rank through which collectives pass
   * tensors, or more where the world has more than 65534 ranks; none of that
   * for several ranks with collectives=nccl. With collectives=auto a prediction
   * has the memory of both, and an engine that of one. With offload=states also
   * optimizer states, masters and workspace, and the memory through which
   * gradients and parameters pass. */
  uint64_t pinned_bytes;
  /* Per host, beside host_bytes: the memory through which the host's
   * communicator, the engine's and the engine's exchange of tensors pass
   * control data and, where ranks share no memory, from the first bytes on also
   * tensors, and the notices of the engine's ranks. Not counted: another
   * communicator, which the first save opens, with 2 MiB and a page more per
   * rank; and, where ranks share memory, 2 MiB and a page more per rank for
   * each of the three once a call sends bytes through it all the same:
   * shard_comm_broadcast; for the engine's, a load of a checkpoint, a load of a
   * state dict from rank 0 or with buffers of the model, a broadcast of these
   * buffers, a gather, and a summon to one rank that is written back; and for
   * the exchange, a change of the plan. */
  uint64_t control_bytes;
  /* Per rank, within host_bytes: those of shard_model_add_buffer. */
  uint64_t model_buffer_bytes;
} shard_memory;
#define SHARD_MEMORY_INIT \
  { sizeof(shard_memory), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

typedef struct shard_plan shard_plan;

/* Decides every unit, flat buffer, slot and owner. Pure and local: the same
 * inputs give the same plan on any machine, for any world size, without
 * allocating what it plans. Copies the model. Errors name the offending option,
 * parameter and value; it is also an error when two names have one key in
 * checkpoints. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_create(
    const shard_model* model, const shard_plan_options* options,
    shard_plan** plan) SHARD_NOEXCEPT;

typedef struct shard_plan_info {
  size_t struct_size;
  uint64_t fingerprint; /* Equal on two ranks exactly when their plans are. */
  int32_t stage;        /* As asked for; the next two are what is sharded. */
  int32_t shards_grads; /* 1: a rank keeps the sums of its own part. */
  /* 1: where ranks share no memory, a rank keeps its own part, and a unit's
   * parameters are whole while it is acquired. */
  int32_t shards_params;
  int32_t world_size;
  int32_t num_params;  /* In the model, ignored ones among them. */
  int32_t num_modules; /* Ignored ones among them. */
  int32_t num_names;   /* Names of parameters: shard_plan_name_info. */
  int32_t num_groups;  /* Param groups, group 0 among them. */
  int32_t num_units;   /* From 0, the root, in module-walk order. */
  int32_t num_buffers; /* Flat buffers: shard_plan_buffer_info. */
  /* As in shard_plan_options, or world_size where that has 0. Has no meaning
   * unless shards_params is 1. */
  int32_t shard_group_size;
  int32_t keep_after_forward; /* As in shard_plan_options. */
  /* Buffers of shard_model_add_buffer, ignored ones among them:
   * shard_plan_model_buffer_info. */
  int32_t num_model_buffers;
  int32_t reserved;
} shard_plan_info;
#define SHARD_PLAN_INFO_INIT \
  { sizeof(shard_plan_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Gets the plan's decisions, and the number of its parameters, units and so on.
 * Set info->struct_size first. Any thread. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_get_info(
    const shard_plan* plan, shard_plan_info* info) SHARD_NOEXCEPT;

/* Gets the unit that a parameter is in; a tied parameter is in the unit of its
 * first name in module-walk order. FAILED_PRECONDITION for an ignored
 * parameter. Any thread. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_unit_of(
    const shard_plan* plan, int32_t param, int32_t* unit) SHARD_NOEXCEPT;

/* Gets the unit whose outermost module is `module`; -1 when there is none. Any
 * thread. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_unit_of_module(
    const shard_plan* plan, int32_t module, int32_t* unit) SHARD_NOEXCEPT;

/* Gets a unit's outermost module. Any thread. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_unit_module(
    const shard_plan* plan, int32_t unit, int32_t* module) SHARD_NOEXCEPT;

/* Predicts the memory of the plan's engines, which use exactly this:
 * shard_engine_memory. `placement` may be NULL: all ranks on one host. Set
 * memory->struct_size first. Errors: ranks_per_host outside 0 to world_size; a
 * device that is not known. Any thread. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_memory(
    const shard_plan* plan, const shard_placement* placement,
    shard_memory* memory) SHARD_NOEXCEPT;

/* Write the plan for people, and for programs. Any thread. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_text(
    const shard_plan* plan, char* buffer, size_t capacity,
    size_t* length) SHARD_NOEXCEPT;
SHARD_NODISCARD SHARD_API shard_error* shard_plan_json(
    const shard_plan* plan, char* buffer, size_t capacity,
    size_t* length) SHARD_NOEXCEPT;

/* Gets the warnings, a line each, or "". There is one for tensors that the plan
 * keeps whole although its stage shards them, one for the modules that stay f32
 * by f32_classes, and one for each unit with both frozen and trainable
 * parameters, with the cost of that. Any thread. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_warnings(
    const shard_plan* plan, const char** warnings) SHARD_NOEXCEPT;

/* ---- A plan as bytes --------------------------------------------------------
 *
 * For a host that plans once and hands the plan to its ranks, and for tools
 * that look at the plan of a run. The bytes hold the model, the options, the
 * ids of modules that are units, and the fingerprint. They hold no layout:
 * shard_plan_decode computes it again as shard_plan_create does, so that
 * nothing read from a file can place a parameter outside its buffer. */

/* Copies the plan's first `capacity` bytes to `buffer`, in the host's memory,
 * and writes the number of all to `length`; with capacity 0 `buffer` may be
 * NULL. Each call makes the bytes anew, and all calls give the same bytes.
 * RESOURCE_EXHAUSTED when there would be more than 1 GiB, or when the names of
 * modules and parameters, with their paths and with the class of each module,
 * have more than 16 times as many bytes and 16 MiB: modules that are nested
 * very deeply, or many of one very long class. Any thread. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_encode(
    const shard_plan* plan, void* buffer, size_t capacity,
    size_t* length) SHARD_NOEXCEPT;

/* Makes a plan from the bytes of shard_plan_encode, with the same fingerprint,
 * the same ids, and the same results from every function. `bytes` are in the
 * host's memory, may have any alignment, and are not kept. Local. Errors:
 * CORRUPT for bytes that make no plan, or one with another fingerprint than
 * they say; UNIMPLEMENTED for bytes of a libshard that writes plans, or lays
 * them out, in another way, or has optimizers or options that this one does not
 * know: make the plan again. Any bytes, wrong ones too, need memory of at most
 * 64 times their number, 96 bytes for each rank of the world size in them (2^20
 * at most) and 32 MiB, and time in proportion. */
SHARD_NODISCARD SHARD_API shard_error* shard_plan_decode(
    const void* bytes, size_t length, shard_plan** plan) SHARD_NOEXCEPT;

SHARD_API void shard_plan_free(shard_plan* plan) SHARD_NOEXCEPT;

SHARD_END_DECLS

#endif /* SHARD_PLAN_H_ */
