// SPDX-License-Identifier: Apache-2.0
//
// Ranks with collectives by NCCL of which one goes wrong, and calls of theirs.

#ifndef SHARD_TESTS_CORE_COLLECTIVES_NCCL_NCCL_FAULTS_H_
#define SHARD_TESTS_CORE_COLLECTIVES_NCCL_NCCL_FAULTS_H_

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/collectives/nccl/nccl_rank.h"

namespace shard::testing {

inline constexpr double kFaultSeconds = 1;
inline constexpr size_t kFaultBytes = 400;

// Gathers `bytes` bytes of each rank, and returns the stream's status. Calls
// `on_enqueued` when the host has enqueued it.
inline Status Gather(
    NcclRank* rank, size_t bytes = kFaultBytes,
    const std::function<void()>& on_enqueued = [] {}) {
  const auto ranks = static_cast<size_t>(rank->comm->world_size());
  const DeviceTensor all(rank, std::vector<unsigned char>(ranks * bytes));
  auto* const own = static_cast<unsigned char*>(all.data()) +
                    static_cast<size_t>(rank->comm->rank()) * bytes;
  rank->collectives->AllGatherBlocks("gather", rank->all, own, bytes,
                                     all.data(), rank->stream.get());
  on_enqueued();
  const Status status = rank->Synchronize();
  rank->stream->Settle(Soon());
  return status;
}

// Holds up a stream, so that its thread makes the calls of what is enqueued
// next, and not the host's.
class Gate {
 public:
  explicit Gate(Stream* stream) {
    stream->Call("gate", [is_open = is_open_] {
      EXPECT_TRUE(ComesTrue([&] { return is_open->load(); }));
      return Status();
    });
  }
  void Open() { *is_open_ = true; }

 private:
  const std::shared_ptr<std::atomic<bool>> is_open_ =
      std::make_shared<std::atomic<bool>>(false);
};

// Expects the error with which the family has ended. A rank that comes later is
// told of it.
inline void ExpectEnd(const Status& status, StatusCode code) {
  if (status.code() == code) return;
  EXPECT_EQ(status.code(), StatusCode::kPoisoned) << status.ToString();
  EXPECT_TRUE(Contains(status.message(), StatusCodeName(code)));
}

// Runs body(rank) on three ranks whose collectives have worked once, and
// expects all to have returned in time.
inline void RunNcclRanks(const std::function<void(NcclRank*)>& body) {
  const FakeNccl fake(OneGpuEach(3));
  RunGroup(
      Backend::kThreads, 3,
      [&](Communicator* comm) {
        NcclRank rank(comm, {RankSet::All(3)},
                      {.order = SumOrder::kLibrary, .timeout = kFaultSeconds});
        ASSERT_OK(Gather(&rank));
        ASSERT_OK(comm->Barrier("begin", Soon()));
        const auto begin = std::chrono::steady_clock::now();
        body(&rank);
        EXPECT_LT(std::chrono::duration<double>(
                      std::chrono::steady_clock::now() - begin)
                      .count(),
                  kFaultSeconds + 1 + 2);
        EXPECT_FALSE(comm->Barrier("after", Soon()).ok());
      },
      /*shutdown=*/false);
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_COLLECTIVES_NCCL_NCCL_FAULTS_H_
