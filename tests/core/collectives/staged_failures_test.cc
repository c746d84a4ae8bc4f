// SPDX-License-Identifier: Apache-2.0
//
// Collectives through staging memory that fail, or that cannot be opened.

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "core/base/strings.h"
#include "core/collectives/collectives.h"
#include "core/collectives/staged/staged_collectives.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/device/forwarding_device.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/collectives/staged_rank.h"
#include "tests/core/comm/backends.h"
#include "tests/core/device/gate.h"
#include "tests/core/device/guard_device.h"
#include "tests/core/device/guard_memory.h"

namespace shard::testing::staged_failures_test {
namespace {

constexpr size_t kManyBytes = 10 * kUsedStaging;  // A broadcast of 10 chunks.

// Returns work that takes a while.
std::function<Status()> WorkOf(double seconds) {
  return [seconds] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    return Status();
  };
}

class StagedFaultTest : public ::testing::TestWithParam<const char*> {
 protected:
  static void Run(int world_size,
                  const std::function<void(Communicator*)>& body,
                  bool shutdown = false) {
    RunGroup(Backend::kThreads, world_size, body, shutdown, "direct=0");
  }
  // Runs a broadcast to a rank that copies its chunks slowly.
  static Status BroadcastSlowly(Communicator* comm, double timeout,
                                std::optional<double> call) {
    StagedRank rank(comm, GetParam(), timeout,
                    comm->rank() == 1 ? WorkOf(0.1) : nullptr);
    const DeviceMemory data = rank.Tensor(Bytes(kManyBytes));
    std::optional<Deadline> deadline;
    if (call.has_value()) deadline = Deadline::After(*call);
    rank->SetDeadline(deadline);
    rank->Broadcast("weights", 0, data.data(), kManyBytes, rank.stream());
    return rank.Synchronize();
  }
};

TEST_P(StagedFaultTest, TheDeadlineIsThatOfAllChunks) {
  Run(2, [](Communicator* comm) {
    const Status status = BroadcastSlowly(comm, 0.5, {});
    if (comm->rank() == 0) {
      ExpectError(status, StatusCode::kDeadlineExceeded,
                  {"'weights': 1 of 2 ranks did not enter it within 0.5 s"});
    } else {
      ExpectError(status, StatusCode::kPoisoned, {"'weights': 1 of 2 ranks"});
    }
  });
}

TEST_P(StagedFaultTest, TheDeadlineOfACallIsThatOfAllChunks) {
  Run(2, [](Communicator* comm) {
    const Status status = BroadcastSlowly(comm, 30, 0.5);
    EXPECT_EQ(status.code(), comm->rank() == 0 ? StatusCode::kDeadlineExceeded
                                               : StatusCode::kPoisoned)
        << status.ToString();
  });
}

TEST_P(StagedFaultTest, ACallMayAllowMoreTime) {
  Run(
      2, [](Communicator* comm) { EXPECT_OK(BroadcastSlowly(comm, 0.05, 30)); },
      /*shutdown=*/true);
}

// The time of a collective begins when it does.
TEST_P(StagedFaultTest, TheDeadlineBeginsWithTheCollective) {
  Run(
      2,
      [](Communicator* comm) {
        StagedRank rank(comm, GetParam(), /*timeout=*/1);
        const Deadline timeout = Deadline::After(1);
        const DeviceMemory data = rank.Tensor(Bytes(kManyBytes));
        // One collective before it, whose time has passed by then.
        rank->Broadcast("early", 0, data.data(), 4, rank.stream());
        rank.stream()->Call("work until the timeout has passed", [&timeout] {
          while (!timeout.Expired()) std::this_thread::yield();
          return Status();
        });
        rank->Broadcast("late", 0, data.data(), kManyBytes, rank.stream());
        EXPECT_OK(rank.Synchronize());
      },
      /*shutdown=*/true);
}

// One rank stops between two chunks until its peers have given up.
TEST_P(StagedFaultTest, ARankThatStopsBetweenChunksIsAnErrorOfAll) {
  Gate gate;
  Run(3, [&](Communicator* comm) {
    std::atomic<int> copies{0};
    StagedRank rank(comm, GetParam(), /*timeout=*/0.5, [&] {
      if (comm->rank() == 1 && ++copies == 3) return gate.Pass();
      return Status();
    });
    const DeviceMemory data = rank.Tensor(Bytes(kManyBytes));
    const auto broadcast = [&] {
      rank->Broadcast("weights", 0, data.data(), kManyBytes, rank.stream());
      return rank.Synchronize();
    };
    if (comm->rank() == 1) {
      std::thread opener([&] {
        EXPECT_TRUE(Contains(comm->Barrier("control", Soon()).message(),
                             "'weights': 1 of 3 ranks did not enter it"));
        gate.Open();
      });
      ExpectError(broadcast(), StatusCode::kPoisoned, {"'weights': 1 of 3"});
      opener.join();
    } else {
      const Status status = broadcast();
      EXPECT_TRUE(Contains(status.message(),
                           "'weights': 1 of 3 ranks did not enter it within "
                           "0.5 s: rank [1]"));
    }
  });
}

TEST_P(StagedFaultTest, ASetThatWasNotOpenedFailsTheStream) {
  Run(4, [](Communicator* comm) {
    StagedRank rank(comm, GetParam());
    const RankSet wrong = {0, 1, 3};
    const DeviceMemory data = rank.Tensor(Bytes(400));
    const Bytes before = StagedRank::ValuesOf(data);
    if (comm->rank() % 2 == 0) {
      rank->AllGatherBlocks("odd", wrong, data.data(), 100, data.data(),
                            rank.stream());
    } else {
      rank->ReduceScatter(
          "odd", wrong, {.send = data.data(), .count = 25, .recv = data.data()},
          rank.stream());
    }
    rank->Broadcast("next", 0, data.data(), 4, rank.stream());
    ExpectInvalid(rank.Synchronize(), {"'odd' over 3 ranks from 0",
                                       "OpenCollectives was not given"});
    EXPECT_TRUE(StagedRank::ValuesOf(data) == before);
  });
}

TEST_P(StagedFaultTest, DifferentCallsAreDesync) {
  Run(2, [](Communicator* comm) {
    StagedRank rank(comm, GetParam());
    const DeviceMemory data = rank.Tensor(Bytes(kManyBytes));
    // The calls have the same first chunks.
    const size_t bytes = comm->rank() == 0 ? kManyBytes : kManyBytes - 4;
    rank->Broadcast("weights", 0, data.data(), bytes, rank.stream());
    ExpectError(rank.Synchronize(), StatusCode::kDesync,
                {"rank 0 called broadcast 'weights'",
                 "rank 1 called broadcast 'weights'"});
  });
}

INSTANTIATE_TEST_SUITE_P(All, StagedFaultTest,
                         ::testing::Values("cpu", kLateDevice),
                         [](const auto& info) {
                           return info.param == kLateDevice ? "late" : "cpu";
                         });

// A rank is killed after its second chunk.
TEST(StagedKillTest, ARankThatIsLostBetweenChunksIsAnErrorOfAll) {
  constexpr int kRanks = 3;
  constexpr int kVictim = 1;
  const std::string url =
      UrlFor(Backend::kShm, UniqueName(), kRanks, "direct=0");
  const auto results = RunRanks(kRanks, [&](const Rank& process) {
    auto comm =
        OpenCommunicator(url, {.rank = process.rank(), .world_size = kRanks});
    ASSERT_OK(comm);
    int copies = 0;
    StagedRank rank(comm->get(), "cpu", /*timeout=*/30, [&] {
      if (process.rank() == kVictim && ++copies == 3) ::raise(SIGKILL);
      return Status();
    });
    const DeviceMemory data = rank.Tensor(Bytes(kManyBytes));
    rank->Broadcast("weights", 0, data.data(), kManyBytes, rank.stream());
    const Status status = rank.Synchronize();
    ExpectError(status, StatusCode::kRankLost, {"'weights'"});
    EXPECT_EQ(status.rank(), kVictim);
  });
  for (const RankResult& result : results) {
    if (result.rank == kVictim) {
      EXPECT_EQ(result.signal, SIGKILL) << result.ToString();
    } else {
      EXPECT_TRUE(result.passed()) << result.ToString();
    }
  }
}

// A device without memory that the host reaches.
class NoHostMemory final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;

