// SPDX-License-Identifier: Apache-2.0
//
// HostAccess: the one way in which code of the host reads and writes tensors,
// such as that of checkpoints, state dicts and first values. Work on streams
// uses tensors where they lie, and needs no access.
//
//                tensors in the host's memory   tensors in other memory
//   in_place     true                           false
//   Fetch        memcpy                         a stream copies to staging
//                                               memory, the host from there
//   Store        memcpy                         the reverse
//   ForKernels   the host's values              a copy in the device's memory
//
// Order. An access sees all that was enqueued before it was opened. Fetch and
// Store have finished when they return, so work that is enqueued later sees
// what they stored. REQUIRES: no stream writes the tensors meanwhile.
//
// Errors. Once a function has returned an error or thrown, no stream uses the
// caller's memory or the tensors: streams copy to and from staging memory
// alone, and a stream that missed a deadline is destroyed.
//
// Offloaded states lie in the host's memory, where tensors do not: Fetch and
// Store of them are memcpy too.
//
// Memory: none where tensors lie in the host's memory. Elsewhere a stream and
// kStagingBytes per thread that is in Fetch or Store at the same time, which
// are kept until the access is destroyed. Where there is not as much, threads
// wait for those of others: the first alone is needed.
//
// Thread-safe.

#ifndef SHARD_CORE_DEVICE_HOST_ACCESS_H_
#define SHARD_CORE_DEVICE_HOST_ACCESS_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/device/device.h"
#include "core/device/event.h"

namespace shard {

// A copy of `bytes` bytes. Either side may be null where there are none.
struct HostCopy {
  void* to;
  const void* from;
  size_t bytes;
};

class HostAccess {
 public:
  // Staging memory is used in halves: the stream works on one while the host
  // works on the other. A chunk of a data file (DataWriter) fills both.
  static constexpr size_t kStagingBytes = size_t{4} << 20;

  // Waits until `after` is done, and returns its error. `device` must outlive
  // every call but the destructor.
  static StatusOr<std::unique_ptr<HostAccess>> Open(Device* device,
                                                    const Event& after,
                                                    const Deadline& deadline);
  ~HostAccess();
  HostAccess(const HostAccess&) = delete;
  HostAccess& operator=(const HostAccess&) = delete;

  // Returns whether the host may read and write tensors where they lie, too.
  bool in_place() const { return in_place_; }

  // Makes the stream and the memory of one thread's copies, which the first
  // Fetch or Store would make: for callers that must know before they copy
  // whether there is room.
  Status Reserve();
  // The same where copies of a tensor at this address need them.
  Status ReserveFor(const void* tensor);

  // Copy tensors to memory of the host, and the reverse. Many small copies in
  // one call wait for the device as often as a large one.
  Status Fetch(std::span<const HostCopy> copies, const Deadline& deadline);
  Status Store(std::span<const HostCopy> copies, const Deadline& deadline);

  // Returns the address at which kernels read the host's `bytes` bytes at
  // `from`: `from` itself, or that of a copy in `copy`, which must live until
  // the kernels have run.
  StatusOr<const void*> ForKernels(const void* from, size_t bytes,
                                   DeviceMemory* copy,
                                   const Deadline& deadline);

 private:
  class Lane;
  class LaneUse;
  using LaneCopy = Status (Lane::*)(std::span<const HostCopy> copies,
                                    const Deadline& deadline);

  explicit HostAccess(Device* device);

  // Makes a lane idle that a thread has used.
  void ReturnLane(std::unique_ptr<Lane> lane) noexcept;
  // There is one lane less, which could not be made or was dropped.
  void LoseLane(bool was_made) noexcept;
  // Copies in place, or by `copy` of a lane, which is kept unless it fails.
  Status Copy(std::span<const HostCopy> copies, LaneCopy copy,
              const Deadline& deadline);
  // Makes those of `copies` whose tensor is in the host's memory, and returns
  // the others. `tensor`: the tensor's side of a copy.
  template <typename Side>
  std::vector<HostCopy> CopyOffloaded(std::span<const HostCopy> copies,
                                      Side HostCopy::*tensor) const;

  Device* const device_;
  const bool in_place_;
  std::mutex mutex_;
  std::condition_variable returned_;
  // Has room for all lanes.
  std::vector<std::unique_ptr<Lane>> idle_;  // GUARDED_BY(mutex_)
  // Lanes that are idle, in use or being made.
  size_t num_lanes_ = 0;  // GUARDED_BY(mutex_)
  // Lanes that were made, and whose memory is free again.
  uint64_t num_dropped_ = 0;  // GUARDED_BY(mutex_)
};

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_HOST_ACCESS_H_
