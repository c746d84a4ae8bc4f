// SPDX-License-Identifier: Apache-2.0
//
// Transfers: reduce gradients and distribute parameters, one unit or buffer at
// a time, where ranks see each other's memory and where they do not.
//
//              ranks share memory            they do not
//   Reduce     sums the ranks' slots where   reduce-scatter, in two levels with
//              they lie                      shard groups
//   Gather     -                             all-gather in the shard group
//   Publish    - (Finish is a barrier)       all-gather of what other ranks
//                                            hold, too, to each rank or host
//
// All but ReadInPlace and Finish enqueue their work on a stream and return.
// Their errors are of this rank alone, before anything is enqueued, and of the
// stream. Finish is a meeting of the ranks' threads, and blocks.
//
// All but ReadInPlace are COLLECTIVE: after an agreement
// (core/engine/transfer/agreement.h), in the same order on all ranks. Threads:
// one at a time, not always the same.

#ifndef SHARD_CORE_ENGINE_TRANSFER_TRANSFERS_H_
#define SHARD_CORE_ENGINE_TRANSFER_TRANSFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/memory/buffers.h"
#include "core/engine/transfer/agreement.h"
#include "core/flat/plan.h"

namespace shard {

class Transfers {
 public:
  struct Dependencies {
    const Plan* plan;
    const EngineMemory* memory;
    Communicator* comm;
    Collectives* collectives;  // Of the plan's RankSets.
    Device* device;
    bool allow_missing;  // Ranks may lack gradients, and meet (Agreement).
  };

  virtual ~Transfers() = default;

  Collectives* collectives() const { return deps_.collectives; }

  // Returns the bytes of Device::Allocate that the transfers have beside the
  // engine's memory and that of its collectives, in whole pages.
  virtual uint64_t memory_bytes() const { return 0; }

  // Sums the gradients of a unit over all ranks, in the order of the
  // collectives, into each rank's range: the range's sum, or this rank's part
  // of its whole gradients. `led`: a proposal of kReduce, which says which
  // gradients. With `add`, adds to the sum that is there. `proposals`, by rank,
  // say in which slot the gradients lie; a rank that came for something else
  // adds nothing. REQUIRES: gradients are sharded, or memory is not shared.
  virtual Status Reduce(const Proposal& led,
                        const std::vector<Proposal>& proposals, bool add,
                        Stream* stream) = 0;

  // Reduces one buffer of gradients that are kept whole, where memory is not
  // shared.
  virtual Status ReduceWhole(size_t buffer, Stream* stream) = 0;

  // Returns the gradients that a begun step can read where they lie, instead of
  // Reduce: by trainable buffer of the unit, this rank's range on each rank
  // that has gradients. False where they cannot be read, or where a sum of them
  // would be rounded before it is used.
  virtual bool ReadInPlace(const Proposal& led,
                           const std::vector<Proposal>& proposals,
                           std::vector<std::vector<const void*>>* sources) = 0;
  // Ends the reading of slots, in place or by Reduce: ranks may use them again.
  // The ranks meet for at most `timeout` seconds.
  virtual void FinishReading(double timeout, Stream* stream) = 0;

  // Gathers all parameters of the unit into `slot`. REQUIRES: parameters are
  // sharded and memory is not shared.
  virtual Status Gather(int32_t unit, unsigned char* slot, Stream* stream) = 0;

  // Sends this rank's updated range to the ranks that hold the buffer.
  virtual Status Publish(size_t buffer, Stream* stream) = 0;

  // Ends the publishing of a step, which has run: every rank sees all published
  // ranges, and no rank reads gradients any more.
  virtual Status Finish(const Deadline& deadline) = 0;

  // Return the bytes that this rank sends in one of the calls above; 0 where
  // nothing is copied.
  virtual uint64_t ReduceBytes(int32_t unit) const = 0;
  virtual uint64_t ReduceWholeBytes(size_t buffer) const = 0;
  virtual uint64_t GatherBytes(int32_t unit) const = 0;
  virtual uint64_t PublishBytes(size_t buffer) const = 0;

 protected:
  explicit Transfers(const Dependencies& deps) : deps_(deps) {}

  const Dependencies deps_;
};

// Makes transfers for a communicator, with or without shared memory. All of
// `deps` must outlive the result, whose memory the enqueued work uses.
StatusOr<std::unique_ptr<Transfers>> MakeTransfers(
    const Transfers::Dependencies& deps);

// Returns the deadline of a wait for transfers each of whose collectives may
// take `timeout` seconds. It comes later than theirs, which name the ranks that
// are late.
inline Deadline TransferDeadline(double timeout) {
  return Deadline::After(2 * timeout);
}

// Returns whether a rank that came with `proposal` has sharded gradients to add
// to those of `led`.
inline bool Contributes(const Proposal& proposal, const Proposal& led) {
  return SameWork(proposal, led) && proposal.slot >= 0;
}

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_TRANSFERS_H_