  StatusOr<DeviceMemory> AllocateHost(size_t bytes,
                                      std::string_view what) override {
    return ResourceExhausted("no ", bytes, " bytes for ", what);
  }
};

TEST(OpenStagedTest, NoStagingMemoryIsAnErrorOfAllRanks) {
  RunGroup(Backend::kThreads, 3, [](Communicator* comm) {
    const auto device = GuardTensors(*OpenDevice("cpu"));
    NoHostMemory without(device);
    Device* const own = comm->rank() == 1 ? &without : device.get();
    ExpectError(OpenCollectives(comm, own, {}, {}, Soon()),
                StatusCode::kResourceExhausted,
                {"rank 1", "no 4194304 bytes for staging memory"});
    // The group is still there.
    EXPECT_OK(OpenCollectives(comm, device.get(), {}, {}, Soon()));
  });
}

TEST(OpenStagedTest, DifferentStagingMemoryIsNamed) {
  for (const bool on_host : {false, true}) {
    RunGroup(
        Backend::kThreads, 3,
        [on_host](Communicator* comm) {
          const bool odd = comm->rank() == 2;
          const auto host = *OpenDevice("cpu");
          const auto device = GuardTensors(host);
          const Status status =
              OpenCollectives(
                  comm, odd && on_host ? host.get() : device.get(), {},
                  {.staging_bytes = odd ? size_t{8192} : size_t{4096}}, Soon())
                  .status();
          ExpectError(status, StatusCode::kDesync,
                      {"bytes of staging memory: rank 0 has 4096, rank 2 has ",
                       on_host ? "rank 2 has 0" : "rank 2 has 8192"});
        },
        /*shutdown=*/false);
  }
}

