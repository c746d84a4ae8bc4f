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

using RankBody = std::function<void(const std::shared_ptr<Communicator>&)>;

// Runs `body(rank's communicator)` on every rank; returns when all have
// returned. EXPECT_ works in `body`; an ASSERT_ ends the body of that rank
// only. Each rank opens with `options`, of which rank and world size are set.
// `link`: further parameters of the communicator's URL, such as "direct=0".
inline void RunThreadRanks(int world_size, const RankBody& body,
                           CommOptions options, const std::string& link = "") {
  static std::atomic<int> groups{0};
  const std::string url =
      StrCat("threads:", world_size, "?name=engine-", groups.fetch_add(1),
             link.empty() ? "" : "&", link);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, options, rank]() mutable {
      options.rank = rank;
      options.world_size = world_size;
      auto comm = OpenCommunicator(url, options);
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
