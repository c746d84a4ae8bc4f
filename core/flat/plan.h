// SPDX-License-Identifier: Apache-2.0
//
// Plan: all decisions about a run that are made before memory is allocated: the
// units, their flat buffers, the owner of each part, and the memory it all
// takes. A plan is a pure function of model and options: ranks that compute it
// from the same inputs get the same fingerprint, and ranks that differ detect
// that when they compare fingerprints.
//
// A unit has separate flat buffers for each dtype and param group that occur in
// it, and for each dtype of its frozen parameters, so every mixture is accepted
// and one optimizer steps a buffer. A buffer is also the amount that is
// communicated at once: parameters beyond buffer_bytes go into further buffers.
//
// Immutable once made: any number of threads may read it.
//
// Longer than other files: the structs of a plan say what each other's fields
// mean.

#ifndef SHARD_CORE_FLAT_PLAN_H_
#define SHARD_CORE_FLAT_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/facts.h"
#include "core/base/offload.h"
#include "core/base/rounding.h"
#include "core/base/status.h"
#include "core/flat/host_tensors.h"
#include "core/flat/layout.h"
#include "core/model/model.h"
#include "core/model/wrap.h"

namespace shard {

// The values are those of shard_partition in shard.h.
enum class Partition : int32_t {
  kEven = 1,  // Flat buffers cut into equal pieces, as FSDP does.
  // Whole parameters, each to the least loaded rank, as ZeRO does. Frozen ones
  // are loads, too, though they are stored in equal pieces.
  kGreedy = 2,
  kBucket = 3,  // Gradient buckets, whole, in turn.
  kManual = 4,  // The host names the owner of each parameter.
};

// How a trainable parameter in bf16 or f16 is stepped. The values are those of
// shard_masters in shard.h.
enum class Masters : int32_t {
  kF32 = 1,          // An fp32 copy is stepped, and rounded to the parameter.
  kNoneNearest = 2,  // Widened, stepped and rounded to nearest even.
  kNoneStochastic = 3,  // As kNoneNearest, rounded stochastically; bf16 only.
};

// A tensor of optimizer state.
struct StateTensor {
  std::string name;  // "exp_avg"
  DType dtype;
};

// The name of the state that holds the fp32 copies.
inline constexpr const char* kMasterState = "master_param";

// The properties that a plan needs of an optimizer that steps whole parameters;
// each is a pure function of a parameter's shape.
struct TensorTraits {
  // Returns null, or the requirement that a parameter of this shape does not
  // meet.
  const char* (*shape_error)(const int64_t* shape, int ndim);
  // Returns the elements of state number `state`.
  int64_t (*state_numel)(int state, const int64_t* shape, int ndim);
  // Returns the work of a step, for balancing ranks.
  int64_t (*cost)(const int64_t* shape, int ndim);
  // Returns the fp32 elements that a step needs, the summed gradient among
  // them.
  int64_t (*workspace_numel)(const int64_t* shape, int ndim);
  // Returns the fp32 elements that a GPU needs for the steps of `count` equal
  // parameters, those that a rank owns in a flat buffer.
  int64_t (*gpu_workspace_numel)(const int64_t* shape, int ndim, int64_t count);
};

// The parts of a param group's optimizer that concern memory.
struct GroupOptions {
  // The optimizer in its canonical text form, and the states it keeps: each of
  // the parameter's shape, unless `tensor` says otherwise.
  std::string optimizer;
  std::vector<StateTensor> states;
  // Null when the optimizer steps one element at a time.
  const TensorTraits* tensor = nullptr;
};

struct PlanOptions {
  int stage = 1;  // ZeRO stage, 0 to 3.
  int world_size = 1;

  Partition partition = Partition::kEven;
  // kManual: the owner of every parameter by ParamId; entries of frozen and
  // ignored parameters are not read. ZeroRedundancyOptimizer's lists may leave
  // parameters out; this one names an owner for every trainable parameter,
  // because the plan stores a parameter at its owner.
  std::vector<int32_t> manual_owners;
  // kBucket: a bucket is closed when it holds this many bytes of gradients.
  int64_t bucket_bytes = 25 * 1024 * 1024;
  // kBucket: cut buckets at total/W and spread the pieces.
  bool shard_buckets = false;

  // The policy for modules that become units; the root always is one.
  WrapPolicy wrap;
  // The dtype in which parameters declared as f32 are stored and computed: f32,
  // bf16 or f16; gradients follow. Modules of f32_classes, and all below them,
  // become units of their own that stay f32.
  DType param_dtype = DType::kF32;
  std::vector<std::string> f32_classes;
  // A flat buffer that is cut evenly is closed when its gradients (or frozen
  // parameters) hold this many bytes.
  int64_t buffer_bytes = 25 * 1024 * 1024;

