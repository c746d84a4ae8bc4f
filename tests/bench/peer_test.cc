// SPDX-License-Identifier: Apache-2.0

#include "tests/bench/peer.h"

#include <gtest/gtest.h>

#include <optional>

namespace shard::bench {
namespace {

std::optional<Peer> StartNoisy(const char* kind, int world_size) {
  return Peer::Start({"tests/bench/noisy_peer.sh", kind}, world_size);
}

TEST(PeerTest, PassesOverWhatElseAPeerPrints) {
  auto peer = StartNoisy("noisy", 3);
  ASSERT_TRUE(peer);
  // Rank r takes r.5 ms.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(peer->Go("step"), 2.5);
  EXPECT_EQ(peer->Go("other"), std::nullopt);
  EXPECT_EQ(peer->Go("step"), 2.5);
  EXPECT_EQ(peer->Go("end"), std::nullopt);
  EXPECT_EQ(peer->Go("step"), std::nullopt);
}

TEST(PeerTest, APeerThatEndsIsNotReady) {
  EXPECT_FALSE(StartNoisy("missing", 1));
  EXPECT_FALSE(StartNoisy("silent", 2));
  EXPECT_FALSE(Peer::Start({"tests/bench/no_such_program"}, 1));
}

}  // namespace
}  // namespace shard::bench
