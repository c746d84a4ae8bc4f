// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/api/api_testing.h"

namespace shard_api_testing::comm_test {
namespace {

Outcome TryOpen(const char* url, const shard_comm_options* options = nullptr) {
  shard_comm* comm = Garbage<shard_comm>();
  Outcome outcome = Take(shard_comm_open(url, options, &comm));
  EXPECT_EQ(comm == nullptr, outcome.code != SHARD_OK) << url;
  shard_comm_free(comm);
  return outcome;
}

void ExpectBad(const Outcome& outcome, const std::vector<std::string>& texts) {
  ExpectError(outcome, SHARD_INVALID_ARGUMENT, texts);
}

TEST(CommTest, NullPointersAreErrors) {
  shard_comm* comm = Garbage<shard_comm>();
  EXPECT_FAILS(shard_comm_open(nullptr, nullptr, &comm), SHARD_INVALID_ARGUMENT,
               "url is NULL");
  EXPECT_EQ(comm, nullptr);
  EXPECT_FAILS(shard_comm_open("local:", nullptr, nullptr),
               SHARD_INVALID_ARGUMENT, "comm is NULL");
  EXPECT_EQ(shard_comm_rank(nullptr), -1);
  EXPECT_EQ(shard_comm_world_size(nullptr), 0);
  EXPECT_EQ(shard_comm_local_rank(nullptr), -1);
  EXPECT_EQ(shard_comm_local_world_size(nullptr), 0);
  const char* text = "stale";
  EXPECT_FAILS(shard_comm_describe(nullptr, &text), SHARD_INVALID_ARGUMENT,
               "comm is NULL");
  EXPECT_EQ(text, nullptr);
  EXPECT_FAILS(shard_comm_barrier(nullptr, 1), SHARD_INVALID_ARGUMENT,
               "comm is NULL");
  double value = 1;
  EXPECT_FAILS(shard_comm_sum(nullptr, &value, 1, 1), SHARD_INVALID_ARGUMENT,
               "comm is NULL");
  EXPECT_FAILS(shard_comm_broadcast(nullptr, &value, 8, 0, 1),
               SHARD_INVALID_ARGUMENT, "comm is NULL");
  EXPECT_FAILS(shard_comm_check_device(nullptr, "cuda:0", 1),
               SHARD_INVALID_ARGUMENT, "comm is NULL");
  EXPECT_FAILS(shard_comm_abort(nullptr, "reason"), SHARD_INVALID_ARGUMENT,
               "comm is NULL");
  EXPECT_FAILS(shard_comm_shutdown(nullptr, 1), SHARD_INVALID_ARGUMENT,
               "comm is NULL");
  shard_comm_free(nullptr);

  const Comm local = OpenLocal();
  EXPECT_FAILS(shard_comm_sum(local.get(), nullptr, 1, 1),
               SHARD_INVALID_ARGUMENT, "values is NULL");
  EXPECT_FAILS(shard_comm_abort(local.get(), nullptr), SHARD_INVALID_ARGUMENT,
               "reason is NULL");
  // Neither call ended the group. A sum of no values needs no array.
  EXPECT_OK(shard_comm_sum(local.get(), nullptr, 0, 1));
}

TEST(CommTest, WrongUrlsAreNamed) {
  for (const char* bad :
       {"", "local:x", "nowhere:", "threads:", "threads:x", "threads:0",
        "threads:-1", "threads:2", "local:?x=1", "local:?timeout=x",
        "local:?timeout=0", "local:?timeout=-1", "local:?timeout=inf",
        "local:?rank=1", "local:?world_size=2", "shm:", "env:x",
        "env:?rank=0"}) {
    const Outcome outcome = TryOpen(bad);
    EXPECT_EQ(outcome.code, SHARD_INVALID_ARGUMENT)
        << "'" << bad << "': " << outcome;
  }
  ExpectBad(TryOpen("nowhere:"), {"'nowhere:'", "local:", "threads:N", "shm:"});
  ExpectBad(TryOpen("local:?x=1"), {"'x'"});
  EXPECT_EQ(TryOpen("local:?timeout=3").message, "");
}

TEST(CommTest, WrongOptionsAreNamed) {
  const auto try_open = [](const char* url, auto change) {
    shard_comm_options options = SHARD_COMM_OPTIONS_INIT;
    change(options);
    return TryOpen(url, &options);
  };
  ExpectBad(try_open("local:", [](auto& o) { o.world_size = -1; }),
            {"world_size -1"});
  ExpectBad(
      try_open("threads:2", [](auto& o) { o.world_size = 2, o.rank = 2; }),
      {"rank 2", "[0, 2)"});
  ExpectBad(
      try_open("threads:2", [](auto& o) { o.world_size = 2, o.rank = -1; }),
      {"rank -1"});
  ExpectBad(try_open("threads:2", [](auto& o) { o.world_size = 3; }),
            {"world_size", "2", "3"});
  ExpectBad(try_open("local:", [](auto& o) { o.world_size = 2; }), {"2"});
  EXPECT_EQ(try_open("local:", [](auto& o) { o.timeout = -1; }).message, "");
  ExpectBad(try_open("local:", [](auto& o) { o.timeout = std::nan(""); }),
            {"timeout nan"});
  ExpectBad(try_open("local:",
                     [](auto& o) {
                       o.timeout = std::numeric_limits<double>::infinity();
                     }),
            {"timeout", "inf"});
  ExpectBad(try_open("local:", [](auto& o) { o.log_level = 5; }),
            {"log_level 5", "4 (debug)"});
  ExpectBad(try_open("local:", [](auto& o) { o.log_level = -1; }),
            {"log_level -1"});
}

TEST(CommTest, ALocalGroupHasOneRank) {
  const Comm comm = OpenLocal();
  EXPECT_EQ(shard_comm_rank(comm.get()), 0);
  EXPECT_EQ(shard_comm_world_size(comm.get()), 1);
  EXPECT_THAT(TextOf(shard_comm_describe, comm.get()),
              ::testing::HasSubstr("local:"));
  EXPECT_FAILS(shard_comm_describe(comm.get(), nullptr), SHARD_INVALID_ARGUMENT,
               "text is NULL");
  // Any number of seconds is a valid deadline.
  for (const double timeout :
       {0.0, -1.0, 1e300, std::numeric_limits<double>::infinity(),
        std::nan("")}) {
    EXPECT_OK(shard_comm_barrier(comm.get(), timeout));
  }
  EXPECT_OK(shard_comm_shutdown(comm.get(), 0));
  EXPECT_FAILS(shard_comm_barrier(comm.get(), 0), SHARD_FAILED_PRECONDITION,
               "shut down");
}

TEST(CommTest, SumsOverTheRanks) {
  RunRanks(3, [](int rank, shard_comm* comm) {
    std::vector<double> values(1000, rank + 0.5);
    EXPECT_OK(shard_comm_sum(comm, values.data(), values.size(), 0));
    EXPECT_EQ(values, std::vector<double>(1000, 4.5));
    EXPECT_OK(shard_comm_shutdown(comm, 0));
  });
}

TEST(CommTest, SumsOfDifferentCountsAreDesync) {
  RunRanks(2, [](int rank, shard_comm* comm) {
    double values[2] = {1, 1};
    EXPECT_FAILS(shard_comm_sum(comm, values, rank == 0 ? 1 : 2, 0),
                 SHARD_DESYNC, "sum");
    EXPECT_FAILS(shard_comm_barrier(comm, 0), SHARD_POISONED, "sum");
  });
}

// A wrong argument on one rank is the same error on all ranks, and none waits.
TEST(CommTest, AWrongArgumentOfASumIsAnErrorOfAll) {
  RunRanks(3, [](int rank, shard_comm* comm) {
    double value = 1;
    const Outcome outcome =
        Take(shard_comm_sum(comm, rank == 1 ? nullptr : &value, 1, 0));
    ExpectError(outcome, SHARD_INVALID_ARGUMENT, {"rank 1", "values is NULL"});
    EXPECT_EQ(outcome.rank, 1);
    EXPECT_EQ(value, 1);
    EXPECT_FAILS(shard_comm_sum(comm, &value, SIZE_MAX, 0),
                 SHARD_INVALID_ARGUMENT, "count 18446744073709551615");
    EXPECT_OK(shard_comm_sum(comm, &value, 1, 0));
    EXPECT_EQ(value, 3);
  });
}

TEST(CommTest, BroadcastsFromAnyRoot) {
  RunRanks(3, [](int rank, shard_comm* comm) {
    EXPECT_EQ(shard_comm_local_rank(comm), rank);
    EXPECT_EQ(shard_comm_local_world_size(comm), 3);
    for (const int32_t root : {0, 2}) {
      // The text has more than one tile of an exchange, and an odd number of
      // bytes.
      std::vector<char> text((size_t{1} << 21) + 3, static_cast<char>(rank));
      EXPECT_OK(shard_comm_broadcast(comm, text.data(), text.size(), root, 0));
      EXPECT_EQ(text, std::vector<char>(text.size(), static_cast<char>(root)));
    }
    EXPECT_OK(shard_comm_broadcast(comm, nullptr, 0, 1, 0));
    EXPECT_OK(shard_comm_shutdown(comm, 0));
  });
}

// A wrong argument on one rank is the same error on all ranks, and the group
// can still be used. Ranks that name different roots cannot continue.
TEST(CommTest, WrongArgumentsOfABroadcastAreErrorsOfAll) {
  RunRanks(3, [](int rank, shard_comm* comm) {
    int32_t value = rank;
    const Outcome outcome =
        Take(shard_comm_broadcast(comm, &value, 4, rank == 1 ? 3 : 0, 0));
    ExpectError(outcome, SHARD_INVALID_ARGUMENT,
                {"rank 1", "root 3", "0 to 2"});
    EXPECT_EQ(outcome.rank, 1);
    EXPECT_FAILS(shard_comm_broadcast(comm, &value, 4, -1, 0),
                 SHARD_INVALID_ARGUMENT, "root -1");
    EXPECT_FAILS(
        shard_comm_broadcast(comm, rank == 2 ? nullptr : &value, 4, 0, 0),
        SHARD_INVALID_ARGUMENT, "rank 2", "data is NULL");
    EXPECT_EQ(value, rank);
    EXPECT_FAILS(shard_comm_broadcast(comm, &value, 4, rank == 2 ? 1 : 0, 0),
                 SHARD_DESYNC, "broadcast", "from rank 1");
  });
}

// Ranks on GPUs are in tests/core/collectives/nccl.
TEST(CommTest, WrongDevicesToCheckAreErrorsOfAll) {
  RunRanks(2, [](int rank, shard_comm* comm) {
    for (const auto& [device, text] :
         {std::pair("cpu", "'cpu' is no GPU"), std::pair("cuda:", "cuda:0"),
          std::pair<const char*, const char*>(nullptr, "device is NULL")}) {
      // Where two are wrong, the error is that of the lower rank.
      EXPECT_FAILS(shard_comm_check_device(comm, rank == 0 ? device : "cpu", 0),
                   SHARD_INVALID_ARGUMENT, "rank 0", text);
    }
  });
}

TEST(CommTest, DifferentCallsAreDesync) {
  RunRanks(2, [](int rank, shard_comm* comm) {
    double value = 1;
    EXPECT_FAILS(rank == 0 ? shard_comm_barrier(comm, 0)
                           : shard_comm_sum(comm, &value, 1, 0),
                 SHARD_DESYNC, "barrier", "sum");
  });
}

TEST(CommTest, AbortReachesTheOthers) {
  RunRanks(3, [](int rank, shard_comm* comm) {
    EXPECT_OK(shard_comm_barrier(comm, 0));
    if (rank == 1) {
      EXPECT_OK(shard_comm_abort(comm, "no more data"));
    }
    for (int i = 0; i < 2; ++i) {
      const Outcome outcome = Take(shard_comm_barrier(comm, 0));
      ExpectError(outcome, SHARD_POISONED, {"rank 1", "no more data"});
      EXPECT_EQ(outcome.rank, 1);
    }
    EXPECT_OK(shard_comm_abort(comm, "again"));
    EXPECT_FAILS(shard_comm_shutdown(comm, 0), SHARD_POISONED, "no more data");
  });
}

// A rank that frees its communicator without a shutdown is lost to the ranks
// that wait.
TEST(CommTest, LeavingIsALoss) {
  RunRanks(2, [](int rank, shard_comm* comm) {
    if (rank == 1) return;
    const Outcome outcome = Take(shard_comm_barrier(comm, 20));
    ExpectError(outcome, SHARD_RANK_LOST, {"rank 1"});
    EXPECT_EQ(outcome.rank, 1);
  });
}

TEST(CommTest, TakenAndMissingRanksAreNamed) {
  const std::string url = UniqueUrl(3);
  shard_comm_options options = SHARD_COMM_OPTIONS_INIT;
  options.world_size = 3;
  options.timeout = 1;
  Outcome outcomes[2];
  std::thread threads[2];
  for (int i = 0; i < 2; ++i) {
    threads[i] =
        std::thread([&, i] { outcomes[i] = TryOpen(url.c_str(), &options); });
  }
  for (std::thread& thread : threads) thread.join();
  // The second one was told at once; the first waited until its deadline.
  const int first = outcomes[0].code == SHARD_ALREADY_EXISTS ? 1 : 0;
  ExpectError(outcomes[1 - first], SHARD_ALREADY_EXISTS, {"rank 0"});
  ExpectError(outcomes[first], SHARD_DEADLINE_EXCEEDED, {"[1, 2]"});
}

}  // namespace
}  // namespace shard_api_testing::comm_test
