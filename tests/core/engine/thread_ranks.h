// SPDX-License-Identifier: Apache-2.0
//
// Runs a test's body on N ranks, each a thread with its own communicator.

#ifndef SHARD_TESTS_CORE_ENGINE_THREAD_RANKS_H_
#define SHARD_TESTS_CORE_ENGINE_THREAD_RANKS_H_

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"

namespace shard {

// Runs `body(rank's communicator)` on every rank; returns when all have
// returned. EXPECT_ works in `body`; an ASSERT_ ends the body of that rank
// only. `link`: further parameters of the communicator's URL, such as
// "direct=0".
inline void RunThreadRanks(
    int world_size,
    const std::function<void(const std::shared_ptr<Communicator>&)>& body,
    double timeout = 30, const std::string& link = "") {
  static std::atomic<int> groups{0};
  const std::string url =
      StrCat("threads:", world_size, "?name=engine-", groups.fetch_add(1),
             link.empty() ? "" : "&", link);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      CommOptions options;
      options.rank = rank;
      options.world_size = world_size;
      options.timeout = timeout;
      auto comm = OpenCommunicator(url, options);
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      body(*comm);
      // Shutdown may fail where a body broke the group on purpose.
      (void)(*comm)->Shutdown(Deadline::After(timeout)).ok();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_THREAD_RANKS_H_
