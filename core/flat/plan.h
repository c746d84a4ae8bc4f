// SPDX-License-Identifier: Apache-2.0
//
// Plan: everything that is decided about a run before memory is allocated: the
// units, their flat buffers, who owns what, and what it will cost. A pure
// function of model and options; ranks that compute it from the same inputs
// get the same fingerprint, and ranks that differ find out when they meet.
//
// A unit has flat buffers per dtype and param group that occur in it, and per
// dtype for what is frozen, so that no mixture is refused and a buffer is
// stepped by one optimizer. A buffer is also what is communicated at once: one
// that would be longer than buffer_bytes is several.
//
// Immutable once made: any number of threads may read it.

#ifndef SHARD_CORE_FLAT_PLAN_H_
#define SHARD_CORE_FLAT_PLAN_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/facts.h"
#include "core/base/status.h"
#include "core/flat/layout.h"
#include "core/model/model.h"
#include "core/model/wrap.h"

namespace shard {

// The values are those of shard_partition in shard.h.
enum class Partition : int32_t {
  kEven = 1,  // Flat buffers cut into equal pieces, as FSDP does.
  // Whole parameters to the least loaded rank, as ZeRO does; frozen ones are
  // loads too, though they are stored in equal pieces.
  kGreedy = 2,
  kBucket = 3,  // Gradient buckets, whole, in turn.
  kManual = 4,  // The host says who owns what.
};

// What becomes of a trainable parameter in bf16 or f16. The values are those of
// shard_masters in shard.h.
enum class Masters : int32_t {
  kF32 = 1,          // An fp32 copy is stepped, and rounded to the parameter.
  kNoneNearest = 2,  // It is widened, stepped and rounded to nearest even.
  kNoneStochastic = 3,  // The same, rounded stochastically; bf16 only.
};

// A tensor of optimizer state.
struct StateTensor {
  std::string name;  // "exp_avg"
  DType dtype;
};

// The name of the state that holds the fp32 copies.
inline constexpr const char* kMasterState = "master_param";

// What a plan must know of an optimizer that steps whole parameters; each a
// pure function of a parameter's shape.
struct TensorTraits {
  // Null, or what a parameter must be for it to step it.
  const char* (*unfit)(const int64_t* shape, int ndim);
  // Elements of state number `state`.
  int64_t (*state_numel)(int state, const int64_t* shape, int ndim);
  // The work of a step, for balancing ranks.
  int64_t (*cost)(const int64_t* shape, int ndim);
  // fp32 elements needed while it is stepped, its summed gradient among them.
  int64_t (*workspace_numel)(const int64_t* shape, int ndim);
};

// How a param group is stepped, as far as it concerns memory.
struct GroupOptions {
  // The optimizer in its canonical text form, and the states it keeps: each of
  // the parameter's shape, unless `tensor` says otherwise.
  std::string optimizer;
  std::vector<StateTensor> states;
  // Null when elements are stepped one by one.
  const TensorTraits* tensor = nullptr;
};

struct PlanOptions {
  int stage = 1;  // ZeRO stage, 0 to 3.
  int world_size = 1;

  Partition partition = Partition::kEven;
  // kManual: the owner of every parameter by ParamId; entries of frozen and
  // ignored parameters are not read. Unlike ZeroRedundancyOptimizer's lists,
  // which may leave parameters out, it names an owner for every other one: the
  // plan stores a parameter where its owner is.
  std::vector<int32_t> manual_owners;
  // kBucket: a bucket is closed when it holds this many bytes of gradients.
  int64_t bucket_bytes = 25 * 1024 * 1024;
  // kBucket: cut buckets at total/W and spread the pieces.
  bool shard_buckets = false;

  // Which modules become units of their own; the root always is one.
  WrapPolicy wrap;
  // What parameters declared as f32 are stored and computed in: f32, bf16 or
  // f16; gradients follow. Modules of these classes, and what is below them,
  // become units of their own that stay f32.
  DType param_dtype = DType::kF32;
  std::vector<std::string> f32_classes;
  // A flat buffer that is cut evenly is closed when its gradients (or frozen
  // parameters) hold this many bytes.
  int64_t buffer_bytes = 25 * 1024 * 1024;

  // Stage 3 without shared memory: ranks [k S, (k+1) S) shard the parameters
  // among them, and other such groups hold them again (hybrid sharding). It
  // divides the world size; 0: the world size.
  int shard_group_size = 0;
  // How many units' gathers or reductions are in flight beside the unit in use.
  int prefetch = 1;
  // Stages 2 and 3: keep every rank's gradients whole, so that gradients
  // accumulate without communication.
  bool whole_grads = false;
  // Stage 3: parameters stay whole from the forward pass to the step, as in
  // stage 2, instead of being gathered again for the backward pass
  // (reshard_after_forward=False).
  bool keep_after_forward = false;
  // Sums of gradients are kept in fp32, and are made of all that goes into one
  // at once, in rank order, so that no result depends on stage, buffer sizes,
  // prefetch, overlap, shard groups or whether memory is shared.
  bool deterministic = false;

