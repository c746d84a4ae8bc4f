// SPDX-License-Identifier: Apache-2.0
//
// A Mirror and what another host may tell it of memory: the test plays the
// other host.

#include "core/comm/network/helper/mirror.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/base/mapping.h"
#include "core/comm/direct/call.h"
#include "core/comm/direct/shipments.h"

namespace shard::network::mirror_test {
namespace {

// Ranks 0 and 1 are on host 0, the mirror's; 2 and 3 on host 1.
constexpr int kRanks = 4;
constexpr uint64_t kRegionBytes = 4096;

class CountingLinks final : public HostLinks {
 public:
  void Send(int, std::span<const std::byte> head,
            std::span<const std::byte>) override {
    FailureMessage failure{};
    if (head.size() != sizeof(failure)) return;
    std::memcpy(&failure, head.data(), sizeof(failure));
    if (failure.kind == MirrorKind::kFailure) failures.push_back(failure);
  }
  void SendData(int, const std::byte* data, size_t,
                std::shared_ptr<const void>) override {
    sent.push_back(data);
  }
  void ReceiveData(int, std::byte* data, size_t,
                   std::function<void()> when_done) override {
    received.push_back(data);
    done.push_back(std::move(when_done));
  }

  std::vector<FailureMessage> failures;  // That were sent.
  std::vector<const std::byte*> sent;
  std::vector<const std::byte*> received;
  std::vector<std::function<void()>> done;
};

std::shared_ptr<const Mapping> MakeMemory(size_t bytes) {
  return std::make_shared<const Mapping>(*Mapping::Anonymous(bytes));
}

class MirrorTest : public ::testing::Test {
 protected:
  MirrorTest() { EXPECT_TRUE(mirror_.AddStaging("", staging_).ok()); }

  static direct::Shipments Shipping(uint64_t offset, uint64_t bytes, int host) {
    direct::Shipments shipments;
    EXPECT_TRUE(shipments.Add({offset, bytes, host, host + 1}));
    return shipments;
  }

  // Receives the first round of `rank`, which ships data to host 0.
  Status ReceiveRound(int rank, uint64_t offset, uint64_t bytes) {
    const RoundMessage head{
        MirrorKind::kRound, rank, IdOfOrigin(), 1,
        direct::FingerprintOf({direct::Operation::kBroadcast, "data"}, 0)};
    const direct::Shipments shipments = Shipping(offset, bytes, 0);
    std::vector<std::byte> message(sizeof(head) + shipments.bytes());
    std::memcpy(message.data(), &head, sizeof(head));
    std::memcpy(message.data() + sizeof(head), &shipments, shipments.bytes());
    return mirror_.Receive(1, message);
  }

  static direct::BlockView ViewOf(const Mapping& memory) {
    return {reinterpret_cast<direct::ControlBlock*>(memory.data()), kRanks};
  }

  // Enters the first round of `rank`, of this host, which ships to host 1.
  void EnterRound(int rank, uint64_t offset, uint64_t bytes) {
    const direct::BlockView view = ViewOf(*memory_);
    direct::Cell& cell = view.cell(rank, 1);
    direct::StoreCall(
        direct::FingerprintOf({direct::Operation::kBroadcast, "data"}, 0),
        &cell);
    const direct::Shipments shipments = Shipping(offset, bytes, 1);
    cell.payload_bytes = shipments.bytes();
    cell.order = 1;
    std::memcpy(cell.payload(), &shipments, shipments.bytes());
    view.slot(rank).arrived = 1;
  }

  const std::byte* region(int rank) const {
    return staging_->data() + static_cast<uint64_t>(rank) * kRegionBytes;
  }

  const std::shared_ptr<const Mapping> memory_ =
      MakeMemory(direct::ControlBlock::Bytes(kRanks));
  const std::shared_ptr<const Mapping> staging_ =
      MakeMemory(kRanks * kRegionBytes);
  CountingLinks links_;
  Mirror mirror_{direct::Hosts({0, 2, 4}), 0, memory_, &links_};

  // Ends a block after `completed` rounds, as `rank` does.
  static void End(const Mapping& memory, uint64_t completed, int rank) {
    ViewOf(memory).block->state = direct::State{completed, rank}.Pack();
  }
  static bool HasEnded(const Mapping& memory) {
    return direct::State::Unpack(ViewOf(memory).block->state).failer >= 0;
  }

