// SPDX-License-Identifier: Apache-2.0
//
// Plan: everything that is decided about a run before memory is allocated: the
// units, their flat buffers, who owns what, and what it will cost. A pure
// function of model and options; ranks that compute it from the same inputs
// get the same fingerprint, and ranks that differ find out when they meet.
//
// A unit has one flat buffer per (dtype, trainable) pair that occurs in it, so
// that no mixture is refused.
//
// Immutable once made: any number of threads may read it.

#ifndef SHARD_CORE_FLAT_PLAN_H_
#define SHARD_CORE_FLAT_PLAN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/flat/layout.h"
#include "core/model/model.h"

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

// One optimizer state tensor per parameter element.
struct StateTensor {
  std::string name;  // "exp_avg"
  DType dtype;
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

  // Bytes; every rank's range begins at a multiple of it.
  int64_t alignment_bytes = 64;

  // The optimizer in its canonical text form, and the state it keeps.
  std::string optimizer;
  std::vector<StateTensor> states;
};

// What the engine allocates is rounded up to this, buffer by buffer.
inline constexpr uint64_t kPageBytes = 4096;

// Bytes, page rounding included, so that the engine's real use equals it.
struct MemoryReport {
  uint64_t param_bytes = 0;  // Per host: its ranks share one copy.
  uint64_t grad_bytes = 0;   // Per rank.
  uint64_t state_bytes = 0;  // Per rank.

  uint64_t HostTotal(int ranks_on_host) const {
    return param_bytes +
           (grad_bytes + state_bytes) * static_cast<uint64_t>(ranks_on_host);
  }
};

struct FlatBufferPlan {
  int32_t unit;  // Index into Plan::units().
  DType dtype;
  bool trainable;
  FlatLayout layout;
};

struct UnitPlan {
  ModuleId module;               // Its outermost module.
  std::vector<int32_t> buffers;  // Indices into Plan::buffers().
};

// Where a parameter lives.
struct ParamPlace {
  int32_t buffer = -1;  // Index into Plan::buffers(); -1: ignored.
  int64_t offset = 0;   // Elements from the start of the flat buffer.
};

class Plan {
 public:
  // Keeps `model`, which must not change from here on. Errors, all with the
  // value: a stage outside 0..3, a world size outside 1..kMaxWorldSize, an
  // unknown partition, alignment_bytes or bucket_bytes below 1, an optimizer
  // text or state name that is not UTF-8, a state name that is empty or stands
  // twice, no model, a model that has no parameter to store, kManual owners
  // that are missing or out of range (naming parameter and owner), buffers
  // beyond int64 bytes. Every stage and dtype can be planned; whether this
  // build can run it is the engine's to say.
  static StatusOr<std::shared_ptr<const Plan>> Create(
      std::shared_ptr<const Model> model, PlanOptions options);

  const Model& model() const { return *model_; }
  const PlanOptions& options() const { return options_; }
  const std::vector<UnitPlan>& units() const { return units_; }
  const std::vector<FlatBufferPlan>& buffers() const { return buffers_; }
  // By ParamId.
  const std::vector<ParamPlace>& places() const { return places_; }

  // XXH3-64 over options, optimizer, names, shapes, dtypes, flags, ties and
  // places: all that must agree. Class names and ids are no part of it.
  uint64_t fingerprint() const { return fingerprint_; }

  // Stages 0 and 1 hold a rank's gradients whole, 2 and 3 its shard of them.
  // Frozen buffers have neither gradients nor states. Optimizer states are
  // sharded in every stage: ranks of one host never keep them twice.
  MemoryReport Memory() const;

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

  std::shared_ptr<const Model> model_;
  PlanOptions options_;
  std::vector<UnitPlan> units_;
  std::vector<FlatBufferPlan> buffers_;
  std::vector<ParamPlace> places_;
  uint64_t fingerprint_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_FLAT_PLAN_H_
