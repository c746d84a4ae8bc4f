// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are threads, each with a GPU of its own of the fake driver, and
// collectives by the fake NCCL.

#ifndef SHARD_TESTS_CORE_COLLECTIVES_NCCL_NCCL_RANK_H_
#define SHARD_TESTS_CORE_COLLECTIVES_NCCL_NCCL_RANK_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/device.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/comm/backends.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::testing {

// Fresh fakes with a GPU for each rank.
inline fake_cuda::Options OneGpuEach(int world_size) {
  fake_cuda::Options options;
  options.devices = world_size;
  return options;
}

struct NcclRank {
  explicit NcclRank(Communicator* communicator, std::vector<RankSet> sets,
                    CollectivesOptions options = {})
      : comm(communicator),
        all(RankSet::All(comm->world_size())),
        device(*cuda::OpenDevice(StrCat(comm->rank()))) {
    if (options.reduce.blocks == 0) {
      options.reduce = {size_t{1} << 16, size_t{1} << 15};
    }
    options.transport = Transport::kNccl;
    auto opened = OpenCollectives(comm, device.get(), sets, options, Soon());
    EXPECT_OK(opened);
    if (opened.ok()) collectives = *std::move(opened);
    stream = *device->CreateStream(StreamKind::kCommunication);
    stream->OnError(
        [this](const Status& error) { comm->AbortUnlogged(error); });
    if (collectives == nullptr) return;
    failing = collectives->OnFailure(
        [this](const Status& error) { stream->Fail(error); });
  }

  Status Synchronize() { return stream->Synchronize(Deadline::After(20)); }

  Communicator* const comm;
  const RankSet all;
  const std::shared_ptr<Device> device;
  std::shared_ptr<Collectives> collectives;
  // Destroyed first: its work uses the collectives.
  std::unique_ptr<Stream> stream;
  std::shared_ptr<void> failing;
};

// A tensor of a rank, which a test fills and reads.
class DeviceTensor {
 public:
  DeviceTensor(const NcclRank* rank, const void* from, size_t bytes)
      : device_(rank->device.get()),
        memory_(*rank->collectives->Allocate(device_, bytes, "a test")) {
    EXPECT_OK(Move(device_, memory_.data(), from, bytes));
  }
  DeviceTensor(const NcclRank* rank, const std::vector<unsigned char>& from)
      : DeviceTensor(rank, from.data(), from.size()) {}

  void* data() const { return memory_.data(); }
  std::vector<unsigned char> Read() const {
    std::vector<unsigned char> bytes(memory_.size());
    EXPECT_OK(Move(device_, bytes.data(), memory_.data(), bytes.size()));
    return bytes;
  }

 private:
  static Status Move(Device* device, void* to, const void* from, size_t bytes) {
    SHARD_ASSIGN_OR_RETURN(auto stream,
                           device->CreateStream(StreamKind::kCompute));
    stream->Copy(to, from, bytes);
    return stream->Synchronize(Soon());
  }

  Device* const device_;
  const DeviceMemory memory_;
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_COLLECTIVES_NCCL_NCCL_RANK_H_
