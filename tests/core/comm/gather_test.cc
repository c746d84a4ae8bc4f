// SPDX-License-Identifier: Apache-2.0

#include "core/comm/gather.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tests/core/comm/backends.h"

namespace shard::gather_test {
namespace {

using testing::Backend;
using testing::RunGroup;
using testing::Soon;

// Returns `bytes` bytes that count up from a rank's own number.
std::vector<std::byte> BytesOf(int rank, size_t bytes) {
  std::vector<std::byte> content(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    content[i] = static_cast<std::byte>(static_cast<size_t>(rank) * 37 + i);
  }
  return content;
}

class GatherTest : public ::testing::TestWithParam<Backend> {};

TEST_P(GatherTest, EveryRankHasAllByRank) {
  for (const int world_size : {1, 2, 5}) {
    RunGroup(GetParam(), world_size, [&](Communicator* comm) {
      // Another rank gives nothing, the least and the most in each round. In
      // the last round no rank gives anything.
      for (size_t round = 0; round < 6; ++round) {
        const auto size = [&](int rank) {
          return round == 5 ? 0
                            : (static_cast<size_t>(rank) + round) %
                                  static_cast<size_t>(world_size) * 100003;
        };
        const auto mine = BytesOf(comm->rank(), size(comm->rank()));
        const auto all = GatherBytes(comm, "gather", mine, Soon());
        ASSERT_TRUE(all.ok()) << all.status().ToString();
        ASSERT_EQ(all->size(), static_cast<size_t>(world_size));
        for (int r = 0; r < world_size; ++r) {
          EXPECT_TRUE((*all)[static_cast<size_t>(r)] == BytesOf(r, size(r)))
              << r << " in round " << round;
        }
      }
    });
  }
}

// A rank says that it gives more bytes than any machine has; no other rank may
// try to allocate them.
TEST_P(GatherTest, BeyondMemoryIsAnErrorOfAll) {
  RunGroup(GetParam(), 3, [&](Communicator* comm) {
    // The byte is never read: the call fails before.
    static const std::byte kByte{1};
    const size_t huge = size_t{1} << 50;
    const auto all = GatherBytes(
        comm, "gather", {&kByte, comm->rank() == 1 ? huge : 1}, Soon());
    EXPECT_EQ(all.status().code(), StatusCode::kResourceExhausted)
        << all.status().ToString();
    // The group can still be used.
    SHARD_EXPECT_OK(comm->Barrier("after", Soon()));
  });
}

TEST_P(GatherTest, EveryRankHasTheTextOfRankZero) {
  RunGroup(GetParam(), 4, [&](Communicator* comm) {
    for (const std::string& text :
         {std::string(), std::string("step-000042"), std::string(1, '\0'),
          std::string(70000, 'x')}) {
      const auto heard = BroadcastText(
          comm, "text", comm->rank() == 0 ? text : "not this", Soon());
      ASSERT_TRUE(heard.ok()) << heard.status().ToString();
      EXPECT_EQ(*heard, text);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, GatherTest,
                         ::testing::Values(Backend::kThreads, Backend::kShm,
                                           Backend::kHosts, Backend::kTcp),
                         [](const auto& info) {
                           return testing::BackendName(info.param);
                         });

}  // namespace
}  // namespace shard::gather_test
