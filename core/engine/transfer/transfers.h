// SPDX-License-Identifier: Apache-2.0
//
// Transfers: how gradients come together and parameters spread out, for one
// unit or buffer at a time, where ranks see each other's memory and where they
// do not.
//
//              ranks share memory            they do not
//   Reduce     sums the ranks' slots where   reduce-scatter, in two levels with
//              they lie                      shard groups
//   Gather     -                             all-gather in the shard group
//   Publish    - (Finish is a barrier)       all-gather of what other ranks
//                                            hold, too
//
// Calls block, and are COLLECTIVE: after a meeting
// (core/engine/transfer/meeting.h), in the same order on all ranks. One thread
// at a time; which one may change.

#ifndef SHARD_CORE_ENGINE_TRANSFER_TRANSFERS_H_
#define SHARD_CORE_ENGINE_TRANSFER_TRANSFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/memory/buffers.h"
#include "core/engine/transfer/meeting.h"
#include "core/flat/plan.h"

namespace shard {

class Transfers {
 public:
  virtual ~Transfers() = default;

  // Sums the gradients that `led`, a note of kReduce, is about over all ranks,
  // in rank order, into each rank's range of them: its sum, or its part of its
  // whole gradients. With `add`, to what is there. `notes`, by rank, say in
  // which slot they lie; a rank that came for something else adds nothing.
  // REQUIRES: gradients are sharded, or memory is not shared.
  virtual Status Reduce(const Note& led, const std::vector<Note>& notes,
                        bool add, const Deadline& deadline) = 0;

  // The same for one buffer of gradients that are kept whole, where memory is
  // not shared.
  virtual Status ReduceWhole(size_t buffer, const Deadline& deadline) = 0;

  // Instead of Reduce, for a step that was begun, where every rank's gradients
  // can be read where they lie: by trainable buffer of the unit, this rank's
  // range of them on each rank that has some. False where they cannot, or where
  // a sum of them would be rounded before it is used.
  virtual bool ReadInPlace(const Note& led, const std::vector<Note>& notes,
                           std::vector<std::vector<const void*>>* sources) = 0;
  // COLLECTIVE, after they were read: ranks may use those slots again.
  virtual Status FinishReading(const Deadline& deadline) = 0;

  // All parameters of the unit into `slot`, from what the ranks hold.
  // REQUIRES: parameters are sharded and memory is not shared.
  virtual Status Gather(int32_t unit, unsigned char* slot,
                        const Deadline& deadline) = 0;

  // This rank's updated range of a buffer to all that hold it.
  virtual Status Publish(size_t buffer, const Deadline& deadline) = 0;

  // After the last Publish of a step: every rank sees all of them, and no rank
  // reads gradients any more.
  virtual Status Finish(const Deadline& deadline) = 0;

  // Bytes this rank sends for one of the above; 0 where nothing is copied.
  virtual uint64_t ReduceBytes(int32_t unit) const = 0;
  virtual uint64_t ReduceWholeBytes(size_t buffer) const = 0;
  virtual uint64_t GatherBytes(int32_t unit) const = 0;
  virtual uint64_t PublishBytes(size_t buffer) const = 0;
};

// For communicators with and without shared memory. All arguments outlive the
// result.
StatusOr<std::unique_ptr<Transfers>> MakeTransfers(const Plan& plan,
                                                   const EngineMemory& memory,
                                                   Communicator* comm,
                                                   Device* device);

// Whether a rank that came with `note` has sharded gradients to add to those
// that `led` is about.
inline bool Contributes(const Note& note, const Note& led) {
  return SameWork(note, led) && note.slot >= 0;
}

// Where the trainable (`grads`) or all buffers of a unit lie in its slot.
struct SlotPart {
  size_t buffer;
  uint64_t offset;  // Bytes.
};
std::vector<SlotPart> SlotParts(const Plan& plan, int32_t unit, bool grads);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_TRANSFERS_H_
