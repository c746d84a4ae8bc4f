// SPDX-License-Identifier: Apache-2.0
//
// Hosts with networks of their own for tests that look at them, and break them.

#ifndef SHARD_TESTS_CORE_COMM_NETWORK_NAMESPACE_HOSTS_H_
#define SHARD_TESTS_CORE_COMM_NETWORK_NAMESPACE_HOSTS_H_

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/types.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/namespaces/namespaces.h"

namespace shard::testing {

// Returns the host of a rank, where hosts begin at these ranks.
inline int HostOf(const std::vector<int>& begins, int rank) {
  return static_cast<int>(std::upper_bound(begins.begin(), begins.end(), rank) -
                          begins.begin()) -
         1;
}

inline bool IsHelper(pid_t pid) {
  std::error_code gone;
  const auto program = std::filesystem::read_symlink(
      StrCat("/proc/", int64_t{pid}, "/exe"), gone);
  return program.filename() == "shard-network";
}

// Returns the helper that runs on a host, or -1.
inline pid_t HelperOn(const Namespaces& hosts, int host) {
  for (const pid_t pid : hosts.Processes(host)) {
    if (IsHelper(pid)) return pid;
  }
  return -1;
}

// Skips its tests where this machine makes no hosts, and says why.
class NamespaceHostsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto made = Namespaces::Make(1);
    if (!made.ok()) {
      GTEST_SKIP() << "no network namespaces: " << made.status().ToString();
    }
    const std::string helper =
        std::filesystem::canonical("sdk/network/shard-network");
    ::setenv("SHARD_NETWORK_HELPER", helper.c_str(), 1);
  }

  // Makes the hosts anew.
  void MakeHosts(int hosts) {
    auto made = Namespaces::Make(hosts);
    ASSERT_OK(made);
    hosts_ = *std::move(made);
  }

  // Expects that all processes and sockets of a host end.
  void ExpectNothingLeft(int host) const {
    EXPECT_TRUE(ComesTrue([&] { return hosts_->Processes(host).empty(); }))
        << "processes are left on host " << host;
    // A process that ends leaves /proc before its sockets are closed.
    std::string sockets;
    EXPECT_TRUE(ComesTrue([&] {
      sockets = *hosts_->ListSockets(host);
      return sockets.empty();
    })) << "sockets are left on host "
        << host << ": " << sockets;
  }

  std::unique_ptr<Namespaces> hosts_;
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_COMM_NETWORK_NAMESPACE_HOSTS_H_
