// SPDX-License-Identifier: Apache-2.0
//
// NCCL waits for ever for a rank that is late, lost, or calls something else.
// Every rank gets an error, in time and with the name of that rank, its stream
// fails, and NCCL's communicators are aborted.

#include "tests/core/collectives/nccl/nccl_faults.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/collectives/nccl/nccl_rank.h"

namespace shard::testing::nccl_faults_test {
namespace {

using Clock = std::chrono::steady_clock;

// A rank that is gone is known within a second, on a machine that does nothing
// else.
const double kLostSeconds =
    !kSanitized && std::getenv("SHARD_TEST_LONG") != nullptr ? 1 : 4;

TEST(NcclFaultsTest, ARankThatDoesNotComeIsNamed) {
  RunNcclRanks([](NcclRank* rank) {
    if (rank->comm->rank() == 1) {
      EXPECT_FALSE(rank->comm->Barrier("instead", Soon()).ok());
      return;
    }
    const Status status = Gather(rank);
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded)
        << status.ToString();
    EXPECT_EQ(status.rank(), 1);
    // On the rank that comes second, too, which is told the first one's error.
    EXPECT_TRUE(status.message().starts_with("'gather': 1 of 3 ranks"))
        << status.message();
  });
}

// Returns the collectives of NCCL that the rank remembers.
nlohmann::json RecordOf(const NcclRank& rank) {
  nlohmann::json found = nlohmann::json::array();
  const auto dump = nlohmann::json::parse(rank.comm->observer()->DumpText());
  for (const nlohmann::json& entry : dump.at("collectives")) {
    if (entry.at("name") == "NCCL's collectives") found.push_back(entry);
  }
  return found;
}

TEST(NcclFaultsTest, ARankRemembersWhatTheDeviceHasDone) {
  RunNcclRanks([](NcclRank* rank) {
    // The watchdog has seen the end of the first one.
    EXPECT_TRUE(
        ComesTrue([&] { return RecordOf(*rank)[0]["state"] == "done"; }));
    const nlohmann::json first = RecordOf(*rank)[0];
    EXPECT_EQ(first["number"], 1);
    EXPECT_EQ(first["operation"], "all_gather_blocks");
    EXPECT_EQ(first["what"], "gather");
    EXPECT_EQ(first["bytes"], kFaultBytes);
    EXPECT_EQ(first["ranks"], 3);
    if (rank->comm->rank() == 1) {
      EXPECT_FALSE(rank->comm->Barrier("instead", Soon()).ok());
      EXPECT_EQ(RecordOf(*rank).size(), 1u);
      return;
    }
    EXPECT_FALSE(Gather(rank).ok());
    const nlohmann::json record = RecordOf(*rank);
    ASSERT_EQ(record.size(), 2u);
    EXPECT_EQ(record[1]["number"], 2);
    EXPECT_EQ(record[1]["state"], "failed");
  });
}

TEST(NcclFaultsTest, RanksThatCallDifferentThingsAreNamed) {
  RunNcclRanks([](NcclRank* rank) {
    const bool differs = rank->comm->rank() == 2;
    const Status status = Gather(rank, differs ? kFaultBytes / 2 : kFaultBytes);
    ExpectEnd(status, StatusCode::kDesync);
    EXPECT_TRUE(Contains(status.message(), "an all-gather 'gather' of 400"));
    EXPECT_TRUE(
        Contains(status.message(),
                 "rank 2 an all-gather 'gather' of 200 bytes over 3 ranks"));
    EXPECT_FALSE(Contains(status.message(), "this rank"));
  });
}

// Rank 0 is the first to enqueue, so that the others find the difference.
TEST(NcclFaultsTest, TheFirstThatDiffersFromRank0IsNamedByAll) {
  for (const int odd : {0, 1, 2}) {
    SCOPED_TRACE(odd);
    std::atomic<bool> enqueued = false;
    RunNcclRanks([&](NcclRank* rank) {
      const int self = rank->comm->rank();
      if (self != 0) {
        EXPECT_TRUE(ComesTrue([&] { return enqueued.load(); }));
      }
      const Status status =
          Gather(rank, self == odd ? kFaultBytes / 2 : kFaultBytes, [&] {
            if (self == 0) enqueued = true;
          });
      ExpectEnd(status, StatusCode::kDesync);
      const int named = std::max(odd, 1);
      EXPECT_EQ(status.rank(), named) << status.ToString();
      EXPECT_TRUE(Contains(
          status.message(),
          StrCat("rank 0 an all-gather 'gather' of ", odd == 0 ? 200 : 400,
                 " bytes over 3 ranks, rank ", named,
                 " an all-gather 'gather' of ", odd == 0 ? 400 : 200,
                 " bytes over 3 ranks (collective 2)")));
      // A collective that nobody has begun has not ended.
      EXPECT_EQ(RecordOf(*rank)[1]["state"], "failed");
    });
  }
}

TEST(NcclFaultsTest, RanksThatCallInAnotherOrderAreNamed) {
  RunNcclRanks([](NcclRank* rank) {
    if (rank->comm->rank() != 1) {
      const Status status = Gather(rank);
      ExpectEnd(status, StatusCode::kDesync);
      EXPECT_TRUE(Contains(status.message(), "an all-gather 'gather'"));
      EXPECT_TRUE(Contains(status.message(), "a broadcast 'word'"));
      return;
    }
    const DeviceTensor word(rank, std::vector<unsigned char>(8));
    rank->collectives->Broadcast("word", 0, word.data(), 8, rank->stream.get());
    rank->collectives->AllGatherBlocks("gather", rank->all, word.data(), 1,
                                       word.data(), rank->stream.get());
    ExpectEnd(rank->Synchronize(), StatusCode::kDesync);
    rank->stream->Settle(Soon());
  });
}

TEST(NcclFaultsTest, AChildOfForkLeavesNcclAlone) {
  const FakeNccl fake(OneGpuEach(2));
  RunGroup(Backend::kThreads, 2, [](Communicator* comm) {
    auto rank = std::make_unique<NcclRank>(comm, std::vector{RankSet::All(2)});
    ASSERT_OK(Gather(rank.get()));
    if (comm->rank() == 0) {
      InChild([&] {
        ::alarm(60);
        const uint64_t calls = fake_cuda::CountInChild();
        rank.reset();
        EXPECT_EQ(fake_cuda::CountInChild(), calls);
      });
    }
    ASSERT_OK(Gather(rank.get()));
    ASSERT_OK(comm->Barrier("gathered", Soon()));
  });
}

// One rank's step is one kernel, and that of the others is not.
TEST(NcclFaultsTest, AKernelOfAllRanksIsNamedWithoutBytes) {
  RunNcclRanks([](NcclRank* rank) {
    if (rank->comm->rank() == 1) {
      rank->collectives->RunTogether("step", rank->stream.get(), [] {});
    }
    const Status status = Gather(rank);
    ExpectEnd(status, StatusCode::kDesync);
    EXPECT_TRUE(Contains(status.message(),
                         "rank 1 a kernel of all ranks 'step' over 3 ranks"));
  });
}

// One rank takes the sums of NCCL, and the others an all-to-all.
TEST(NcclFaultsTest, RanksThatSumInDifferentOrdersAreNamed) {
  RunNcclRanks([](NcclRank* rank) {
    const DeviceTensor sums(rank, std::vector<unsigned char>(3 * kFaultBytes));
    ReduceScatterArgs args;
    args.send = sums.data();
    args.all_send = rank->comm->rank() == 2;
    args.count = kFaultBytes / sizeof(float);
    args.recv = static_cast<unsigned char*>(sums.data()) +
                static_cast<size_t>(rank->comm->rank()) * kFaultBytes;
    CollectiveGroup group(rank->collectives.get(), rank->stream.get());
    rank->collectives->ReduceScatter("sum", rank->all, args,
                                     rank->stream.get());
    group.End();
    const Status status = rank->Synchronize();
    rank->stream->Settle(Soon());
    ExpectEnd(status, StatusCode::kDesync);
    EXPECT_TRUE(Contains(status.message(), "a reduce-scatter 'sum' of 100"));
    EXPECT_TRUE(Contains(status.message(), "an all-to-all 'sum' of 100 f32"));
  });
}

// The bytes and ranks of a sum may be the same, and its elements others: NCCL
// would move them, and add what is none of its numbers.
TEST(NcclFaultsTest, RanksThatSumOtherTypesAreNamed) {
  struct Types {
    DType dtype;
    DType recv_dtype;
    const char* text;
  };
  // The type of the gradients alone, that of the sum alone, and both.
  const std::pair<Types, Types> cases[] = {
      {{DType::kBF16, DType::kF32, "an all-to-all 'sum' of 100 bf16 to f32"},
       {DType::kF16, DType::kF32, "an all-to-all 'sum' of 100 f16 to f32"}},
      {{DType::kBF16, DType::kBF16, "an all-to-all 'sum' of 100 bf16 to bf16"},
       {DType::kBF16, DType::kF32, "an all-to-all 'sum' of 100 bf16 to f32"}},
      {{DType::kF32, DType::kF32, "a reduce-scatter 'sum' of 100 f32 to f32"},
       {DType::kF16, DType::kF16, "an all-to-all 'sum' of 100 f16 to f16"}}};
  for (const auto& [most, odd] : cases) {
    SCOPED_TRACE(odd.text);
    const Types& types = most;
    const Types& other = odd;
    RunNcclRanks([&](NcclRank* rank) {
      const Types& mine = rank->comm->rank() == 1 ? other : types;
      const DeviceTensor send(rank, std::vector<unsigned char>(3 * 400));
      const DeviceTensor recv(rank, std::vector<unsigned char>(400));
      rank->collectives->ReduceScatter("sum", rank->all,
                                       {.send = send.data(),
                                        .all_send = true,
                                        .dtype = mine.dtype,
                                        .count = 100,
                                        .recv = recv.data(),
                                        .recv_dtype = mine.recv_dtype},
                                       rank->stream.get());
      const Status status = rank->Synchronize();
      rank->stream->Settle(Soon());
      ExpectEnd(status, StatusCode::kDesync);
      EXPECT_TRUE(Contains(status.message(),
                           StrCat("rank 0 ", types.text, " over 3 ranks, ",
                                  "rank 1 ", other.text, " over 3 ranks")))
          << status.message();
    });
  }
}

// By the watchdog of all communicators, by each stream that fails, and by each
// call that comes later.
TEST(NcclFaultsTest, TheEndOfAFamilyIsLoggedOnceByEachRank) {
  const FakeNccl fake(OneGpuEach(4));
  RunGroup(
      Backend::kThreads, 4,
      [](Communicator* comm) {
        NcclRank rank(comm, EverySet(*comm), {.timeout = kFaultSeconds});
        const auto half = RankSet::Of(comm->rank(), 1, 2);
        const auto other = *rank.device->CreateStream(StreamKind::kCompute);
        other->OnError([&](const Status& error) { comm->Abort(error); });
        const auto failing = rank.collectives->OnFailure(
            [&](const Status& error) { other->Fail(error); });
        const DeviceTensor all(&rank, std::vector<unsigned char>(8));
        auto* to = static_cast<unsigned char*>(all.data());
        const auto gather = [&](const RankSet& set, Stream* stream) {
          rank.collectives->AllGatherBlocks(
              "gather", set, to + set.IndexOf(comm->rank()), 1, to, stream);
        };
        if (comm->rank() == 0) {
          fake_nccl::StickAt(1, {.rank = 1, .size = 4});
          fake_nccl::StickAt(1, {.rank = 1, .size = 2});
        }
        ASSERT_OK(comm->Barrier("stuck", Soon()));
        const auto ends = [&] {
          return comm->observer()->counters().Find("abort")->calls;
        };
        EXPECT_EQ(ends(), 0u);
        gather(rank.all, rank.stream.get());
        to += 4;
        gather(half, other.get());
        EXPECT_FALSE(rank.Synchronize().ok());
        EXPECT_FALSE(other->Synchronize(Soon()).ok());
        rank.stream->Settle(Soon());
        other->Settle(Soon());
        const auto late = *rank.device->CreateStream(StreamKind::kCompute);
        gather(rank.all, late.get());
        EXPECT_FALSE(late->Synchronize(Soon()).ok());
        EXPECT_FALSE(comm->Barrier("after", Soon()).ok());
        comm->Abort(Cancelled("enough"));
        EXPECT_EQ(ends(), 1u);
      },
      /*shutdown=*/false);
}

TEST(NcclFaultsTest, AnErrorOfNcclIsThatOfAllRanks) {
  RunNcclRanks([](NcclRank* rank) {
    if (rank->comm->rank() == 0) {
      fake_nccl::FailAsyncAt(1, fake_nccl::Result::kRemoteError, {.rank = 1});
    }
    ASSERT_OK(rank->comm->Barrier("set", Soon()));
    const Status status = Gather(rank);
    ExpectEnd(status, StatusCode::kUnavailable);
    EXPECT_EQ(status.rank(), 1);
    EXPECT_TRUE(Contains(status.message(), "rank 1: NCCL: remote"));
  });
}

// A rank that comes later is told the same error.
TEST(NcclFaultsTest, ACollectiveAfterTheEndHasItsError) {
  RunNcclRanks([](NcclRank* rank) {
    const DeviceTensor all(rank, std::vector<unsigned char>(3));
    const auto later = *rank->device->CreateStream(StreamKind::kCommunication);
    if (rank->comm->rank() == 0) {
      fake_nccl::FailAsyncAt(1, fake_nccl::Result::kRemoteError, {.rank = 1});
    }
    ASSERT_OK(rank->comm->Barrier("set", Soon()));
    EXPECT_FALSE(Gather(rank).ok());
    rank->collectives->AllGatherBlocks("later", rank->all, all.data(), 1,
                                       all.data(), later.get());
    const Status status = later->Synchronize(Soon());
    ExpectError(status, StatusCode::kUnavailable, {"rank 1: NCCL: remote"});
    EXPECT_EQ(status.rank(), 1);
  });
}

// The ranks are threads of one process, for which NCCL has one text.
TEST(NcclFaultsTest, TheLastErrorMayBeOfAnotherCommunicator) {
  RunNcclRanks([](NcclRank* rank) {
    if (rank->comm->rank() == 2) {
      fake_nccl::FailCall("ncclCommRegister", 1,
                          fake_nccl::Result::kInternalError, {.rank = 2},
                          "no handle is left");
      ExpectError(rank->collectives->Allocate(rank->device.get(), kFaultBytes,
                                              "a tensor"),
                  StatusCode::kInternal,
                  {"ncclCommRegister: internal error",
                   "(3); NCCL's last error, maybe of another communicator: no "
                   "handle is left"});
    }
    ASSERT_OK(rank->comm->Barrier("registered", Soon()));
    if (rank->comm->rank() == 0) {
      fake_nccl::FailAsyncAt(1, fake_nccl::Result::kRemoteError, {.rank = 1});
    }
    ASSERT_OK(rank->comm->Barrier("set", Soon()));
    const Status status = Gather(rank);
    ExpectEnd(status, StatusCode::kUnavailable);
    EXPECT_TRUE(Contains(status.message(), "rank 1: NCCL: remote"));
    EXPECT_TRUE(
        Contains(status.message(), "; NCCL's last error, maybe of another"));
  });
}

TEST(NcclFaultsTest, ACallThatFailsEndsAllRanks) {
  RunNcclRanks([](NcclRank* rank) {
    if (rank->comm->rank() == 0) {
      fake_nccl::FailCall("ncclAllGather", 1,
                          fake_nccl::Result::kUnhandledCudaError, {.rank = 1});
    }
    ASSERT_OK(rank->comm->Barrier("set", Soon()));
    const Status status = Gather(rank);
    ExpectEnd(status, StatusCode::kUnavailable);
    EXPECT_EQ(status.rank(), 1);
    EXPECT_TRUE(Contains(status.message(), "rank 1: gather"));
  });
}

TEST(NcclFaultsTest, ARankThatLeavesIsLost) {
  const FakeNccl fake(OneGpuEach(2));
  std::promise<Clock::time_point> left;
  RunGroup(
      Backend::kThreads, 2,
      [&](Communicator* comm) {
        auto rank =
            std::make_unique<NcclRank>(comm, std::vector{RankSet::All(2)},
                                       CollectivesOptions{.timeout = 20});
        ASSERT_OK(Gather(rank.get()));
        if (comm->rank() == 1) {
          // Its communicators wait for those of the other rank.
          rank.reset();
          left.set_value(Clock::now());
          return;
        }
        const Status status = Gather(rank.get());
        const auto end = Clock::now();
        EXPECT_EQ(status.code(), StatusCode::kRankLost) << status.ToString();
        EXPECT_EQ(status.rank(), 1);
        const std::chrono::duration<double> took =
            end - left.get_future().get();
        EXPECT_LT(took.count(), kLostSeconds);
      },
      /*shutdown=*/false);
}

TEST(NcclFaultsTest, AnAbortEndsTheCollectivesOfAllRanks) {
  RunNcclRanks([](NcclRank* rank) {
    if (rank->comm->rank() == 1) {
      rank->comm->Abort(Cancelled("enough"));
      return;
    }
    const Status status = Gather(rank);
    EXPECT_EQ(status.code(), StatusCode::kPoisoned) << status.ToString();
    EXPECT_TRUE(Contains(status.message(), "enough"));
  });
}

// Nothing is on the wire, so no watchdog has aborted the communicators; the
// other rank does not end its own meanwhile.
TEST(NcclFaultsTest, AFamilyThatHasEndedIsNotWaitedForAtTheEnd) {
  const FakeNccl fake(OneGpuEach(2));
  std::promise<void> ended;
  RunGroup(
      Backend::kThreads, 2,
      [&](Communicator* comm) {
        auto rank =
            std::make_unique<NcclRank>(comm, std::vector{RankSet::All(2)});
        ASSERT_OK(Gather(rank.get()));
        ASSERT_OK(comm->Barrier("gathered", Soon()));
        if (comm->rank() == 1) {
          comm->Abort(Cancelled("enough"));
          ended.get_future().wait();
          return;
        }
        EXPECT_FALSE(comm->Barrier("aborted", Soon()).ok());
        const auto begin = Clock::now();
        rank.reset();
        EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(),
                  1.5);
        ended.set_value();
      },
      /*shutdown=*/false);
}

// A communicator can be opened again in the process, as often as ranks are
// lost.
TEST(NcclFaultsTest, AProcessGoesOnAfterwards) {
  const FakeNccl fake(OneGpuEach(2));
  const int rounds = std::getenv("SHARD_TEST_LONG") != nullptr ? 100 : 5;
  for (int i = 0; i < rounds; ++i) {
    RunGroup(
        Backend::kThreads, 2,
        [&](Communicator* comm) {
          NcclRank rank(comm, {RankSet::All(2)}, {.timeout = kFaultSeconds});
          ASSERT_OK(Gather(&rank));
          if (comm->rank() == 1) return;
          EXPECT_FALSE(Gather(&rank).ok());
        },
        /*shutdown=*/false);
  }
}

}  // namespace
}  // namespace shard::testing::nccl_faults_test
