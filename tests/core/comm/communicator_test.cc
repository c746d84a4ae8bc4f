// SPDX-License-Identifier: Apache-2.0
//
// The promises of the interface, on every backend.

#include "core/comm/communicator.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

#include "tests/core/base/sanitizers.h"
#include "tests/core/comm/backends.h"

namespace shard::testing::communicator_test {
namespace {

// Instrumented ranks would share two cores for minutes.
constexpr auto kWorlds = [] {
  if constexpr (kSanitized) {
    return std::array{1, 3, 8};
  } else {
    return std::array{1, 2, 3, 5, 8};
  }
}();

class CommunicatorTest
    : public ::testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  Backend backend() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
  void Run(const std::function<void(Communicator*)>& body) {
    RunGroup(backend(), world_size(), body);
  }
};

TEST_P(CommunicatorTest, KnowsItsPlace) {
  Run([this](Communicator* comm) {
    EXPECT_EQ(comm->world_size(), world_size());
    EXPECT_TRUE(comm->direct());
    EXPECT_EQ(comm->timeout(), 60);
    EXPECT_TRUE(Contains(comm->Describe(),
                         StrCat("rank ", comm->rank(), " of ", world_size())));
    EXPECT_TRUE(Contains(comm->Describe(), BackendName(backend())));
  });
}

// Bytes that a rank wrote to symmetric memory before a barrier are visible
// after the barrier.
TEST_P(CommunicatorTest, BarrierPublishesMemory) {
  Run([](Communicator* comm) {
    auto buffer = comm->Allocate("counters", sizeof(int64_t),
                                 SymmetricKind::kPerRank, Soon());
    ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
    const auto cell = [&](int rank) {
      return reinterpret_cast<int64_t*>((*buffer)->region(rank));
    };
    for (int64_t step = 1; step <= 50; ++step) {
      *cell(comm->rank()) = step;
      SHARD_ASSERT_OK(comm->Barrier("written", Soon()));
      for (int r = 0; r < comm->world_size(); ++r) EXPECT_EQ(*cell(r), step);
      SHARD_ASSERT_OK(comm->Barrier("read", Soon()));
    }
  });
}

TEST_P(CommunicatorTest, AllGathersEverySize) {
  Run([](Communicator* comm) {
    // The sizes lie around the payload of a round (8192); one is 0.
    for (const size_t bytes : {0, 1, 7, 8191, 8192, 8193, 16384, 100001}) {
      std::vector<uint8_t> send(bytes);
      const auto byte = [](int rank, size_t i) {
        return static_cast<uint8_t>(static_cast<size_t>(rank) * 37 + i * 11 +
                                    i / 251);
      };
      for (size_t i = 0; i < bytes; ++i) send[i] = byte(comm->rank(), i);
      const auto world_size = static_cast<size_t>(comm->world_size());
      std::vector<uint8_t> recv(bytes * world_size + 1, 0xEE);
      SHARD_ASSERT_OK(
          comm->AllGather("bytes", send.data(), bytes, recv.data(), Soon()));
      for (size_t r = 0; r < world_size; ++r) {
        for (size_t i = 0; i < bytes; ++i) {
          ASSERT_EQ(recv[r * bytes + i], byte(static_cast<int>(r), i))
              << "rank " << r << " byte " << i << " of " << bytes;
        }
      }
      EXPECT_EQ(recv.back(), 0xEE);
    }
  });
}

TEST_P(CommunicatorTest, SentBytesAreCounted) {
  Run([](Communicator* comm) {
    const auto ranks = static_cast<size_t>(comm->world_size());
    std::vector<char> all(ranks * 100);
    SHARD_ASSERT_OK(
        comm->AllGather("control", all.data(), 100, all.data(), Soon()));
    SHARD_ASSERT_OK(comm->Broadcast("text", 0, all.data(), 100, Soon()));
    const auto expect = [&](const char* event, uint64_t bytes) {
      const auto counter = comm->observer()->counters().Find(event);
      EXPECT_EQ(counter->calls, 1u) << event;
      EXPECT_EQ(counter->bytes, bytes) << event;
    };
    expect("all_gather", (ranks - 1) * 100);
    expect("broadcast", ranks > 1 ? 100 : 0);
  });
}

TEST_P(CommunicatorTest, AllGathersInPlace) {
  Run([](Communicator* comm) {
    constexpr size_t kCount = 5000;
    std::vector<int32_t> all(kCount * static_cast<size_t>(comm->world_size()));
    int32_t* mine = all.data() + kCount * static_cast<size_t>(comm->rank());
    for (size_t i = 0; i < kCount; ++i) {
      mine[i] = comm->rank() * 100000 + static_cast<int32_t>(i);
    }
    SHARD_ASSERT_OK(comm->AllGather("in place", mine, kCount * sizeof(int32_t),
                                    all.data(), Soon()));
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(all[i], static_cast<int32_t>(i / kCount * 100000 + i % kCount));
    }
  });
}

