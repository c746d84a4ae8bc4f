// SPDX-License-Identifier: Apache-2.0
//
// Agreements name the first fact that differs, wherever it stands and whichever
// rank has it. They end in the same error when a rank does not stay until then.

#include "core/comm/check_agreement.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/core/comm/backends.h"

namespace shard::testing::check_agreement_test {
namespace {

class AgreementTest : public ::testing::TestWithParam<Backend> {};

// Returns facts 0 to count - 1, where "fact 7" is "v7". The fact `changed` is
// "other"; -1 changes none.
DescribeFacts Numbered(int64_t count, int64_t changed = -1) {
  return [=](FactSink* sink) {
    std::string name;
    for (int64_t i = 0; i < count; ++i) {
      name.clear();
      StrAppend(&name, "fact ", i);
      if (i == changed) {
        sink->Add("", name, "other");
      } else {
        sink->Add("", name, i);
      }
    }
  };
}

TEST_P(AgreementTest, EqualFactsAgree) {
  for (const char* link : {"", "direct=0"}) {
    for (const int world_size : {1, 3}) {
      RunGroup(
          GetParam(), world_size,
          [](Communicator* comm) {
            SHARD_EXPECT_OK(
                CheckAgreement(comm, "nothing", Numbered(0), Soon()));
            SHARD_EXPECT_OK(
                CheckAgreement(comm, "some", Numbered(1000), Soon()));
            // Only the fingerprint is compared.
            SHARD_EXPECT_OK(CheckAgreement(comm, "a hash", 7,
                                           Numbered(3, comm->rank()), Soon()));
          },
          true, link);
    }
  }
}

// The facts lie around every power of two at which hashes are thinned out, and
// each rank has the odd one.
TEST_P(AgreementTest, TheFactIsFoundWhereverItStands) {
  RunGroup(GetParam(), 3, [](Communicator* comm) {
    int odd = 0;
    for (const int64_t count : {1, 2, 255, 256, 257, 512, 513, 1000, 5000}) {
      for (const int64_t changed :
           {int64_t{0}, int64_t{1}, int64_t{254}, int64_t{255}, int64_t{256},
            int64_t{257}, count / 2, count - 2, count - 1}) {
        if (changed < 0 || changed >= count) continue;
        odd = (odd + 1) % 3;
        const Status status = CheckAgreement(
            comm, "numbers",
            Numbered(count, comm->rank() == odd ? changed : -1), Soon());
        ASSERT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
        ASSERT_EQ(status.rank(), odd);
        const int most = odd == 0 ? 1 : 0;
        ASSERT_EQ(status.message(),
                  StrCat("the ranks differ in numbers: fact ", changed,
                         ": rank ", most, " has ", changed, ", rank ", odd,
                         " has other; 1 of 3 ranks differs from rank ", most,
                         ": [", odd, "]"));
      }
      // The odd rank has one fact less.
      odd = (odd + 1) % 3;
      const Status status = CheckAgreement(
          comm, "numbers", Numbered(count - (comm->rank() == odd ? 1 : 0)),
          Soon());
      ASSERT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
      ASSERT_EQ(status.rank(), odd);
      ASSERT_TRUE(Contains(status.message(), StrCat("fact ", count - 1)));
      ASSERT_TRUE(Contains(status.message(),
                           StrCat("rank ", odd, " has nothing there")));
    }
  });
}

// There are as many facts as a plan of 50,000 parameters has. The rounds of the
// search grow with their logarithm.
TEST(AgreementSearchTest, ManyFactsTakeFewRounds) {
  constexpr int64_t kFacts = 300000;
  const std::string url = UrlFor(Backend::kThreads, UniqueName(), 2);
  std::atomic<int> rounds{0};
  RunEach(Backend::kThreads, 2, [&](int rank) {
    const CommOptions options = {
        .rank = rank, .phase_hook = [&](std::string_view what) {
          if (rank == 0 && what == "facts: differences") ++rounds;
        }};
    const auto comm = OpenCommunicator(url, options);
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    const Status status =
        CheckAgreement(comm->get(), "facts",
                       Numbered(kFacts, rank == 1 ? kFacts - 1 : -1), Soon());
    EXPECT_TRUE(Contains(status.message(), StrCat("fact ", kFacts - 1)))
        << status.ToString();
    SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
  });
  // The rounds narrow the difference down to 2048 facts, to 8, and to one, and
  // then show the fact.
  EXPECT_EQ(rounds, 4);
}

TEST_P(AgreementTest, MessagesShowSubjectsNotesAndNames) {
  RunGroup(GetParam(), 2, [](Communicator* comm) {
    const bool odd = comm->rank() == 1;
    const auto message = [&](const DescribeFacts& describe) {
      const Status status = CheckAgreement(comm, "it", describe, Soon());
      EXPECT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
      return status.message();
    };
    EXPECT_EQ(message([&](FactSink* sink) {
                sink->Add("tensor 'a'", "dtype", odd ? "f16" : "f32",
                          StrCat("path ", comm->rank()));
              }),
              "the ranks differ in it: dtype of tensor 'a': rank 0 has f32 "
              "(path 0), rank 1 has f16 (path 1)");
    EXPECT_EQ(message([&](FactSink* sink) {
                sink->Add("", odd ? "b" : "a", 1);
                sink->Add("", "later", comm->rank());
              }),
              "the ranks differ in it: rank 0 has a 1, rank 1 has b 1");
    EXPECT_EQ(message([&](FactSink* sink) {
                sink->AddSpec("group 3", "optimizer",
                              odd ? "adam?lr=1&eps=2" : "adam?lr=1&eps=3");
              }),
              "the ranks differ in it: eps of group 3: rank 0 has 3, rank 1 "
              "has 2");
    // Notes are not compared.
    SHARD_EXPECT_OK(CheckAgreement(
        comm, "it",
        [&](FactSink* sink) { sink->Add("", "a", 1, odd ? "x" : "y"); },
        Soon()));
    // The message shows the part of long values around the difference, cut
    // between characters.
    std::string text;
    for (int i = 0; i < 500; ++i) text += "\u00e4";
    const std::string shown = message([&](FactSink* sink) {
      sink->Add("", "text", StrCat(text, odd ? "one" : "two", text));
    });
    EXPECT_LT(shown.size(), 600u);
    EXPECT_TRUE(Contains(shown, "\u00e4two\u00e4"));
    EXPECT_TRUE(Contains(shown, "\u00e4one\u00e4"));
    EXPECT_TRUE(IsValidUtf8(shown)) << shown;
    // A difference beyond the part that is sent cannot be shown: the shown
    // texts are equal.
    EXPECT_TRUE(Contains(message([&](FactSink* sink) {
                           sink->Add("", "text",
                                     StrCat(std::string(100000, 'x'), odd));
                         }),
                         "text: rank 0 has ..."));
  });
}

TEST_P(AgreementTest, FingerprintsMayDifferWithoutAFact) {
  RunGroup(GetParam(), 4, [](Communicator* comm) {
    const uint64_t mine = comm->rank() < 2 ? 7 : 9;
    const Status status =
        CheckAgreement(comm, "it", mine, Numbered(10), Soon());
    EXPECT_EQ(status.code(), StatusCode::kDesync);
    EXPECT_EQ(status.rank(), 2);
    EXPECT_EQ(status.message(),
              "the ranks differ in it: rank 0 has fingerprint "
              "0x0000000000000007, rank 2 has 0x0000000000000009; 2 of 4 ranks "
              "differ from rank 0: [2, 3]; no fact that they describe differs");
  });
}

TEST_P(AgreementTest, ARankWithoutFactsMayHaveAnything) {
  RunGroup(GetParam(), 3, [](Communicator* comm) {
    const int rank = comm->rank();
    SHARD_EXPECT_OK(CheckAgreement(comm, "it", rank == 1 ? 1 : 2,
                                   rank == 1 ? DescribeFacts() : Numbered(2),
                                   Soon()));
    const Status status = CheckAgreement(
        comm, "it", static_cast<uint64_t>(rank),
        rank == 0 ? DescribeFacts() : Numbered(2, rank == 1 ? 1 : -1), Soon());
    EXPECT_EQ(status.code(), StatusCode::kDesync);
    EXPECT_EQ(status.rank(), 2);
    EXPECT_EQ(status.message(),
              "the ranks differ in it: fact 1: rank 1 has other, rank 2 has 1");
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, AgreementTest,
                         ::testing::Values(Backend::kThreads, Backend::kShm,
                                           Backend::kHosts, Backend::kTcp),
                         [](const auto& info) {
                           return BackendName(info.param);
                         });

// --- a rank that does not stay until the difference is found ---

// Expects the same error on all ranks that live. The hashes are known by then,
// the facts are not.
void ExpectDesyncWithoutFacts(const Status& status, const std::string& why) {
  EXPECT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
  EXPECT_EQ(status.rank(), 1);
  EXPECT_TRUE(Contains(status.message(),
                       "the ranks differ in it: rank 0 has fingerprint 0x"));
  EXPECT_TRUE(Contains(status.message(), "could not compare"));
  EXPECT_TRUE(Contains(status.message(), why));
}

TEST(AgreementFaultTest, ARankDiesDuringTheComparison) {
  for (const int dies_in : {1, 2}) {
    const std::string url = UrlFor(Backend::kShm, UniqueName(), 3);
    const auto results = RunRanks(3, [&](const Rank& rank) {
      int round = 0;
      const CommOptions options = {
          .rank = rank.rank(),
          .world_size = 3,
          .phase_hook = [&](std::string_view what) {
            if (what != "it: differences" || ++round < dies_in) return;
            if (rank.rank() == 2) ::raise(SIGKILL);
          }};
      const auto comm = OpenCommunicator(url, options);
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      ExpectDesyncWithoutFacts(
          CheckAgreement(comm->get(), "it",
                         Numbered(10, rank.rank() == 1 ? 5 : -1), Soon()),
          "rank 2");
      // The next call returns the state of the group.
      const Status next = (*comm)->Barrier("next", Soon());
      EXPECT_EQ(next.code(), StatusCode::kRankLost) << next.ToString();
      EXPECT_EQ(next.rank(), 2);
    });
    for (const RankResult& result : results) {
      if (result.rank == 2) continue;
      EXPECT_TRUE(result.passed()) << result.ToString();
      EXPECT_LT(result.seconds, 10);
    }
  }
}

TEST(AgreementFaultTest, ARankIsTooLateForTheComparison) {
  for (const char* link : {"", "direct=0"}) {
    const std::string url = UrlFor(Backend::kThreads, UniqueName(), 3, link);
    std::atomic<int> done{0};
    RunEach(Backend::kThreads, 3, [&](int rank) {
      const CommOptions options = {
          .rank = rank, .phase_hook = [&](std::string_view what) {
            if (rank != 2 || what != "it: differences") return;
            // This rank describes its facts until the others have given up.
            for (int seen = done; seen < 2; seen = done) done.wait(seen);
          }};
      const auto comm = OpenCommunicator(url, options);
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      const Status status =
          CheckAgreement(comm->get(), "it", Numbered(10, rank == 1 ? 5 : -1),
                         Deadline::After(0.3));
      ExpectDesyncWithoutFacts(status, "it: differences");
      ++done;
      done.notify_all();
    });
  }
}

}  // namespace
}  // namespace shard::testing::check_agreement_test
