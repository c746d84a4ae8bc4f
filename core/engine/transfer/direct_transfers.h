// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_ENGINE_TRANSFER_DIRECT_TRANSFERS_H_
#define SHARD_CORE_ENGINE_TRANSFER_DIRECT_TRANSFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/engine/transfer/transfers.h"

namespace shard {

// Transfers where ranks see each other's memory: a reduction reads every rank's
// slot and writes this rank's sum, W g + s bytes per element of the range (W
// ranks, gradients of g bytes, sums of s bytes), and nothing else moves. A step
// that was begun reads the slots itself, and needs no sum.
class DirectTransfers final : public Transfers {
 public:
  // `tile`: TileNumel elements of fp32.
  DirectTransfers(const Dependencies& deps, DeviceMemory tile);

  // Returns the elements of a tile: large enough that the cost of calls, or
  // launches, is negligible; on the host small enough for the L1 cache.
  static size_t TileNumel(const Device& device) {
    return device.IsHostMemory() ? 2048 : size_t{1} << 20;
  }

  Status Reduce(const Proposal& led, const std::vector<Proposal>& proposals,
                bool add, Stream* stream) override;
  Status ReduceWhole(size_t buffer, Stream* stream) override;
  bool ReadInPlace(const Proposal& led, const std::vector<Proposal>& proposals,
                   std::vector<std::vector<const void*>>* sources) override;
  void FinishReading(double timeout, Stream* stream) override;
  Status Gather(int32_t unit, unsigned char* slot, Stream* stream) override;
  Status Publish(size_t, Stream*) override { return Status(); }
  Status Finish(const Deadline& deadline) override;
  uint64_t ReduceBytes(int32_t unit) const override;
  uint64_t ReduceWholeBytes(size_t) const override { return 0; }
  uint64_t GatherBytes(int32_t) const override { return 0; }
  uint64_t PublishBytes(size_t) const override { return 0; }

 private:
  // Finds this rank's range of a buffer of the unit in the slots of all ranks
  // that have gradients of the unit.
  void FindSources(const SlotPart& part, const Proposal& led,
                   const std::vector<Proposal>& proposals,
                   std::vector<const void*>* sources) const;
  void SumBuffer(const SlotPart& part, const Proposal& led,
                 const std::vector<Proposal>& proposals, bool add,
                 Stream* stream);

  const Plan& plan_;
  const EngineMemory& memory_;
  // Sums before they are rounded or added.
  const DeviceMemory tile_;
  std::vector<const void*> sources_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_DIRECT_TRANSFERS_H_
