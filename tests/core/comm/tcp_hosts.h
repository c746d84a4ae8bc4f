// SPDX-License-Identifier: Apache-2.0
//
// TcpHosts: several hosts on this machine, with real helpers, sockets and Gloo.
//
// They are helpers with other names, which meet on loopback. Where
// SHARD_TEST_HOSTS is "namespaces", each has a network of its own
// (tests/namespaces), and the numbers of their ranks differ from group to
// group. Where this machine cannot make these, the program's tests are skipped,
// and say why.

#ifndef SHARD_TESTS_CORE_COMM_TCP_HOSTS_H_
#define SHARD_TESTS_CORE_COMM_TCP_HOSTS_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fd.h"
#include "core/base/status.h"

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

// Whether hosts have networks of their own.
bool HostsAreNamespaces();

// The hosts of a group. The ranks, which are threads or processes, open their
// URLs while this exists. REQUIRES: the helper is in the test's `data`; where
// hosts have networks, the process has one thread when it makes the first
// group.
class TcpHosts {
 public:
  // `parameters` are further ones of the URL: "sums=chain".
  explicit TcpHosts(int world_size, const std::string& parameters = "");
  // `begins`: as HostBegins.
  explicit TcpHosts(std::vector<int> begins,
                    const std::string& parameters = "");

  // Moves the calling thread, which is to be that rank, to its host.
  Status Enter(int rank) const;

  // Returns what comes before a command that a shell is to run as a rank: "" or
  // "nsenter --net=... ".
  std::string CommandPrefix(int rank) const;

  std::string Url(int rank) const;

  // Returns the numbers of the hosts' ranks: "1+2+1".
  std::string Shape() const;

 private:
  int HostOf(int rank) const;
  void HoldPort();

  const std::vector<int> begins_;
  const std::string parameters_;  // "&sums=chain"
  const std::string name_;
  Fd port_holder_;
  int port_ = 0;
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_COMM_TCP_HOSTS_H_
