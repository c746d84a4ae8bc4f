// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/roster.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/comm/network/helper/rendezvous_wire.h"
#include "tests/core/comm/network/helper/helper_testing.h"

namespace shard::network::roster_test {
namespace {

Status Add(Roster* roster, uint64_t host, std::vector<int32_t> ranks,
           int world_size = 6) {
  return roster->AddRanks(host, ranks, world_size);
}

Roster MakeRoster(int hosts = 3, int world_size = 6, int most_hosts = 100) {
  Roster roster(world_size, most_hosts);
  for (int i = 0; i < hosts; ++i) {
    roster.AddHost(static_cast<uint64_t>(i), StrCat("node-", i),
                   *SocketAddress::Parse(StrCat("10.0.0.", i), 100));
  }
  return roster;
}

TEST(RosterTest, TheTableIsInTheOrderOfRanks) {
  Roster roster = MakeRoster(4);
  EXPECT_OK(Add(&roster, 1, {2, 1}));
  EXPECT_OK(Add(&roster, 2, {0}));
  EXPECT_OK(Add(&roster, 0, {5, 3}));
  EXPECT_FALSE(roster.whole());
  EXPECT_EQ(roster.first_rank(0), 3);
  EXPECT_EQ(roster.first_rank(3), -1);
  EXPECT_OK(Add(&roster, 0, {4}));
  ASSERT_TRUE(roster.whole());
  std::vector<uint64_t> numbers;
  const auto table = roster.MakeTable(&numbers);
  ASSERT_OK(table);
  EXPECT_EQ(numbers, (std::vector<uint64_t>{2, 1, 0}));
  ASSERT_EQ(table->size(), 3u);
  EXPECT_EQ((*table)[1].name, "node-1");
  EXPECT_EQ((*table)[1].first_rank, 1);
  EXPECT_EQ((*table)[1].ranks, 2);
  EXPECT_EQ((*table)[2].ranks, 3);
  EXPECT_EQ((*table)[2].address.ToString(), "10.0.0.0:100");

  int self = -1;
  const auto read = ReadTable(WriteTable(*table, 2).bytes(), &self);
  ASSERT_TRUE(read);
  EXPECT_EQ(self, 2);
  ASSERT_EQ(read->size(), 3u);
  EXPECT_EQ((*read)[2].name, "node-0");
  EXPECT_EQ((*read)[2].address.ToString(), "10.0.0.0:100");
  EXPECT_FALSE(ReadTable(WriteTable(*table, 3).bytes(), &self));
}

TEST(RosterTest, WrongRanksAreErrorsThatNameThem) {
  Roster roster = MakeRoster();
  ASSERT_OK(Add(&roster, 0, {0, 1}));
  const Status twice = Add(&roster, 1, {2, 1});
  ExpectError(twice, StatusCode::kAlreadyExists,
              {"the hosts node-0 (10.0.0.0) and node-1 (10.0.0.1) have both "
               "rank 1"});
  EXPECT_EQ(twice.rank(), 1);
  ExpectError(Add(&roster, 0, {0}), StatusCode::kAlreadyExists,
              {"two processes of host node-0"});
  for (const int32_t rank : {-1, 6}) {
    const Status status = Add(&roster, 1, {rank});
    ExpectInvalid(status, {"host node-1 (10.0.0.1) has rank ", "0 to 5"});
    EXPECT_EQ(status.rank(), rank);
  }
  const Status world = Add(&roster, 1, {3}, 8);
  ExpectInvalid(world, {"rank 3 of host node-1 (10.0.0.1) says world size 8",
                        "the master says 6"});
  EXPECT_EQ(world.rank(), 3);
}

TEST(RosterTest, RanksOfAHostMustBeContiguous) {
  Roster roster = MakeRoster();
  ASSERT_OK(Add(&roster, 0, {0, 2, 4}));
  ASSERT_OK(Add(&roster, 1, {1, 3, 5}));
  std::vector<uint64_t> numbers;
  const auto table = roster.MakeTable(&numbers);
  ExpectInvalid(table, {"host node-0 (10.0.0.0) has rank 2 and rank 0",
                        "host node-1 (10.0.0.1) has rank 1"});
  EXPECT_EQ(table.status().rank(), 2);
}

// A host that has no rank yet is none of the job.
TEST(RosterTest, TooManyHostsAreRefusedOnceAllRanksHaveCome) {
  Roster roster = MakeRoster(5, 6, 2);
  ASSERT_OK(Add(&roster, 1, {3}));
  ASSERT_OK(Add(&roster, 2, {}));
  ASSERT_OK(Add(&roster, 3, {4, 5}));
  ASSERT_OK(Add(&roster, 1, {2}));
  ASSERT_OK(Add(&roster, 0, {1}));
  ASSERT_OK(Add(&roster, 4, {0}));
  ASSERT_TRUE(roster.whole());
  std::vector<uint64_t> numbers;
  const auto table = roster.MakeTable(&numbers);
  ExpectInvalid(table, {"the 6 ranks of this job are on 4 hosts",
                        "at most 2 hosts: start more ranks on each"});
  EXPECT_EQ(table.status().rank(), -1);
  // One of them leaves before.
  Roster fits = MakeRoster(3, 2, 2);
  ASSERT_OK(Add(&fits, 0, {1}, 2));
  EXPECT_FALSE(fits.RemoveHost(0).ok());
  ASSERT_OK(Add(&fits, 1, {1}, 2));
  ASSERT_OK(Add(&fits, 2, {0}, 2));
  EXPECT_OK(fits.MakeTable(&numbers));
}

TEST(RosterTest, AHostThatLeavesIsLostWithItsLowestRank) {
  Roster roster = MakeRoster();
  ASSERT_OK(Add(&roster, 1, {3, 2}));
  EXPECT_OK(roster.RemoveHost(0));
  const Status lost = roster.RemoveHost(1);
  ExpectError(lost, StatusCode::kRankLost,
              {"host node-1 (10.0.0.1) with rank 2 and 1 more left"});
  EXPECT_EQ(lost.rank(), 2);
}

TEST(RosterTest, MissingRanksAreNamedUpTo32) {
  Roster roster = MakeRoster();
  ASSERT_OK(Add(&roster, 1, {0, 3}));
  const Status few = roster.MissingRanks("tcp://x:1", 2.04);
  ExpectError(few, StatusCode::kDeadlineExceeded,
              {"4 of 6 ranks did not come to tcp://x:1 within 2 s: missing [1, "
               "2, 4, 5]"});
  EXPECT_EQ(few.rank(), 1);
  const Status many = Roster(1000, 1000).MissingRanks("tcp://x:1", 300);
  ExpectError(many, StatusCode::kDeadlineExceeded,
              {"1000 of 1000", ", 30, 31, ...]"});
  EXPECT_EQ(many.message().find("32"), std::string::npos);
}

// --- frames ---

TEST(WireTest, FramesAreReadAsTheyWereWritten) {
  const MemberHello hello{.world_size = 7,
                          .remaining_nanos = int64_t{1} << 40,
                          .on_master = true,
                          .address = *SocketAddress::Parse("fd00::2", 4321),
                          .name = "node\n1"};
  const FrameWriter frame = Write(hello);
  const auto read = ReadHello(frame.bytes());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->world_size, 7);
  EXPECT_EQ(read->remaining_nanos, int64_t{1} << 40);
  EXPECT_TRUE(read->on_master);
  EXPECT_EQ(read->address.ToString(), "[fd00::2]:4321");
  EXPECT_EQ(read->name, "node?1");

