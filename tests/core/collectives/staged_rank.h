// SPDX-License-Identifier: Apache-2.0
//
// StagedRank: a rank whose collectives go through staging memory, on the guard
// device: the exchange is that of the host, so it would fault at a tensor.

#ifndef SHARD_TESTS_CORE_COLLECTIVES_STAGED_RANK_H_
#define SHARD_TESTS_CORE_COLLECTIVES_STAGED_RANK_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/collectives/blocking_collectives.h"
#include "tests/core/comm/backends.h"
#include "tests/core/device/guard_device.h"
#include "tests/core/device/guard_memory.h"

namespace shard::testing {

// The staging memory of a rank: small, so that tensors come in chunks.
inline constexpr size_t kStagingBytes = 4096;
// Left for the alignment of the result.
inline constexpr size_t kUsedStaging = kStagingBytes - 64;

// Its streams run late, and at random times.
inline constexpr char kLateDevice[] = "cpu-async?max_delay=0.0001&seed=3";

using Bytes = std::vector<std::byte>;

// A rank on a guard device, whose collectives may be compared with those of the
// host.
class StagedRank {
 public:
  explicit StagedRank(Communicator* comm, const char* device = "cpu",
                      double timeout = 30,
                      std::function<Status()> before_copy = nullptr)
      : comm_(comm),
        device_(GuardTensors(*OpenDevice(device), std::move(before_copy))) {
    auto opened = OpenCollectives(
        comm, device_.get(), EverySet(*comm),
        {.timeout = timeout, .staging_bytes = kStagingBytes}, Soon());
    EXPECT_OK(opened);
    if (opened.ok()) collectives_ = *std::move(opened);
    stream_ = *device_->CreateStream(StreamKind::kCommunication);
    stream_->OnError([comm](const Status& error) { comm->Abort(error); });
  }

  Communicator* comm() const { return comm_; }
  int rank() const { return comm_->rank(); }
  Collectives* operator->() const { return collectives_.get(); }
  Collectives* collectives() const { return collectives_.get(); }
  Stream* stream() const { return stream_.get(); }
  Status Synchronize() const { return stream_->Synchronize(Soon()); }

  // Makes a tensor, with a byte behind it that must not change.
  DeviceMemory Tensor(const Bytes& values) const {
    auto memory = *device_->Allocate(values.size() + 1, "a tensor");
    std::copy(values.begin(), values.end(), KernelView(memory.data()));
    KernelView(memory.data())[values.size()] = std::byte{0xEE};
    return memory;
  }
  static Bytes ValuesOf(const DeviceMemory& tensor) {
    const std::byte* const values = KernelView(tensor.data());
    EXPECT_EQ(values[tensor.size() - 1], std::byte{0xEE});
    return Bytes(values, values + tensor.size() - 1);
  }

  // Returns how many calls of a collective the rank has made.
  uint64_t Calls(const char* event) const {
    const auto counter = comm_->observer()->counters().Find(event);
    return counter.ok() ? counter->calls : 0;
  }

 private:
  Communicator* const comm_;
  const std::shared_ptr<Device> device_;
  std::shared_ptr<Collectives> collectives_;
  // Destroyed first: its work uses the collectives.
  std::unique_ptr<Stream> stream_;
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_COLLECTIVES_STAGED_RANK_H_
