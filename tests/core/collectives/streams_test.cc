// SPDX-License-Identifier: Apache-2.0
//
// Collectives in the order of streams: edges, groups, errors and deadlines, on
// streams that are late.

#include <signal.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/collectives/collectives.h"
#include "core/collectives/cpu/cpu_collectives.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/collectives/blocking_collectives.h"
#include "tests/core/comm/backends.h"
#include "tests/core/device/gate.h"

namespace shard::testing::streams_test {
namespace {

constexpr char kLate[] = "cpu-async?max_delay=0.002&seed=7";

// A rank with streams that are late.
struct StreamRank {
  explicit StreamRank(Communicator* comm, double timeout = 30,
                      const char* device = kLate)
      : comm(comm),
        all(RankSet::All(comm->world_size())),
        device(*OpenDevice(device)),
        compute(*this->device->CreateStream(StreamKind::kCompute)),
        moving(*this->device->CreateStream(StreamKind::kCommunication)) {
    auto opened = OpenCollectives(comm, this->device.get(), {&all, 1},
                                  {.timeout = timeout}, Soon());
    EXPECT_OK(opened);
    moving->OnError([comm](const Status& error) { comm->Abort(error); });
    if (opened.ok()) collectives = *std::move(opened);
  }

  Communicator* const comm;
  const RankSet all;
  const std::shared_ptr<Device> device;
  std::shared_ptr<Collectives> collectives;
  // Destroyed first: their work uses the collectives.
  std::unique_ptr<Stream> compute;
  std::unique_ptr<Stream> moving;
};

class StreamsTest : public ::testing::TestWithParam<std::tuple<Backend, bool>> {
 protected:
  Backend backend() const { return std::get<0>(GetParam()); }
  void Run(int world_size, const std::function<void(Communicator*)>& body,
           bool shutdown = true) {
    RunGroup(backend(), world_size, body, shutdown,
             std::get<1>(GetParam()) ? "" : "direct=0");
  }
};

// Kernels write what a collective sends and read what it has received; nothing
// but edges orders them.
TEST_P(StreamsTest, EdgesOrderCollectivesAndKernels) {
  Run(3, [](Communicator* comm) {
    constexpr size_t kCount = 3000;
    std::vector<float> send(3 * kCount);
    std::vector<float> sum(kCount);
    std::vector<float> gathered(3 * kCount);
    const std::vector<float> ones(3 * kCount, 1);
    std::vector<std::vector<float>> seen(8, std::vector<float>(3 * kCount));
    StreamRank rank(comm);
    for (size_t i = 0; i < seen.size(); ++i) {
      rank.compute->Wait(rank.moving->Record(), Soon());
      rank.compute->Copy(send.data(), i % 2 == 0 ? ones.data() : seen[0].data(),
                         send.size() * sizeof(float));
      rank.moving->Wait(rank.compute->Record(), Soon());
      rank.collectives->ReduceScatter(
          "sum", rank.all,
          {.send = send.data(), .count = kCount, .recv = sum.data()},
          rank.moving.get());
      rank.collectives->AllGatherBlocks("gather", rank.all, sum.data(),
                                        kCount * sizeof(float), gathered.data(),
                                        rank.moving.get());
      rank.compute->Wait(rank.moving->Record(), Soon());
      rank.compute->Copy(seen[i].data(), gathered.data(),
                         gathered.size() * sizeof(float));
    }
    ASSERT_OK(rank.compute->Synchronize(Soon()));
    for (size_t i = 0; i < seen.size(); ++i) {
      // 3 ranks send ones, or the threes of the first round.
      EXPECT_EQ(seen[i],
                std::vector<float>(3 * kCount, i % 2 == 0 ? 3.0f : 9.0f))
          << i;
    }
  });
}

TEST_P(StreamsTest, GroupsRunLikeTheirCalls) {
  Run(2, [](Communicator* comm) {
    StreamRank rank(comm);
    EXPECT_EQ(rank.collectives->order(DType::kF32), SumOrder::kRankOrder);
    const float mine = static_cast<float>(comm->rank() + 1);
    const std::vector<float> send(2, mine);
    float sum = 0;
    std::vector<float> gathered(2);
    int32_t word = comm->rank();
    {
      CollectiveGroup group(rank.collectives.get(), rank.moving.get());
      rank.collectives->ReduceScatter(
          "sum", rank.all, {.send = send.data(), .count = 1, .recv = &sum},
          rank.moving.get());
      rank.collectives->AllGatherBlocks("gather", rank.all, &mine, sizeof(mine),
                                        gathered.data(), rank.moving.get());
      rank.collectives->Broadcast("word", 1, &word, sizeof(word),
                                  rank.moving.get());
      group.End();
    }
    ASSERT_OK(rank.moving->Synchronize(Soon()));
    EXPECT_EQ(sum, 3);
    EXPECT_EQ(gathered, (std::vector<float>{1, 2}));
    EXPECT_EQ(word, 1);
  });
}

// The error is the stream's, and all later work of the stream is dropped.
TEST_P(StreamsTest, ASetThatWasNotOpenedFailsTheStream) {
  Run(
      2,
      [](Communicator* comm) {
        StreamRank rank(comm);
        const RankSet alone = RankSet::Of(comm->rank(), 1, 1);
        float value = 5;
        float other = 6;
        rank.collectives->AllGatherBlocks("alone", alone, &value, sizeof(value),
                                          &other, rank.moving.get());
        rank.collectives->Broadcast("next", 0, &value, sizeof(value),
                                    rank.moving.get());
        for (int i = 0; i < 2; ++i) {
          ExpectInvalid(rank.moving->Synchronize(Soon()),
                        {"'alone' over 1 ranks from ", " in steps of 1",
                         "OpenCollectives was not given"});
        }
        EXPECT_EQ(other, 6);
        const Status later = comm->Barrier("later", Soon());
        EXPECT_EQ(later.code(), StatusCode::kPoisoned) << later.ToString();
        EXPECT_TRUE(Contains(later.message(), "INVALID_ARGUMENT: 'alone'"));
      },
      /*shutdown=*/false);
}

// Rank 0 has a call that its peers do not have; the collectives that all have
// enqueued behind are dropped, with the same error.
TEST_P(StreamsTest, WorkAfterAFailedCollectiveIsDropped) {
  Run(
      3,
      [](Communicator* comm) {
        StreamRank rank(comm);
        int32_t word = 10 + comm->rank();
        int32_t later = 20 + comm->rank();
        int32_t copy = 0;
        rank.collectives->Broadcast(comm->rank() == 0 ? "odd" : "even", 1,
                                    &word, sizeof(word), rank.moving.get());
        rank.collectives->Broadcast("later", 1, &later, sizeof(later),
                                    rank.moving.get());
        rank.compute->Wait(rank.moving->Record(), Soon());
        rank.compute->Copy(&copy, &word, sizeof(copy));
        for (Stream* const stream : {rank.moving.get(), rank.compute.get()}) {
          ExpectError(stream->Synchronize(Soon()), StatusCode::kDesync,
                      {"rank 0 called broadcast 'odd'",
                       "rank 1 called broadcast 'even'"});
        }
        EXPECT_EQ(later, 20 + comm->rank());
        EXPECT_EQ(copy, 0);
        EXPECT_EQ(comm->Barrier("control", Soon()).code(),
                  StatusCode::kPoisoned);
      },
      /*shutdown=*/false);
}

// The time of a collective begins when it does: one that waits behind other
// work for longer than that is in time.
TEST_P(StreamsTest, TheDeadlineBeginsWithTheCollective) {
  Run(2, [](Communicator* comm) {
    constexpr double kTimeout = 1;
    StreamRank rank(comm, kTimeout);
    const Deadline timeout = Deadline::After(kTimeout);
    rank.moving->Call("work until the timeout has passed", [&timeout] {
      while (!timeout.Expired()) std::this_thread::yield();
      return Status();
    });
    int32_t word = comm->rank();
    rank.collectives->Broadcast("late", 1, &word, sizeof(word),
                                rank.moving.get());
    EXPECT_OK(rank.moving->Synchronize(Soon()));
    EXPECT_EQ(word, 1);
  });
}

// A call of the host that has more time gives it to its collectives.
TEST_P(StreamsTest, ACallMayAllowMoreTime) {
  Run(2, [](Communicator* comm) {
    StreamRank rank(comm, /*timeout=*/0.05);
    int32_t word = comm->rank();
    {
      const CollectiveDeadline scope(rank.collectives.get(), Soon());
      const Deadline late = Deadline::After(0.3);
      while (comm->rank() == 1 && !late.Expired()) std::this_thread::yield();
      rank.collectives->Broadcast("late", 1, &word, sizeof(word),
                                  rank.moving.get());
    }
    EXPECT_OK(rank.moving->Synchronize(Soon()));
    EXPECT_EQ(word, 1);
    EXPECT_FALSE(rank.collectives->SetDeadline({}).has_value());
  });
}

// The work of one rank stays behind a gate until its peers have given up.
TEST_P(StreamsTest, ADeadlineThatPassesWhileWorkIsEnqueuedNamesTheRank) {
  Run(
      2,
      [](Communicator* comm) {
        StreamRank rank(comm, /*timeout=*/0.5);
        Gate gate;
        if (comm->rank() == 1) rank.moving->Call("gate", gate.Passing());
        int32_t word = 10 + comm->rank();
        rank.collectives->Broadcast("weights", 0, &word, sizeof(word),
                                    rank.moving.get());
        rank.collectives->Broadcast("next", 0, &word, sizeof(word),
                                    rank.moving.get());
        if (comm->rank() == 0) {
          ExpectError(rank.moving->Synchronize(Soon()),
                      StatusCode::kDeadlineExceeded,
                      {"'weights': 1 of 2 ranks did not enter it within 0.5 s: "
                       "rank [1]"});
        } else {
          // Control data tells of the error before the stream comes to it.
          EXPECT_TRUE(Contains(comm->Barrier("control", Soon()).message(),
                               "'weights': 1 of 2 ranks did not enter it"));
          gate.Open();
          ExpectError(rank.moving->Synchronize(Soon()), StatusCode::kPoisoned,
                      {"'weights': 1 of 2 ranks did not enter it"});
        }
        EXPECT_EQ(word, 10 + comm->rank());
      },
      /*shutdown=*/false);
}

INSTANTIATE_TEST_SUITE_P(All, StreamsTest,
                         ::testing::Combine(::testing::Values(Backend::kThreads,
                                                              Backend::kShm),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return BackendName(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "" : "NotDirect");
                         });

// A call that waits for several collectives takes no longer than its own time,
// though each of them begins late. How late this thread is woken depends on the
// machine, so one try of many must be in time; if each collective had a time of
// its own, none would be.
TEST(CollectiveDeadlineTest, TheCollectivesOfACallEndWithTheCall) {
  constexpr double kSeconds = 0.2;
  std::atomic<bool> in_time{false};
  for (int i = 0; i < 50 && !in_time && !HasFailure(); ++i) {
    RunGroup(
        Backend::kThreads, 2,
        [&](Communicator* comm) {
          // Before the streams, whose work reads them.
          const Deadline call = Deadline::After(kSeconds);
          Deadline own = call;
          StreamRank rank(comm);
          if (comm->rank() == 1) {
            // Comes to something else, when rank 0 has given up.
            EXPECT_TRUE(Contains(comm->Barrier("control", Soon()).message(),
                                 "'late': 1 of 2 ranks did not enter it"));
            return;
          }
          rank.moving->Call("work until the call's time has passed", [&] {
            while (!call.Expired()) std::this_thread::yield();
            own = Deadline::After(kSeconds);
            return Status();
          });
          const CollectiveDeadline scope(rank.collectives.get(), call);
          int32_t word = 0;
          rank.collectives->Broadcast("late", 1, &word, sizeof(word),
                                      rank.moving.get());
          ExpectError(rank.moving->Synchronize(Soon()),
                      StatusCode::kDeadlineExceeded,
                      {"'late': 1 of 2 ranks did not enter it within 0.2 s"});
          in_time = !own.Expired();
        },
        /*shutdown=*/false);
  }
  EXPECT_TRUE(in_time);
}

// The host of rank 0 waits in a collective, which rank 1 has enqueued; the host
// of rank 1 waits for rank 0 in the communicator. The stream of rank 1 is late
// for so long that both have looked for deadlocks several times.
TEST(NoDeadlockTest, AnEnqueuedCollectiveIsWaitedFor) {
  const std::string url = UrlFor(Backend::kThreads, UniqueName(), 2);
  RunEach(Backend::kThreads, 2, [&](int rank_number) {
    CommOptions options = {.rank = rank_number};
    options.find_deadlocks_at_once = true;
    auto comm = OpenCommunicator(url, options);
    ASSERT_OK(comm);
    StreamRank rank(comm->get(), 30, "cpu");
    int32_t word = rank_number;
    {
      const HostCall::Scope call(&(*comm)->host_waits()->call(), "sum");
      Stream* stream = rank.compute.get();  // In this thread.
      const Deadline late = Deadline::After(0.4);
      if (rank_number == 1) {
        stream = rank.moving.get();
        stream->Call("be late", [&late] {
          while (!late.Expired()) std::this_thread::yield();
          return Status();
        });
      }
      rank.collectives->Broadcast("word", 0, &word, sizeof(word), stream);
      EXPECT_OK((*comm)->Barrier("sum", Soon()));
      EXPECT_OK(stream->Synchronize(Soon()));
    }
    EXPECT_EQ(word, 0);
    EXPECT_OK((*comm)->Shutdown(Soon()));
  });
}

// A rank is killed when its stream has done the first of two collectives.
TEST(KillBetweenCollectivesTest, TheOthersNameTheDeadRank) {
  constexpr int kRanks = 3;
  constexpr int kVictim = 1;
  const std::string url =
      UrlFor(Backend::kShm, UniqueName(), kRanks, "direct=0");
  const auto results = RunRanks(kRanks, [&](const Rank& process) {
    auto comm =
        OpenCommunicator(url, {.rank = process.rank(), .world_size = kRanks});
    ASSERT_OK(comm);
    StreamRank rank(comm->get());
    int32_t first = process.rank();
    int32_t second = process.rank();
    rank.collectives->Broadcast("first", 2, &first, sizeof(first),
                                rank.moving.get());
    if (process.rank() == kVictim) {
      rank.moving->Call("die", [] {
        ::raise(SIGKILL);
        return Status();
      });
    }
    rank.collectives->Broadcast("second", 2, &second, sizeof(second),
                                rank.moving.get());
    const Status status = rank.moving->Synchronize(Soon());
    EXPECT_EQ(first, 2);
    EXPECT_EQ(second, process.rank());
    ExpectError(status, StatusCode::kRankLost,
                {"died or was killed before it entered 'second'",
                 "the last it entered was broadcast 'first'"});
    EXPECT_EQ(status.rank(), kVictim);
    const Status control = (*comm)->Barrier("control", Soon());
    EXPECT_EQ(control.code(), StatusCode::kRankLost);
    EXPECT_EQ(control.rank(), kVictim);
  });
  for (const RankResult& result : results) {
    if (result.rank == kVictim) {
      EXPECT_EQ(result.signal, SIGKILL) << result.ToString();
    } else {
      EXPECT_TRUE(result.passed()) << result.ToString();
    }
  }
}

TEST(OpenCollectivesTest, WrongSetsAreErrorsOfAllRanks) {
  RunGroup(Backend::kThreads, 4, [](Communicator* comm) {
    const auto device = *OpenDevice("cpu");
    const auto open = [&](const std::vector<RankSet>& sets) {
      return OpenCollectives(comm, device.get(), sets, {}, Soon()).status();
    };
    const RankSet mine = RankSet::Of(comm->rank(), 1, 2);
    for (const RankSet& wrong :
         {RankSet{0, 1, 3}, RankSet{0, 0, 4}, RankSet{-1, 1, 4}}) {
      ExpectInvalid(open({mine, wrong}), {"ranks from ", "are not a set"});
    }
    // Rank 3 names the set of ranks 0 and 1.
    ExpectError(open({comm->rank() == 3 ? RankSet{0, 1, 2} : mine}),
                StatusCode::kInvalidArgument,
                {"rank 3",
                 "2 ranks from 0 in steps of 1 are not a set with "
                 "rank 3 of the 4 ranks"});
    // The group is still there.
    EXPECT_OK(open({mine, RankSet::All(4)}));
    EXPECT_OK(open({}));
  });
}

TEST(OpenCollectivesTest, DifferentSetsAreNamed) {
  for (const bool fewer : {false, true}) {
    RunGroup(
        Backend::kThreads, 4,
        [&](Communicator* comm) {
          const bool odd = comm->rank() == 2;
          std::vector<RankSet> sets = {
              RankSet::Of(comm->rank(), odd && !fewer ? 2 : 1, 2)};
          if (!odd || !fewer) sets.push_back(RankSet::All(4));
          const auto device = *OpenDevice("cpu");
          const Status status =
              OpenCollectives(comm, device.get(), sets, {}, Soon()).status();
          ExpectError(status, StatusCode::kDesync,
                      {"the ranks differ in the sets of ranks of collectives",
                       fewer ? "number of sets: rank 0 has 2, rank 2 has 1"
                             : "stride of set 0: rank 0 has 1, rank 2 has 2"});
          EXPECT_EQ(status.rank(), 2);
        },
        /*shutdown=*/false);
  }
}

// An exchange that does nothing, and shows the work that it was given.
class IdleExchange final : public Exchange {
 public:
  Status ReduceScatter(std::string_view, const RankSet&,
                       const ReduceScatterArgs&, const Deadline&) override {
    return Status();
  }
  Status AllGatherBlocks(std::string_view, const RankSet&, const void*, size_t,
                         void*, const Deadline&) override {
    return Status();
  }
  Status GatherOnHosts(std::string_view, const RankSet&, const void*, size_t,
                       int, void*, const Deadline&) override {
    return Status();
  }
  Status Broadcast(std::string_view, int, void*, size_t,
                   const Deadline&) override {
    return Status();
  }
  HostWaits* host_waits() override { return &waits_; }

