// SPDX-License-Identifier: Apache-2.0
//
// Runs a test's body on N ranks, each a thread with its own communicator: they
// share memory, or, with SHARD_TEST_DEVICE=tcp, are on several hosts, which sum
// as SHARD_TEST_SUMS says, and have networks of their own with
// SHARD_TEST_HOSTS=namespaces.

#ifndef SHARD_TESTS_CORE_ENGINE_THREAD_RANKS_H_
#define SHARD_TESTS_CORE_ENGINE_THREAD_RANKS_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "tests/core/comm/tcp_hosts.h"
#include "tests/core/device/test_device.h"

namespace shard {

using RankBody = std::function<void(const std::shared_ptr<Communicator>&)>;

// Runs `body(rank's communicator)` on every rank; returns when all have
// returned. EXPECT_ works in `body`; an ASSERT_ ends the body of that rank
// only. Each rank opens with `options`, of which rank and world size are set.
// `link`: further parameters of the communicator's URL, such as "direct=0".
// With others than that the ranks are never on several hosts; those that
// results are compared with have "direct=1".
inline void RunThreadRanks(int world_size, const RankBody& body,
                           CommOptions options, const std::string& link = "") {
  static std::atomic<int> groups{0};
  const std::string url =
      StrCat("threads:", world_size, "?name=engine-", groups.fetch_add(1),
             link.empty() ? "" : "&", link);
  std::optional<testing::TcpHosts> hosts;
  if (testing::TestsAreOn("tcp") && (link.empty() || link == "direct=0")) {
    const char* const sums = std::getenv("SHARD_TEST_SUMS");
    hosts.emplace(world_size, sums != nullptr ? StrCat("sums=", sums) : "");
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, options, rank]() mutable {
      if (hosts) {
        const Status entered = hosts->Enter(rank);
        ASSERT_TRUE(entered.ok()) << entered.ToString();
      }
      options.rank = rank;
      options.world_size = world_size;
      auto comm = OpenCommunicator(hosts ? hosts->Url(rank) : url, options);
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      body(*comm);
      // Shutdown may fail where a body broke the group on purpose.
      (void)(*comm)->Shutdown(Deadline::After(options.timeout)).ok();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline void RunThreadRanks(int world_size, const RankBody& body,
                           double timeout = 30, const std::string& link = "") {
  CommOptions options;
  options.timeout = timeout;
  RunThreadRanks(world_size, body, options, link);
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_THREAD_RANKS_H_