// Staging memory that was chosen too small for the world grows with it.
TEST(OpenStagedTest, AWorldOfAnySizeHasAChunk) {
  EXPECT_EQ(staged::StagingBytes(1, 4), 6u * 64);
  EXPECT_EQ(staged::StagingBytes(1000, 4), 1024u);
  RunGroup(Backend::kThreads, 4, [](Communicator* comm) {
    const auto device = GuardTensors(*OpenDevice("cpu"));
    const RankSet all = RankSet::All(4);
    auto collectives = OpenCollectives(comm, device.get(), {&all, 1},
                                       {.staging_bytes = 0}, Soon());
    ASSERT_OK(collectives);
    constexpr size_t kCount = 100;
    const auto send = *device->Allocate(4 * kCount * sizeof(float), "send");
    const auto recv = *device->Allocate(kCount * sizeof(float), "recv");
    auto* const values = reinterpret_cast<float*>(KernelView(send.data()));
    std::fill_n(values, 4 * kCount, static_cast<float>(comm->rank()));
    const auto stream = *device->CreateStream(StreamKind::kCommunication);
    (*collectives)
        ->ReduceScatter("sum", all,
                        {.send = send.data(),
                         .count = kCount,
                         .recv = recv.data(),
                         .add = true},
                        stream.get());
    (*collectives)
        ->AllGatherBlocks("gather", all, recv.data(), kCount * sizeof(float),
                          send.data(), stream.get());
    ASSERT_OK(stream->Synchronize(Soon()));
    for (size_t i = 0; i < 4 * kCount; ++i) ASSERT_EQ(values[i], 6) << i;
  });
}

}  // namespace
}  // namespace shard::testing::staged_failures_test
