// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_ENGINE_TRANSFER_COLLECTIVE_TRANSFERS_H_
#define SHARD_CORE_ENGINE_TRANSFER_COLLECTIVE_TRANSFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/engine/transfer/transfers.h"

namespace shard {

// Transfers where ranks share no memory: collectives of the communicator, one
// per buffer. W ranks, B bytes of a buffer, R = W / S shard groups of S ranks:
//
//   Reduce   (W - 1) / W B sent per rank; with groups (S - 1) / S B inside one
//            and then (R - 1) / W B between them; when deterministic not in two
//            levels, which would not sum in rank order: the same as without
//   Gather   (S - 1) / S B inside a group
//   Publish  (W - 1) / W B; (R - 1) / W B between groups where parameters are
//            sharded
//
// The range of a rank is number (rank % S) R + rank / S (Plan::RangeOf), so
// that the elements of a buffer that a rank holds are contiguous, and each
// level's blocks lie in the order of the ranks that exchange them.
class CollectiveTransfers final : public Transfers {
 public:
  CollectiveTransfers(const Plan& plan, const EngineMemory& memory,
                      Communicator* comm, Device* device,
                      std::unique_ptr<Stream> stream);

  Status Reduce(const Proposal& led, const std::vector<Proposal>& proposals,
                bool add, const Deadline& deadline) override;
  Status ReduceWhole(size_t buffer, const Deadline& deadline) override;
  bool ReadInPlace(const Proposal&, const std::vector<Proposal>&,
                   std::vector<std::vector<const void*>>*) override {
    return false;
  }
  Status FinishReading(const Deadline&) override { return Status(); }
  Status Gather(int32_t unit, unsigned char* slot,
                const Deadline& deadline) override;
  Status Publish(size_t buffer, const Deadline& deadline) override;
  Status Finish(const Deadline& deadline) override;
  uint64_t ReduceBytes(int32_t unit) const override;
  uint64_t ReduceWholeBytes(size_t buffer) const override;
  uint64_t GatherBytes(int32_t unit) const override;
  uint64_t PublishBytes(size_t buffer) const override;

 private:
  // Reduces one buffer. `grads`: the buffer's whole gradients of this rank;
  // null: this rank has none.
  Status ReduceBuffer(const EngineBuffer& buffer, unsigned char* grads,
                      bool add, const Deadline& deadline);
  // Reduces in one level where ranges do not lie in rank order: `own` is this
  // rank's part of the sum.
  Status ReduceInRankOrder(const FlatBufferPlan& plan,
                           const unsigned char* grads, unsigned char* own,
                           DType own_dtype, bool add, const Deadline& deadline);
  // Makes room for `bytes` in level_.
  Status Grow(size_t bytes);
  // Returns the bytes of a buffer of parameters or gradients, times part /
  // world size.
  uint64_t Part(const FlatBufferPlan& buffer, DType dtype, int part) const;

  const Plan& plan_;
  const EngineMemory& memory_;
  Communicator* const comm_;
  Device* const device_;
  const std::unique_ptr<Stream> stream_;
  const int rank_;
  const int group_size_;    // S
  const int groups_;        // R
  const RankSet group_;     // Consecutive ranks that shard among them.
  const RankSet replicas_;  // One rank of each group.
  // Scratch of shard groups: the result of one level on a rank without
  // gradients, or a piece of all blocks in rank order.
  DeviceMemory level_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_COLLECTIVE_TRANSFERS_H_