  // Stage 3 without shared memory: ranks [k S, (k+1) S) shard the parameters
  // among them, and every other group of S ranks holds a copy (hybrid
  // sharding). It divides the world size; 0 stands for the world size.
  int shard_group_size = 0;
  // The number of units whose gathers or reductions are in flight beside the
  // unit in use.
  int prefetch = 1;
  // Stages 2 and 3: keep every rank's gradients whole, so that gradients
  // accumulate without communication.
  bool whole_grads = false;
  // Stage 3: parameters stay whole from the forward pass to the step, as in
  // stage 2, instead of being gathered again for the backward pass
  // (reshard_after_forward=False).
  bool keep_after_forward = false;
  // Sums gradients in fp32, all contributions to a sum at once and in rank
  // order, so that no result depends on stage, buffer sizes, prefetch, overlap,
  // shard groups or whether memory is shared.
  bool deterministic = false;

  // In bytes; every rank's range begins at a multiple of it.
  int64_t alignment_bytes = 64;

  // Plan::Create fails when the plan keeps tensors whole that its stage shards.
  // Not a property of the plan: the plan's own options have it false.
  bool require_sharding = false;

  // Keeps gradients in f32 instead of the parameters' dtype.
  bool f32_grads = false;
  Masters masters = Masters::kF32;
  // The seed of stochastic rounding: of parameters without masters, and of
  // states narrower than fp32.
  uint64_t seed = 0;

  // By GroupId. Empty means that no group keeps a state.
  std::vector<GroupOptions> groups;
};

// Allocations of the engine are rounded up to this, buffer by buffer.
inline constexpr uint64_t kPageBytes = 4096;

constexpr uint64_t RoundUpToPage(uint64_t bytes) {
  return RoundUp(bytes, kPageBytes);
}

// Processors differ in the workspace of a step.
enum class Processor { kCpu, kGpu };

// Memory in bytes, page rounding included: exactly the amount the engine
// allocates.
struct MemoryReport {
  // Per host where its ranks share memory, which has one copy for all; else per
  // rank.
  uint64_t param_bytes = 0;
  uint64_t grad_bytes = 0;   // Per rank.
  uint64_t state_bytes = 0;  // Per rank.
  // Per rank: the workspace of optimizers that step whole parameters.
  uint64_t workspace_bytes = 0;
  // Per rank: slots for the gathered parameters and the unreduced gradients of
  // the units in use or in flight. Those of parameters may be per host.
  uint64_t transient_bytes = 0;
  uint64_t param_slot_bytes = 0;  // A part of transient_bytes.
  // Per rank: the model's host tensors.
  uint64_t host_tensor_bytes = 0;
  // Per rank, where optimizer states are offloaded to the host's memory: the
  // memory through which gradients and parameters pass.
  uint64_t staging_bytes = 0;
  bool offloads_states = false;

  // Returns the memory of a host, whose ranks have one copy of the parameters,
  // or of the slots for them; at most UINT64_MAX. REQUIRES: ranks_on_host > 0.
  uint64_t HostTotal(int ranks_on_host, bool shares_params,
                     bool shares_slots = false) const;

  // Return the memory of a device that has its own, for one rank, and what that
  // device leaves in the host's: the model's host tensors, and what is
  // offloaded. For ranks that share no memory.
  uint64_t DeviceTotal() const {
    return param_bytes + grad_bytes + transient_bytes +
           (offloads_states ? 0 : state_bytes + workspace_bytes);
  }
  uint64_t PinnedTotal() const {
    return host_tensor_bytes + staging_bytes +
           (offloads_states ? state_bytes + workspace_bytes : 0);
  }
};

// Transient memory for the units of one nesting depth: `count` slots of `bytes`
// each. Units of one depth are not in use at the same time; units of different
// depths are.
struct SlotPlan {
  int count = 0;
  uint64_t bytes = 0;  // Whole pages.
};

// A state tensor of a whole flat buffer.
struct StatePlan {
  StateTensor tensor;
  // The places of each parameter's part; null when those are the parameters'
  // own.
  std::shared_ptr<const FlatLayout> own_layout;
};

struct FlatBufferPlan {
  int32_t unit;  // Index into Plan::units().
  DType dtype;
  bool trainable;
  // The fields below have no meaning when frozen, but for the layout.
  bool has_masters;
  GroupId group;
  DType grad_dtype;
  // The dtype of this rank's part of the summed gradients, where that is stored
  // separately: f32 when deterministic, else (and where the gradients are f64)
  // the gradients' dtype.
  DType sum_dtype;
  FlatLayout layout;
  // The states of the group's optimizer, then the master weights where there
  // are any. The plan owns them.
  std::span<const StatePlan> states;