  // Bytes; every rank's range begins at a multiple of it.
  int64_t alignment_bytes = 64;

  // Gradients are kept as the parameters are, or in f32.
  bool f32_grads = false;
  Masters masters = Masters::kF32;
  // Of stochastic rounding: of parameters without masters, and of states
  // narrower than fp32.
  uint64_t seed = 0;

  // By GroupId. Empty: every group keeps no state.
  std::vector<GroupOptions> groups;
};

// What the engine allocates is rounded up to this, buffer by buffer.
inline constexpr uint64_t kPageBytes = 4096;

constexpr uint64_t RoundUpToPage(uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// Bytes, page rounding included, so that the engine's real use equals it.
struct MemoryReport {
  // Per host where its ranks share memory: one copy for all. Else per rank.
  uint64_t param_bytes = 0;
  uint64_t grad_bytes = 0;   // Per rank.
  uint64_t state_bytes = 0;  // Per rank.
  // Per rank: what optimizers that step whole parameters work in.
  uint64_t workspace_bytes = 0;
  // Per rank: slots for the gathered parameters and the unreduced gradients of
  // the units in use or in flight.
  uint64_t transient_bytes = 0;

  // Of ranks that share memory.
  uint64_t HostTotal(int ranks_on_host) const {
    return param_bytes +
           (grad_bytes + state_bytes + workspace_bytes + transient_bytes) *
               static_cast<uint64_t>(ranks_on_host);
  }
};

// Transient memory for the units of one nesting depth: `count` slots of `bytes`
// each. Units of one depth are not in use at once; those of different depths
// are.
struct SlotPlan {
  int count = 0;
  uint64_t bytes = 0;  // Whole pages.
};

// A state tensor of a whole flat buffer.
struct StatePlan {
  StateTensor tensor;
  // Where each parameter's part lies; null: as the parameters do.
  std::shared_ptr<const FlatLayout> own_layout;
};

struct FlatBufferPlan {
  int32_t unit;  // Index into Plan::units().
  DType dtype;
  bool trainable;
  // The rest is of no meaning when frozen.
  GroupId group;
  DType grad_dtype;
  // Of this rank's part of the summed gradients, where that is kept by itself:
  // f32 when deterministic, else (and where they are f64) as the gradients.
  DType sum_dtype;
  FlatLayout layout;
  // Those of the group's optimizer, then the master weights where there are
  // any. They are the plan's, and live as long.
  std::span<const StatePlan> states;
  bool has_masters;

  const FlatLayout& StateLayout(size_t state) const {
    const auto& own = states[state].own_layout;
    return own == nullptr ? layout : *own;
  }
};

struct UnitPlan {
  ModuleId module;               // Its outermost module.
  std::string fqn;               // Of that; "" for the root.
  int32_t parent;                // The unit it is nested in; -1 for the root.
  int32_t depth;                 // How many units it is nested in.
  std::vector<int32_t> buffers;  // Indices into Plan::buffers(); maybe none.
};

// Where a parameter lives.
struct ParamPlace {
  int32_t buffer = -1;  // Index into Plan::buffers(); -1: ignored.
  int64_t offset = 0;   // Elements from the start of the flat buffer.
};

class Plan {
 public:
  // Keeps `model`, which must not change from here on, or a copy of it with
  // other dtypes. Asks options.wrap's predicate, and does not keep it. Errors,
  // all with the value: a stage outside 0..3, a world size outside
  // 1..kMaxWorldSize, an unknown partition or masters, alignment_bytes,
  // bucket_bytes or buffer_bytes below 1, a shard_group_size that does not
  // divide the world size, prefetch outside 0..64, a param_dtype beyond f32,
  // bf16 and f16,
  // groups that are not as many as the model's, an optimizer text or state name
  // that is not UTF-8, a state dtype other than f32, bf16 and q8, a state name
  // that is empty or stands twice, no model, a model that has no parameter to
  // store, a parameter that its group's optimizer cannot step, one in f16 that
  // is to be rounded stochastically, kManual owners that are missing or out of
  // range (naming parameter and owner), buffers beyond 2^53 elements. Every
  // stage and dtype can be planned; whether this build can run it is the
  // engine's to say.
  static StatusOr<std::shared_ptr<const Plan>> Create(
      std::shared_ptr<const Model> model, PlanOptions options);

  // With the dtypes that parameters are stored in.
  const Model& model() const { return *model_; }
  const PlanOptions& options() const { return options_; }
  const std::vector<UnitPlan>& units() const { return units_; }
  const std::vector<FlatBufferPlan>& buffers() const { return buffers_; }
  // By ParamId.
  const std::vector<ParamPlace>& places() const { return places_; }
  // Where a parameter stands among the stored ones in module-walk order, by
  // ParamId: its number for all ranks, whatever order they added things in.
  const std::vector<int32_t>& positions() const { return positions_; }
  // How many of them there are.
  size_t NumStored() const { return num_stored_; }
  // A policy that makes the same units again, of a model with the same modules,
  // and has the text of options().wrap.
  WrapPolicy UnitsAsPolicy() const;
  // The unit a parameter is managed by: that of its first name in module-walk
  // order. -1: ignored.
  int32_t UnitOf(ParamId param) const;
  // The unit whose outermost module this is, or -1. O(log units).
  int32_t UnitAt(ModuleId module) const;

  // Which of a layout's ranges `rank` owns. With shard groups, the ranges of
  // the ranks with one place in their groups lie together: what a rank holds
  // is one stretch of HeldRanges() ranges, from FirstHeldRange(rank).
  int RangeOf(int rank) const;
  int RankOf(int range) const;  // The inverse.
  // The rank that owns this element of a flat buffer.
  // REQUIRES: an index into buffers(), an element of that buffer.
  int OwnerOf(int32_t buffer, int64_t element) const;
  // Stage 3 without shared memory; else all and 0.
  int HeldRanges() const;
  int FirstHeldRange(int rank) const;

  // Stages 2 and 3, unless whole_grads, or a rank's shard and the slots
  // together would be as large as all gradients: a stage never costs more than
  // the one before it.
  bool shards_grads() const { return shards_grads_; }
  // The same for parameters, in stage 3 and without shared memory, unless
  // keep_after_forward.
  bool shards_params() const { return shards_params_; }
  // By unit depth; all zero where nothing is sharded. In a slot, the unit's
  // buffers lie in the order of UnitPlan::buffers, each from a page on: of
  // param_slots all, of grad_slots the trainable ones.
  const std::vector<SlotPlan>& param_slots() const { return param_slots_; }
  const std::vector<SlotPlan>& grad_slots() const { return grad_slots_; }

  // Frozen and trainable parameters that share a unit, for people; one line per
  // such unit with the memory it costs. Also what f32_classes made units of.
  std::vector<std::string> Warnings() const;

  // What an optimizer that steps whole parameters needs at once, in fp32
  // elements: the most that any parameter asks for, on whichever rank.
  int64_t workspace_numel() const { return workspace_numel_; }

  // XXH3-64 over options, optimizer, names, shapes, dtypes, flags, ties, units
  // and places: all that must agree. Class names and ids are no part of it.
  uint64_t fingerprint() const { return fingerprint_; }

  // Streams all that the fingerprint covers, by name: where those of two plans
  // differ, so does a fact.
  void Describe(FactSink* sink) const;

  // Frozen buffers have neither gradients nor states. Optimizer states and
  // master weights are sharded over all ranks in every stage.
  //
  //                ranks share memory     they do not
  //   parameters   once per host          whole; shards_params: HeldRanges()
  //   gradients    whole per rank; shards_grads: one range of FlatBufferPlan::
  //                sum_dtype
  //   sums         -                      where whole gradients are kept and
  //                                       sum_dtype is not grad_dtype: one
  //                                       range of it, in grad_bytes
  MemoryReport Memory(bool shared_memory) const;

  // For people: units, buffers, per-rank elements and padding (the first
  // ranks, when there are many), memory. Ends in a newline.
  std::string ToText() const;

  // The same for programs. With `per_param`, every parameter's FQN, shape,
  // dtype, place and the ranks that own it.
  std::string ToJson(bool per_param = true) const;

  // One line, for messages: "stage 1, world size 2, even, 148 parameters...".
  std::string Summary() const;

 private:
  Plan() = default;

  // Everything but the model and the options.
  Status Fill(const std::vector<ModuleId>& wrapped);
  // Slots, and what is worth sharding with them.
  void ChooseSharding();
  int ShardGroupSize() const {
    return options_.shard_group_size == 0 ? options_.world_size
                                          : options_.shard_group_size;
  }

  std::shared_ptr<const Model> model_;
  PlanOptions options_;
  std::vector<UnitPlan> units_;
  std::vector<int32_t> units_by_module_;  // Indices, by ascending ModuleId.
  std::deque<std::vector<StatePlan>> state_lists_;  // Those of the buffers.
  std::vector<FlatBufferPlan> buffers_;
  std::vector<ParamPlace> places_;
  std::vector<int32_t> positions_;
  std::vector<SlotPlan> param_slots_;
  std::vector<SlotPlan> grad_slots_;
  bool shards_params_ = false;
  bool shards_grads_ = false;
  size_t num_stored_ = 0;
  int64_t workspace_numel_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_FLAT_PLAN_H_
