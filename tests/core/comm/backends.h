// SPDX-License-Identifier: Apache-2.0
//
// Runs one test body for every backend: N ranks as threads or as processes.

#ifndef SHARD_TESTS_CORE_COMM_BACKENDS_H_
#define SHARD_TESTS_CORE_COMM_BACKENDS_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "tests/ranks/ranks.h"

namespace shard::testing {

enum class Backend { kThreads, kShm };

inline std::string BackendName(Backend backend) {
  return backend == Backend::kThreads ? "threads" : "shm";
}

// Returns the URL of a group. An example of `parameters` is "direct=0&delay=1".
inline std::string UrlFor(Backend backend, const std::string& name,
                          int world_size, const std::string& parameters = "") {
  return backend == Backend::kThreads
             ? StrCat("threads:", world_size, "?name=", name,
                      parameters.empty() ? "" : "&", parameters)
             : StrCat("shm:", name, parameters.empty() ? "" : "?", parameters);
}

inline Deadline Soon() { return Deadline::After(30); }

// Runs body(rank) on every rank. All ranks have the same `name`.
inline void RunEach(Backend backend, int world_size,
                    const std::function<void(int rank)>& body) {
  if (backend == Backend::kThreads) {
    std::vector<std::thread> threads;
    for (int r = 0; r < world_size; ++r) {
      threads.emplace_back([&body, r] { body(r); });
    }
    for (std::thread& thread : threads) thread.join();
    return;
  }
  ExpectAllPassed(
      RunRanks(world_size, [&](const Rank& rank) { body(rank.rank()); }));
}

// Opens a group and runs body(communicator) on every rank. Shuts the group down
// when `shutdown` is set. `parameters` are those of the URL.
inline void RunGroup(Backend backend, int world_size,
                     const std::function<void(Communicator*)>& body,
                     bool shutdown = true, const std::string& parameters = "") {
  const std::string url = UrlFor(backend, UniqueName(), world_size, parameters);
  RunEach(backend, world_size, [&](int rank) {
    auto comm = OpenCommunicator(url, {.rank = rank, .world_size = world_size});
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    body(comm->get());
    if (shutdown) {
      const Status last = (*comm)->Shutdown(Soon());
      EXPECT_TRUE(last.ok()) << last.ToString();
    }
  });
}

#define SHARD_EXPECT_OK(expression)                                  \
  do {                                                               \
    const ::shard::Status shard_expected_ = (expression);            \
    EXPECT_TRUE(shard_expected_.ok()) << shard_expected_.ToString(); \
  } while (false)

#define SHARD_ASSERT_OK(expression)                                  \
  do {                                                               \
    const ::shard::Status shard_expected_ = (expression);            \
    ASSERT_TRUE(shard_expected_.ok()) << shard_expected_.ToString(); \
  } while (false)

inline ::testing::AssertionResult Contains(const std::string& text,
                                           const std::string& part) {
  if (text.find(part) != std::string::npos) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "'" << text << "' does not contain '" << part << "'";
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_COMM_BACKENDS_H_