TEST_P(CommunicatorTest, SymmetricBuffersBeginWithZerosAndAreShared) {
  Run([this](Communicator* comm) {
    for (const size_t bytes :
         {size_t{0}, size_t{1}, size_t{4096}, size_t{4097}, size_t{3} << 20}) {
      for (const auto kind :
           {SymmetricKind::kPerRank, SymmetricKind::kPerHost}) {
        auto buffer = comm->Allocate("buffer", bytes, kind, Soon());
        ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
        EXPECT_EQ((*buffer)->size(), bytes);
        const bool per_rank = kind == SymmetricKind::kPerRank;
        for (int r = 0; r < world_size(); ++r) {
          std::byte* region = (*buffer)->region(r);
          EXPECT_EQ(reinterpret_cast<uintptr_t>(region) % kSymmetricAlignment,
                    0u);
          EXPECT_EQ(region == (*buffer)->region(0), r == 0 || !per_rank);
          for (size_t i = 0; i < bytes; i += 509) {
            ASSERT_EQ(region[i], std::byte{0});
          }
        }
        SHARD_ASSERT_OK(comm->Barrier("all have seen zeros", Soon()));
        const size_t rounded =
            (std::max<size_t>(bytes, 1) + 4095) / 4096 * 4096;
        EXPECT_EQ((*buffer)->resident_bytes(),
                  per_rank || comm->rank() == 0 ? rounded : 0);
        // Each rank fills its region, or its stripe of the common region.
        const auto value = [](int rank) { return std::byte(rank + 1); };
        const auto stripe = bytes / static_cast<size_t>(world_size());
        const auto part = [&](int rank) {
          return (*buffer)->region(rank) +
                 (per_rank ? 0 : stripe * static_cast<size_t>(rank));
        };
        const size_t length = per_rank ? bytes : stripe;
        std::memset(part(comm->rank()), static_cast<int>(value(comm->rank())),
                    length);
        SHARD_ASSERT_OK(comm->Barrier("filled", Soon()));
        for (int r = 0; r < world_size(); ++r) {
          for (size_t i = 0; i < length; i += 127) {
            ASSERT_EQ(part(r)[i], value(r));
          }
          if (length > 0) {
            ASSERT_EQ(part(r)[length - 1], value(r));
          }
        }
        SHARD_ASSERT_OK(comm->Barrier("checked", Soon()));
      }
    }
  });
}

TEST_P(CommunicatorTest, BufferOutlivesCommunicator) {
  const std::string url = UrlFor(backend(), UniqueName(), world_size());
  RunEach(backend(), world_size(), [&](int rank) {
    auto comm =
        OpenCommunicator(url, {.rank = rank, .world_size = world_size()});
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    auto buffer =
        (*comm)->Allocate("buffer", 10000, SymmetricKind::kPerRank, Soon());
    ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
    std::memset((*buffer)->region(rank), rank + 1, 10000);
    SHARD_ASSERT_OK((*comm)->Shutdown(Soon()));
    *comm = nullptr;
    for (int r = 0; r < world_size(); ++r) {
      EXPECT_EQ((*buffer)->region(r)[9999], std::byte(r + 1));
    }
  });
}