  // The hash of the origin's key, which is empty.
  static uint64_t IdOfOrigin() { return 0x2d06800538d394c2; }
};

TEST_F(MirrorTest, AShipmentFillsTheRegionOfItsRank) {
  const Status received = ReceiveRound(2, 2 * kRegionBytes, kRegionBytes);
  EXPECT_TRUE(received.ok()) << received.ToString();
  const Status end = ReceiveRound(3, 4 * kRegionBytes - 8, 8);
  EXPECT_TRUE(end.ok()) << end.ToString();
  ASSERT_EQ(links_.received.size(), 2u);
  EXPECT_EQ(links_.received[0], region(2));
  EXPECT_EQ(links_.received[1], region(4) - 8);
}

TEST_F(MirrorTest, AHostWritesIntoNoRegionOfAnotherRank) {
  const std::vector<std::pair<uint64_t, uint64_t>> wrong = {
      {0, 8},                                // Rank 0's, of this host.
      {2 * kRegionBytes - 8, 8},             // Rank 1's.
      {2 * kRegionBytes - 8, 16},            // Begins there.
      {2 * kRegionBytes, kRegionBytes + 1},  // Ends in rank 3's.
      {3 * kRegionBytes, 8},                 // Rank 3's, of the same host.
      {3 * kRegionBytes, 8 - kRegionBytes},  // Wraps around.
      {4 * kRegionBytes, 8},                 // Beyond all.
  };
  for (const auto& [offset, bytes] : wrong) {
    const Status status = ReceiveRound(2, offset, bytes);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument)
        << offset << ", " << bytes << ": " << status.ToString();
  }
  EXPECT_TRUE(links_.received.empty());
}

// The origin ends because another block has, where the error is found.
TEST_F(MirrorTest, TheOriginsFailureIsSentLast) {
  const auto memory = MakeMemory(direct::ControlBlock::Bytes(kRanks));
  ASSERT_TRUE(mirror_.AddBlock("other", memory, direct::kRoundCells).ok());
  End(*memory, 0, 1);
  End(*memory_, 0, 1);
  EXPECT_TRUE(mirror_.Scan());
  ASSERT_EQ(links_.failures.size(), 2u);
  EXPECT_NE(links_.failures[0].block, IdOfOrigin());
  EXPECT_EQ(links_.failures[1].block, IdOfOrigin());
}

TEST_F(MirrorTest, AFailureWaitsForRoundsAndForThoseBeforeIt) {
  const auto memory = MakeMemory(direct::ControlBlock::Bytes(kRanks));
  ASSERT_TRUE(mirror_.AddBlock("other", memory, direct::kRoundCells).ok());
  // Learns the number of the block.
  End(*memory, 0, 1);
  EXPECT_TRUE(mirror_.Scan());
  ASSERT_EQ(links_.failures.size(), 1u);
  ViewOf(*memory).block->state = 0;
  FailureMessage failure{MirrorKind::kFailure,
                         2,
                         links_.failures[0].block,
                         /*completed=*/1,
                         {}};
  const auto receive = [&] {
    EXPECT_TRUE(mirror_.Receive(1, std::as_bytes(std::span(&failure, 1))).ok());
  };
  receive();
  failure.block = IdOfOrigin();
  failure.completed = 0;
  receive();
  EXPECT_FALSE(HasEnded(*memory));
  EXPECT_FALSE(HasEnded(*memory_));
  for (int r = 0; r < kRanks; ++r) ViewOf(*memory).slot(r).arrived = 1;
  EXPECT_TRUE(ReceiveRound(2, 2 * kRegionBytes, 8).ok());
  links_.done.back()();
  EXPECT_TRUE(HasEnded(*memory));
  EXPECT_TRUE(HasEnded(*memory_));
}

TEST_F(MirrorTest, MemoryOfAnotherRankIsNotSent) {
  EnterRound(0, 0, kRegionBytes);
  EnterRound(1, 0, 8);
  EXPECT_TRUE(mirror_.Scan());
  ASSERT_EQ(links_.sent.size(), 1u);
  EXPECT_EQ(links_.sent[0], region(0));
}

}  // namespace
}  // namespace shard::network::mirror_test
