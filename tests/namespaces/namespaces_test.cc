// SPDX-License-Identifier: Apache-2.0

#include "tests/namespaces/namespaces.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/fd.h"
#include "core/base/status.h"
#include "tests/core/base/expect_status.h"

namespace shard::testing {
namespace {

constexpr int kPort = 7;

sockaddr_in AddressOf(int host) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  ::inet_pton(AF_INET, Namespaces::Address(host).c_str(), &address.sin_addr);
  return address;
}

struct Transfer {
  uint64_t bytes = 0;  // That came.
  double seconds = 0;
};

// Sends bytes from host 1 to host 0.
Transfer Send(const Namespaces& hosts, uint64_t bytes) {
  Fd listener;
  std::thread([&] {
    EXPECT_OK(hosts.Enter(0));
    listener.Reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = AddressOf(0);
    EXPECT_EQ(
        ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address),
               sizeof(address)),
        0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
  }).join();
  std::thread sender([&] {
    EXPECT_OK(hosts.Enter(1));
    const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = AddressOf(0);
    ASSERT_EQ(
        ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                  sizeof(address)),
        0);
    const std::vector<char> block(1 << 16);
    for (uint64_t sent = 0; sent < bytes; sent += block.size()) {
      ASSERT_EQ(::send(socket.get(), block.data(), block.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(block.size()));
    }
  });
  const Fd peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const auto begin = std::chrono::steady_clock::now();
  Transfer transfer;
  std::vector<char> block(1 << 16);
  for (ssize_t got = 1; got > 0; transfer.bytes += static_cast<uint64_t>(got)) {
    got = ::recv(peer.get(), block.data(), block.size(), 0);
    EXPECT_GE(got, 0);
  }
  transfer.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
  sender.join();
  return transfer;
}

class NamespacesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = Namespaces::Make(2);
    if (!made.ok()) {
      GTEST_SKIP() << "no network namespaces: " << made.status().ToString();
    }
    hosts_ = *std::move(made);
  }

  std::unique_ptr<Namespaces> hosts_;
};

TEST_F(NamespacesTest, WhatHostsSendIsCounted) {
  constexpr uint64_t kBytes = 16 << 20;
  const auto before = hosts_->CountTraffic(1);
  ASSERT_OK(before);
  EXPECT_EQ(Send(*hosts_, kBytes).bytes, kBytes);
  const auto after = hosts_->CountTraffic(1);
  ASSERT_OK(after);
  const uint64_t sent = after->sent - before->sent;
  EXPECT_GE(sent, kBytes);
  // Headers of 66 bytes for each packet of at least 1,448.
  EXPECT_LE(sent, kBytes + kBytes / 20 + 10'000);
  EXPECT_NEAR(
      static_cast<double>(after->payload_sent() - before->payload_sent()),
      static_cast<double>(kBytes), static_cast<double>(kBytes / 100));
  const auto received = hosts_->CountTraffic(0);
  ASSERT_OK(received);
  EXPECT_GE(received->received, kBytes);
}

TEST_F(NamespacesTest, ARateIsHeld) {
  if (const Status limited = hosts_->LimitRate(1, "200mbit"); !limited.ok()) {
    GTEST_SKIP() << "this kernel holds no rate: " << limited.ToString();
  }
  const Transfer transfer = Send(*hosts_, 8 << 20);
  // 8 MiB without the burst take 0.28 s.
  EXPECT_GT(transfer.seconds, 0.2);
}

TEST_F(NamespacesTest, ACutLinkLosesWhatIsSent) {
  std::thread([&] {
    EXPECT_OK(hosts_->CutLink(0));
    EXPECT_OK(hosts_->Enter(1));
    const Fd socket(
        ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const sockaddr_in address = AddressOf(0);
    EXPECT_EQ(
        ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                  sizeof(address)),
        -1);
    pollfd wait = {.fd = socket.get(), .events = POLLOUT, .revents = 0};
    // A host that is there would refuse at once.
    EXPECT_EQ(::poll(&wait, 1, 200), 0);
  }).join();
  ASSERT_OK(hosts_->JoinLink(0));
  EXPECT_EQ(Send(*hosts_, 1 << 16).bytes, 1u << 16);
}

TEST_F(NamespacesTest, ARelayDelaysPackets) {
  ASSERT_OK(hosts_->Relay(1, {.delay_seconds = 0.05}));
  const Transfer transfer = Send(*hosts_, 1 << 20);
  EXPECT_EQ(transfer.bytes, 1u << 20);
  // The first window of 10 packets goes, and the next ones after each answer
  // are twice as many: 7 round trips.
  EXPECT_GT(transfer.seconds, 0.3);
  EXPECT_LT(transfer.seconds, 10);
}

TEST_F(NamespacesTest, ARelayLosesPackets) {
  ASSERT_OK(hosts_->Relay(1, {.delay_seconds = 0.0005, .loss = 0.02}));
  const auto before = hosts_->CountTraffic(1);
  ASSERT_OK(before);
  constexpr uint64_t kBytes = 4 << 20;
  EXPECT_EQ(Send(*hosts_, kBytes).bytes, kBytes);
  const auto after = hosts_->CountTraffic(1);
  ASSERT_OK(after);
  // What was lost is sent again, beside headers of 66 bytes for 1,448.
  EXPECT_GT(static_cast<double>(after->sent - before->sent),
            1.055 * static_cast<double>(kBytes));
}

TEST_F(NamespacesTest, ARelayLosesLargePackets) {
  ASSERT_OK(hosts_->Relay(1, {.largest_packet = 1000}));
  EXPECT_EQ(Send(*hosts_, 0).bytes, 0u);
  std::thread([&] {
    ASSERT_OK(hosts_->Enter(1));
    const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    Fd receiver;
    std::thread([&] {
      ASSERT_OK(hosts_->Enter(0));
      receiver.Reset(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      const sockaddr_in address = AddressOf(0);
      ASSERT_EQ(
          ::bind(receiver.get(), reinterpret_cast<const sockaddr*>(&address),
                 sizeof(address)),
          0);
    }).join();
    const sockaddr_in address = AddressOf(0);
    const std::vector<char> bytes(1200);
    for (const size_t size : {size_t{1200}, size_t{900}}) {
      ASSERT_EQ(::sendto(socket.get(), bytes.data(), size, 0,
                         reinterpret_cast<const sockaddr*>(&address),
                         sizeof(address)),
                static_cast<ssize_t>(size));
    }
    // Packets keep their order: the first one was lost.
    std::vector<char> got(2000);
    EXPECT_EQ(::recv(receiver.get(), got.data(), got.size(), 0), 900);
  }).join();
}

}  // namespace
}  // namespace shard::testing