TEST_P(CommunicatorTest, MemoryThatNobodyHasIsAnErrorOnAllRanks) {
  Run([](Communicator* comm) {
    for (const auto kind : {SymmetricKind::kPerRank, SymmetricKind::kPerHost}) {
      // 2^46 bytes fit into the address space and into no machine; SIZE_MAX - 5
      // overflows.
      for (const size_t bytes : {size_t{1} << 46, SIZE_MAX - 5}) {
        auto buffer = comm->Allocate("too much", bytes, kind, Soon());
        ASSERT_FALSE(buffer.ok());
        EXPECT_EQ(buffer.status().code(), StatusCode::kResourceExhausted)
            << buffer.status().ToString();
      }
    }
    // The group can still be used.
    auto buffer =
        comm->Allocate("enough", 100, SymmetricKind::kPerRank, Soon());
    EXPECT_TRUE(buffer.ok()) << buffer.status().ToString();
    SHARD_EXPECT_OK(comm->Barrier("on", Soon()));
  });
}

TEST_P(CommunicatorTest, AllReduceSumIsTheSameOnAllRanks) {
  Run([](Communicator* comm) {
    std::vector<double> values(3000);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = 0.1 * (comm->rank() + 1) + static_cast<double>(i);
    }
    SHARD_ASSERT_OK(
        AllReduceSum(comm, "sum", values.data(), values.size(), Soon()));
    for (size_t i = 0; i < values.size(); ++i) {
      double expected = 0;
      for (int r = 0; r < comm->world_size(); ++r) {
        expected += 0.1 * (r + 1) + static_cast<double>(i);
      }
      ASSERT_EQ(values[i], expected);
    }
    SHARD_EXPECT_OK(AllReduceSum(comm, "none", nullptr, 0, Soon()));
  });
}

TEST_P(CommunicatorTest, AgreesOnAStatus) {
  Run([](Communicator* comm) {
    SHARD_EXPECT_OK(AgreeOnStatus(comm, "loading", Status(), Soon()));
    const int failing = comm->world_size() / 2;
    const std::string long_text(20000, 'x');
    const Status local =
        comm->rank() >= failing
            ? Status(StatusCode::kNotFound,
                     StrCat("no file ", comm->rank(), long_text), -1,
                     "{\"missing\":[]}")
            : Status();
    const Status common = AgreeOnStatus(comm, "loading", local, Soon());
    EXPECT_EQ(common.code(), StatusCode::kNotFound);
    EXPECT_EQ(common.rank(), failing);
    EXPECT_EQ(common.message(),
              StrCat("rank ", failing, ": no file ", failing, long_text));
    EXPECT_EQ(common.detail(), "{\"missing\":[]}");
    SHARD_EXPECT_OK(comm->Barrier("on", Soon()));
  });
}

TEST_P(CommunicatorTest, AfterShutdownNothingWorks) {
  Run([](Communicator* comm) {
    SHARD_ASSERT_OK(comm->Shutdown(Soon()));
    EXPECT_EQ(comm->Barrier("late", Soon()).code(),
              StatusCode::kFailedPrecondition);
    SHARD_EXPECT_OK(comm->Shutdown(Soon()));
  });
}

// Most races would show where there are only barriers and small gathers.
TEST_P(CommunicatorTest, ManyCollectives) {
  // Ranks that share a CPU need two switches of threads per round.
  const int rounds = world_size() <= 2 ? 20000 : 2000;
  Run([rounds](Communicator* comm) {
    const auto world_size = static_cast<size_t>(comm->world_size());
    std::vector<int> all(world_size);
    for (int i = 0; i < rounds; ++i) {
      if (i % 4 == 0) {
        const int mine = i * 10 + comm->rank();
        SHARD_ASSERT_OK(
            comm->AllGather("gather", &mine, sizeof(mine), all.data(), Soon()));
        for (size_t r = 0; r < world_size; ++r) {
          ASSERT_EQ(all[r], i * 10 + static_cast<int>(r));
        }
      } else {
        SHARD_ASSERT_OK(comm->Barrier("barrier", Soon()));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, CommunicatorTest,
                         ::testing::Combine(::testing::Values(Backend::kThreads,
                                                              Backend::kShm),
                                            ::testing::ValuesIn(kWorlds)),
                         [](const auto& info) {
                           return BackendName(std::get<0>(info.param)) +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace shard::testing::communicator_test
