// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/address.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/core/comm/network/helper/helper_testing.h"

namespace shard::network::address_test {
namespace {

std::string Parsed(std::string_view text) {
  const auto result = ParseHostAndPort(text);
  return result.ok() ? StrCat(result->host, " ", result->port)
                     : result.status().message();
}

TEST(AddressTest, HostsAndPortsAreParsed) {
  EXPECT_EQ(Parsed("node-1:29500"), "node-1 29500");
  EXPECT_EQ(Parsed("10.0.0.2:1"), "10.0.0.2 1");
  EXPECT_EQ(Parsed("[fd00::2]:65535"), "fd00::2 65535");
  for (const char* wrong :
       {"node-1", "node-1:", "node-1:0", "node-1:65536", "node-1:x", ":29500",
        "[]:1", "fd00::2:29500", "[fd00::2:29500", ""}) {
    ExpectInvalid(ParseHostAndPort(wrong), {"HOST:PORT"});
  }
}

TEST(AddressTest, AddressesKeepTheirFormOnTheWire) {
  for (const char* text : {"10.0.0.2", "127.0.0.1", "fd00::2", "::1"}) {
    const auto address = SocketAddress::Parse(text, 29500);
    ASSERT_OK(address);
    EXPECT_EQ(address->HostText(), text);
    const SocketAddress read = SocketAddress::FromWire(address->ToWire());
    EXPECT_EQ(read.ToString(), address->ToString());
    EXPECT_TRUE(read.SameHost(*address));
  }
  EXPECT_EQ(SocketAddress::Parse("fd00::2", 7)->ToString(), "[fd00::2]:7");
  EXPECT_TRUE(SocketAddress::Parse("127.9.9.9", 0)->loopback());
  EXPECT_TRUE(SocketAddress::Parse("::1", 0)->loopback());
  EXPECT_FALSE(SocketAddress::Parse("128.0.0.1", 0)->loopback());
  for (const char* wildcard : {"0.0.0.0", "::", "::ffff:0.0.0.0"}) {
    EXPECT_TRUE(SocketAddress::Parse(wildcard, 0)->wildcard()) << wildcard;
    ExpectInvalid(ListenAt(*SocketAddress::Parse(wildcard, 0)),
                  {"every interface"});
  }
  ExpectInvalid(SocketAddress::Parse("localhost", 0), {"localhost"});
}

TEST(AddressTest, ErrorsOfListeningAreNamed) {
  const auto first = ListenAt(Loopback());
  ASSERT_OK(first);
  const SocketAddress taken = *SocketAddress::OfSocket(first->get());
  ExpectError(
      ListenAt(taken), StatusCode::kAlreadyExists,
      {StrCat("port ", taken.port(), " of 127.0.0.1 is taken"), "ss -ltnp"});
  // An address for documentation that no host has.
  ExpectError(ListenAt(*SocketAddress::Parse("203.0.113.77", 29500)),
              StatusCode::kNotFound, {"203.0.113.77 is not an address of"});
}

TEST(LocalAddressTest, IsTheOneTowardsTheMasterOrTheChosenOne) {
  const auto towards = ChooseLocalAddress({}, Loopback(29500));
  ASSERT_OK(towards);
  EXPECT_EQ(towards->ToString(), "127.0.0.1:0");
  const auto chosen = ChooseLocalAddress({.address = "127.0.0.2"}, Loopback());
  ASSERT_OK(chosen);
  EXPECT_EQ(chosen->ToString(), "127.0.0.2:0");
  const auto interface = ChooseLocalAddress({.interface = "lo"}, Loopback());
  ASSERT_OK(interface);
  EXPECT_EQ(interface->ToString(), "127.0.0.1:0");
  if (HasIpv6()) {
    EXPECT_EQ(
        ChooseLocalAddress({.interface = "lo"}, *SocketAddress::Parse("::1", 1))
            ->ToString(),
        "[::1]:0");
  }
}

TEST(LocalAddressTest, WrongChoicesAreErrors) {
  ExpectInvalid(ChooseLocalAddress({.interface = "lo", .address = "127.0.0.1"},
                                   Loopback()),
                {"both interface=lo and address=127.0.0.1"});
  ExpectError(ChooseLocalAddress({.interface = "nope7"}, Loopback()),
              StatusCode::kNotFound, {"no interface nope7; it has ", "lo"});
  ExpectError(ChooseLocalAddress({.address = "203.0.113.77"}, Loopback()),
              StatusCode::kNotFound,
              {"address=203.0.113.77 is not an address of this host"});
  ExpectInvalid(ChooseLocalAddress({.address = "0.0.0.0"}, Loopback()),
                {"of all interfaces"});
  ExpectInvalid(ChooseLocalAddress({.address = "node-1"}, Loopback()),
                {"\"node-1\" is no IPv4 or IPv6 address"});
}

// --- names ---

struct Lookup {
  explicit Lookup(const std::string& host, double seconds = 30,
                  Resolution::Resolver resolver = nullptr)
      : loop(MakeLoop()) {
    auto started = Resolution::Start(
        loop.get(), host, 29500, Deadline::After(seconds),
        [this](Resolution::Addresses addresses) {
          result = std::move(addresses);
          resolution = nullptr;  // A callback may.
        },
        std::move(resolver));
    EXPECT_OK(started);
    resolution = *std::move(started);
  }
  Resolution::Addresses Wait() {
    EXPECT_TRUE(RunUntil(loop.get(), [this] { return result.has_value(); }));
    return *result;
  }
  std::unique_ptr<Loop> loop;
  std::unique_ptr<Resolution> resolution;
  std::optional<Resolution::Addresses> result;
};

TEST(ResolutionTest, NamesAndAddressesAreResolved) {
  const auto numeric = Lookup("127.0.0.1").Wait();
  ASSERT_OK(numeric);
  EXPECT_EQ((*numeric)[0].ToString(), "127.0.0.1:29500");
  const auto name = Lookup("localhost").Wait();
  ASSERT_OK(name);
  EXPECT_TRUE((*name)[0].loopback());
  EXPECT_EQ((*name)[0].port(), 29500);
}

TEST(ResolutionTest, AnUnknownNameIsNamed) {
  const auto result = Lookup("no-such-host.invalid").Wait();
  // Without a network the resolver cannot know that there is none.
  EXPECT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("no-such-host.invalid"),
            std::string::npos);
}

// A resolver that hangs, until the test is over.
TEST(ResolutionTest, AHangingResolverDoesNotHangTheLoop) {
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
    int left = 0;
  };
  const auto gate = std::make_shared<Gate>();
  const auto hang = [gate](const std::string&,
                           uint16_t) -> Resolution::Addresses {
    std::unique_lock lock(gate->mutex);
    gate->changed.wait(lock, [&] { return gate->open; });
    ++gate->left;
    gate->changed.notify_all();
    return std::vector<SocketAddress>{Loopback()};
  };
  Lookup lookup("name", 0.1, hang);
  ExpectError(lookup.Wait(), StatusCode::kDeadlineExceeded,
              {"resolving the name name took more than 0.1 s"});
  {
    // Its loop and its handle go before the resolver returns.
    Lookup gone("name", 30, hang);
  }
  std::unique_lock lock(gate->mutex);
  gate->open = true;
  gate->changed.notify_all();
  gate->changed.wait(lock, [&] { return gate->left == 2; });
}

}  // namespace
}  // namespace shard::network::address_test