  const FlatLayout& StateLayout(size_t state) const {
    const auto& own = states[state].own_layout;
    return own == nullptr ? layout : *own;
  }
};

struct UnitPlan {
  // Its outermost module. Model::ModuleFqn has the name, which is not stored
  // here: where modules are deep and many, the names of all units would take
  // memory that grows with the square of their depth.
  ModuleId module;
  int32_t parent;                // The unit around it; -1 for the root.
  int32_t depth;                 // The number of units around it.
  std::vector<int32_t> buffers;  // Indices into Plan::buffers(); may be empty.
};

// The place of a parameter.
struct ParamPlace {
  int32_t buffer = -1;  // Index into Plan::buffers(); -1: ignored.
  // The parameter's number among the stored ones in module-walk order: a number
  // that all ranks agree on, in whatever order they added parameters. -1:
  // ignored.
  int32_t position = -1;
  int64_t offset = 0;  // Elements from the start of the flat buffer.
};

// Returns the stored parameters in module-walk order. `places` has the places
// of all parameters, by ParamId, of which `stored` are stored.
std::vector<ParamId> WalkOf(std::span<const ParamPlace> places, size_t stored);

class Plan {
 public:
  // Makes a plan. Keeps `model`, which must not change from here on, or a copy
  // of it with other dtypes. Calls options.wrap's predicate, and does not keep
  // it.
  //
  // Every stage and dtype can be planned; the engine decides whether this build
  // can run it. Errors, all with the value: a stage outside 0..3, a world size
  // outside 1..kMaxWorldSize, an unknown partition or masters, alignment_bytes,
  // bucket_bytes or buffer_bytes below 1, a shard_group_size that does not
  // divide the world size, prefetch outside 0..64, a param_dtype other than
  // f32, bf16 and f16, a number of groups that is not the model's, an optimizer
  // text or state name that is not UTF-8, a state dtype other than f32, bf16
  // and q8, a state name that is empty or listed twice, no model, a model that
  // has no parameter to store, a parameter that its group's optimizer cannot
  // step, one in f16 that is to be rounded stochastically, kManual owners that
  // are missing or out of range (naming parameter and owner), buffers beyond
  // 2^53 elements, host tensors beyond 2^53 bytes.
  static StatusOr<std::shared_ptr<const Plan>> Create(
      std::shared_ptr<const Model> model, PlanOptions options);

  // Returns the model, with the dtypes in which parameters are stored.
  const Model& model() const { return *model_; }
  const PlanOptions& options() const { return options_; }
  const std::vector<UnitPlan>& units() const { return units_; }
  const std::vector<FlatBufferPlan>& buffers() const { return buffers_; }
  // Returns the place of each parameter, by ParamId.
  const std::vector<ParamPlace>& places() const { return places_; }
  // Returns the places of the model's host tensors.
  const HostTensorLayout& host_tensors() const { return host_tensors_; }
  // Returns the number of stored parameters.
  size_t NumStored() const { return slots_.size(); }
  // Returns a policy that makes the same units of any model with the same
  // modules, and has the text of options().wrap.
  WrapPolicy UnitsAsPolicy() const;
  // Return one of units(), buffers() and places(). REQUIRES: a valid index.
  const UnitPlan& unit(int32_t index) const {
    return units_[static_cast<size_t>(index)];
  }
  const FlatBufferPlan& buffer(int32_t index) const {
    return buffers_[static_cast<size_t>(index)];
  }
  const ParamPlace& place(ParamId param) const {
    return places_[static_cast<size_t>(param)];
  }
  // Returns the unit that manages a parameter: that of its first name in
  // module-walk order. -1 when the parameter is ignored.
  int32_t UnitOf(ParamId param) const;
  // Returns the unit whose outermost module this is, or -1. O(log units).
  int32_t UnitAt(ModuleId module) const;

  // Returns the index of the range that `rank` owns in a layout. With shard
  // groups, the ranges of the ranks at the same place in their groups are
  // adjacent: a rank holds one stretch of HeldRanges() ranges, from
  // FirstHeldRange(rank).
  int RangeOf(int rank) const;
  int RankOf(int range) const;  // The inverse of RangeOf.
  // Returns the rank that owns this element of a flat buffer. REQUIRES: an
  // index into buffers(), an element of that buffer.
  int OwnerOf(int32_t index, int64_t element) const;
  // Returns how many ranges of parameters a rank holds without shared memory:
  // those of its place in its shard group if shards_params(), else all, from 0.
  int HeldRanges() const;
  int FirstHeldRange(int rank) const;

