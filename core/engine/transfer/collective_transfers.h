// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_ENGINE_TRANSFER_COLLECTIVE_TRANSFERS_H_
#define SHARD_CORE_ENGINE_TRANSFER_COLLECTIVE_TRANSFERS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/engine/transfer/plan_sets.h"
#include "core/engine/transfer/transfers.h"

namespace shard {

// Transfers where ranks share no memory: one collective per buffer and level,
// those of a unit in one group. W ranks, B bytes of a buffer, R = W / S shard
// groups of S ranks:
//
//   Reduce   (W - 1) / W B sent per rank; with groups (S - 1) / S B inside one
//            and then (R - 1) / W B between them; when deterministic not in two
//            levels, which would not sum in rank order: the same as without
//   Gather   (S - 1) / S B inside a group
//   Publish  (W - 1) / W B; (R - 1) / W B between groups where parameters are
//            sharded. In one level where a host's ranks have one copy
//
// The range of a rank is number (rank % S) R + rank / S (Plan::RangeOf), so
// that the elements of a buffer that a rank holds are contiguous, and each
// level's blocks lie in the order of the ranks that exchange them. A reduction
// in one level sums blocks where they lie (ReduceScatterArgs::block_groups).
//
// Ranks that move different units of one size find that in the collective
// itself: its tag names the unit.
class CollectiveTransfers final : public Transfers {
 public:
  // `group_sums`: memory of GroupSumBytes, where ranks may lack gradients.
  CollectiveTransfers(const Dependencies& deps, DeviceMemory group_sums);

  Status Reduce(const Proposal& led, const std::vector<Proposal>& proposals,
                bool add, Stream* stream) override;
  Status ReduceWhole(size_t buffer, Stream* stream) override;
  bool ReadInPlace(const Proposal&, const std::vector<Proposal>&,
                   std::vector<std::vector<const void*>>*) override {
    return false;
  }
  void FinishReading(double, Stream*) override {}
  Status Gather(int32_t unit, unsigned char* slot, Stream* stream) override;
  Status Publish(size_t buffer, Stream* stream) override;
  Status Finish(const Deadline&) override { return Status(); }
  uint64_t memory_bytes() const override { return group_sums_.size(); }
  uint64_t ReduceBytes(int32_t unit) const override;
  uint64_t ReduceWholeBytes(size_t buffer) const override;
  uint64_t GatherBytes(int32_t unit) const override;
  uint64_t PublishBytes(size_t buffer) const override;

 private:
  // The tags of the collectives that move a unit; empty those that the plan
  // does not need.
  struct Tags {
    std::string reduce;
    std::string reduce_in_group;
    std::string reduce_between_groups;
    std::string gather;
    std::string publish;
    std::string publish_between_groups;
  };
  void MakeTags();
  const Tags& TagsOf(int32_t unit) const {
    return tags_[static_cast<size_t>(unit)];
  }
  // Returns the reduction of one buffer in one level. `grads`: the buffer's
  // whole gradients of this rank; null: this rank has none.
  ReduceScatterArgs SumOf(const EngineBuffer& buffer,
                          unsigned char* grads) const;
  // Reduces buffers of a unit.
  Status ReduceAll(const Tags& tags, std::span<const ReduceScatterArgs> sums,
                   Stream* stream);
  // Reduces inside the shard group, the ranges of this rank's replicas too, and
  // then between groups. One of `sums` where ranks may lack gradients.
  Status ReduceInTwoLevels(const Tags& tags,
                           std::span<const ReduceScatterArgs> sums,
                           Stream* stream);
  // Returns the bytes of a buffer of parameters or gradients, times part /
  // world size.
  uint64_t Part(const FlatBufferPlan& buffer, DType dtype, int part) const;

  const Plan& plan_;
  const EngineMemory& memory_;
  const int rank_;
  const PlanSets sets_;
  const int group_size_;  // S
  const int groups_;      // R
  const bool two_levels_;
  std::vector<Tags> tags_;  // By unit. The enqueued work uses them.
  // The sums of a shard group, on a rank that has no gradients, in whose place
  // they could lie.
  const DeviceMemory group_sums_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_COLLECTIVE_TRANSFERS_H_
