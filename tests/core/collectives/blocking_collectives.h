// SPDX-License-Identifier: Apache-2.0
//
// Collectives of one rank that are waited for one by one.

#ifndef SHARD_TESTS_CORE_COLLECTIVES_BLOCKING_COLLECTIVES_H_
#define SHARD_TESTS_CORE_COLLECTIVES_BLOCKING_COLLECTIVES_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "tests/core/comm/backends.h"

namespace shard::testing {

// Returns this rank's set of every way to divide the world.
inline std::vector<RankSet> EverySet(const Communicator& comm) {
  std::vector<RankSet> sets;
  const int world_size = comm.world_size();
  for (int count = 1; count <= world_size; ++count) {
    for (int stride = 1; stride * count <= world_size; ++stride) {
      if (world_size % (stride * count) != 0) continue;
      sets.push_back(RankSet::Of(comm.rank(), stride, count));
    }
  }
  return sets;
}

class BlockingCollectives {
 public:
  // Opens EverySet. COLLECTIVE. `timeout`: of a collective, in seconds.
  explicit BlockingCollectives(Communicator* comm, double timeout = 30)
      : comm_(comm), device_(*OpenDevice("cpu")) {
    auto opened = OpenCollectives(comm, device_.get(), EverySet(*comm),
                                  {.timeout = timeout}, Soon());
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    if (opened.ok()) collectives_ = *std::move(opened);
  }

  Communicator* comm() const { return comm_; }
  int rank() const { return comm_->rank(); }
  int world_size() const { return comm_->world_size(); }

  // Each has a stream of its own, so an earlier error is that of the family.
  Status ReduceScatter(std::string_view tag, const RankSet& set,
                       const ReduceScatterArgs& args) {
    return Run([&](Stream* stream) {
      collectives_->ReduceScatter(tag, set, args, stream);
    });
  }
  Status AllGatherBlocks(std::string_view tag, const RankSet& set,
                         const void* send, size_t bytes, void* recv) {
    return Run([&](Stream* stream) {
      collectives_->AllGatherBlocks(tag, set, send, bytes, recv, stream);
    });
  }
  Status Broadcast(std::string_view tag, int root, void* data, size_t bytes) {
    return Run([&](Stream* stream) {
      collectives_->Broadcast(tag, root, data, bytes, stream);
    });
  }

 private:
  Status Run(const std::function<void(Stream* stream)>& enqueue) {
    SHARD_ASSIGN_OR_RETURN(const auto stream,
                           device_->CreateStream(StreamKind::kCompute));
    enqueue(stream.get());
    return stream->Synchronize(Deadline::After(60));
  }

  Communicator* const comm_;
  const std::shared_ptr<Device> device_;
  std::shared_ptr<Collectives> collectives_;
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_COLLECTIVES_BLOCKING_COLLECTIVES_H_
