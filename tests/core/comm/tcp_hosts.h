// SPDX-License-Identifier: Apache-2.0
//
// TcpHosts: several hosts on this machine, with real helpers, sockets and Gloo.

#ifndef SHARD_TESTS_CORE_COMM_TCP_HOSTS_H_
#define SHARD_TESTS_CORE_COMM_TCP_HOSTS_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fd.h"
#include "core/base/strings.h"
#include "tests/ranks/ranks.h"

namespace shard::testing {

// Returns the first rank of each host, and at the end the number of ranks: as
// many hosts as can be, of unequal size.
inline std::vector<int> HostBegins(int world_size) {
  std::vector<int> begins = {0};
  for (int size = 1; begins.back() < world_size; size = 3 - size) {
    begins.push_back(std::min(begins.back() + size, world_size));
  }
  return begins;
}

// The hosts of a group. The ranks, which are threads or processes, open their
// URLs while this exists. REQUIRES: the helper is in the test's `data`.
class TcpHosts {
 public:
  // `parameters` are further ones of the URL: "sums=chain".
  explicit TcpHosts(int world_size, const std::string& parameters = "")
      : TcpHosts(HostBegins(world_size), parameters) {}
  // `begins`: as HostBegins.
  explicit TcpHosts(std::vector<int> begins, const std::string& parameters = "")
      : begins_(std::move(begins)),
        parameters_(parameters),
        name_(UniqueName()) {
    if (std::getenv("SHARD_NETWORK_HELPER") == nullptr) {
      const std::string helper =
          std::filesystem::canonical("sdk/network/shard-network");
      ::setenv("SHARD_NETWORK_HELPER", helper.c_str(), 1);
    }
    HoldPort();
  }

  std::string Url(int rank) const {
    const auto host = std::upper_bound(begins_.begin(), begins_.end(), rank) -
                      begins_.begin();
    return StrCat("tcp://127.0.0.1:", port_, "?job=", name_, "&meet=30&host=h",
                  static_cast<int64_t>(host), parameters_.empty() ? "" : "&",
                  parameters_);
  }

 private:
  // Binds a port of loopback. The kernel gives it to nobody else then, but to
  // the master, which asks for it with SO_REUSEADDR, as this does.
  void HoldPort() {
    port_holder_.Reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    EXPECT_EQ(::setsockopt(port_holder_.get(), SOL_SOCKET, SO_REUSEADDR, &on,
                           sizeof(on)),
              0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(port_holder_.get(), any, size), 0);
    EXPECT_EQ(::getsockname(port_holder_.get(), any, &size), 0);
    port_ = ntohs(address.sin_port);
  }

  const std::vector<int> begins_;
  const std::string parameters_;
  const std::string name_;
  Fd port_holder_;
  int port_ = 0;
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_COMM_TCP_HOSTS_H_