  uint64_t given() const { return wait_.given; }
  uint64_t done() const { return wait_.done; }

 private:
  HostWait wait_ = {};
  HostWaits waits_{&wait_, std::make_shared<HostCall>()};
};

// Peers that wait for a collective know that it was enqueued here, so they do
// not take this rank's host to be missing
// (tests/core/comm/no_deadlock_test.cc).
TEST(CpuCollectivesTest, CountsTheWorkOfItsStreams) {
  const auto device = OpenDevice("cpu");
  ASSERT_OK(device);
  const auto exchange = std::make_shared<IdleExchange>();
  cpu::CpuCollectives collectives(exchange, {RankSet()}, 10);
  const auto stream = (*device)->CreateStream(StreamKind::kCommunication);
  ASSERT_OK(stream);
  Gate gate;
  (*stream)->Call("gate", gate.Passing());
  collectives.AllGatherBlocks("gather", RankSet(), nullptr, 0, nullptr,
                              stream->get());
  collectives.Broadcast("send", 0, nullptr, 0, stream->get());
  EXPECT_EQ(exchange->given(), 2u);
  EXPECT_EQ(exchange->done(), 0u);
  gate.Open();
  ASSERT_OK((*stream)->Synchronize(Soon()));
  EXPECT_EQ(exchange->done(), 2u);
}

}  // namespace
}  // namespace shard::testing::streams_test