  const auto status = ReadStatus(Write(RankLost(5, "it went")).bytes());
  ASSERT_TRUE(status);
  EXPECT_EQ(status->ToString(), "RANK_LOST: it went");
  EXPECT_EQ(status->rank(), 5);
  const auto fine = ReadStatus(Write(Status()).bytes());
  ASSERT_TRUE(fine);
  EXPECT_OK(*fine);
}

TEST(WireTest, CutAndLongerFramesAreRefused) {
  const std::vector<HostEntry> table{{"a", Loopback(1), 0, 2},
                                     {"b", Loopback(2), 2, 1}};
  int self = 0;
  const auto expect_refused = [&](std::span<const std::byte> whole,
                                  const auto& reads) {
    EXPECT_TRUE(reads(whole));
    for (size_t size = 0; size < whole.size(); ++size) {
      EXPECT_FALSE(reads(whole.first(size))) << size;
    }
    std::vector<std::byte> longer(whole.begin(), whole.end());
    longer.push_back(std::byte{0});
    EXPECT_FALSE(reads(longer));
  };
  expect_refused(Write(MemberHello{.address = Loopback(), .name = "n"}).bytes(),
                 [](auto bytes) { return ReadHello(bytes).has_value(); });
  expect_refused(Write(Internal("x")).bytes(),
                 [](auto bytes) { return ReadStatus(bytes).has_value(); });
  expect_refused(WriteTable(table, 1).bytes(), [&](auto bytes) {
    return ReadTable(bytes, &self).has_value();
  });
  // Hosts that are not in the order of their ranks.
  EXPECT_FALSE(ReadTable(WriteTable({table[1], table[0]}, 0).bytes(), &self));
}

}  // namespace
}  // namespace shard::network::roster_test