  // Returns true when gradients are sharded: with several ranks in stages 2 and
  // 3, unless whole_grads is set, or a rank's shard and the slots together
  // would take as much memory as all gradients: a stage never costs more than
  // the one before it.
  bool shards_grads() const { return shards_grads_; }
  // Returns true when ranks that share no memory shard parameters: with several
  // ranks in stage 3, unless keep_after_forward is set, or a rank's shard and
  // the slots together would take as much memory as all parameters. Ranks that
  // share memory have one copy per host instead, whatever this returns.
  bool shards_params() const { return shards_params_; }
  // Returns the number of ranks that shard one copy of the parameters: the
  // option, or the world size.
  int ShardGroupSize() const {
    return options_.shard_group_size == 0 ? options_.world_size
                                          : options_.shard_group_size;
  }
  // Returns whether ranks [first, first + count) shard one copy of the
  // parameters.
  bool AreInOneShardGroup(int first, int count) const {
    return first / ShardGroupSize() == (first + count - 1) / ShardGroupSize();
  }
  // Return the slots by unit depth, zero where nothing is sharded. In a slot,
  // the unit's buffers are in the order of UnitPlan::buffers, each from a page
  // on: all buffers in param_slots, the trainable ones in grad_slots.
  const std::vector<SlotPlan>& param_slots() const { return param_slots_; }
  const std::vector<SlotPlan>& grad_slots() const { return grad_slots_; }

  // Returns warnings for people: tensors that stay whole although the stage
  // shards them; units that f32_classes made; and one line for each unit that
  // frozen and trainable parameters share, with the memory it costs.
  std::vector<std::string> Warnings() const;

  // Return the workspace of optimizers that step whole parameters, in fp32
  // elements: the most that any parameter needs, on any rank, where a processor
  // steps it; and the most that any equal parameters of a rank and a flat
  // buffer need on a GPU.
  int64_t workspace_numel() const { return workspace_numel_; }
  int64_t gpu_workspace_numel() const { return gpu_workspace_numel_; }

  // Returns the XXH3-64 of all that ranks must agree on: options, optimizer,
  // names, shapes, dtypes, flags, ties, units and places; of host tensors too.
  // Class names and ids are no part of it.
  uint64_t fingerprint() const { return fingerprint_; }

  // Streams all inputs of the fingerprint, by name: where the fingerprints of
  // two plans differ, so does a fact.
  void Describe(FactSink* sink) const;

  // Returns the memory that a rank needs. Frozen buffers have neither gradients
  // nor states. Optimizer states and master weights are sharded over all ranks
  // in every stage. Host tensors are whole on every rank.
  //
  //                ranks share memory     they do not
  //   parameters   once per host          whole; shards_params: HeldRanges()
  //   gradients    whole per rank; shards_grads: one range of FlatBufferPlan::
  //                sum_dtype
  //   sums         -                      where whole gradients are kept and
  //                                       sum_dtype is not grad_dtype: one
  //                                       range of it, in grad_bytes
  //
  // `offload`: how optimizer states are offloaded to the host; null: not.
  // `device`: the processor of the engine's device.
  MemoryReport Memory(bool shared_memory, const Offload* offload = nullptr,
                      Processor device = Processor::kCpu) const;

  // Returns a text for people: units, buffers, per-rank elements and padding
  // (the first ranks, when there are many), memory. Ends in a newline.
  std::string ToText() const;

  // Returns the same as JSON, for programs. With `per_param`, it has every
  // parameter's FQN, shape, dtype, place and the ranks that own it.
  std::string ToJson(bool per_param = true) const;

  // Returns one line, for messages: "stage 1, world size 2, even, 148
  // parameters...".
  std::string Summary() const;

 private:
  Plan() = default;

  // Sets all members but the model and the options.
  Status Fill(const std::vector<ModuleId>& wrapped);
  // Sets the slots, and decides which tensors are worth sharding with them.
  void ChooseSharding();

  std::shared_ptr<const Model> model_;
  PlanOptions options_;
  std::vector<UnitPlan> units_;
  // Indices into units_, by ascending ModuleId.
  std::vector<int32_t> units_by_module_;
  // The lists to which the buffers' states point.
  std::deque<std::vector<StatePlan>> state_lists_;
  // The slots of the buffers' layouts, one buffer after the other.
  std::vector<Slot> slots_;
  std::vector<FlatBufferPlan> buffers_;
  std::vector<ParamPlace> places_;
  HostTensorLayout host_tensors_;
  std::vector<SlotPlan> param_slots_;
  std::vector<SlotPlan> grad_slots_;
  bool shards_params_ = false;
  bool shards_grads_ = false;
  int64_t workspace_numel_ = 0;
  int64_t gpu_workspace_numel_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_FLAT_PLAN_H_
