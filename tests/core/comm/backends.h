// SPDX-License-Identifier: Apache-2.0
//
// Runs one test body for every backend: N ranks as threads, as processes, as
// threads of hosts whose links are queues, or as processes of hosts with real
// helpers, sockets and Gloo.

#ifndef SHARD_TESTS_CORE_COMM_BACKENDS_H_
#define SHARD_TESTS_CORE_COMM_BACKENDS_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "tests/core/comm/mirrored_hosts.h"
#include "tests/core/comm/tcp_hosts.h"
#include "tests/ranks/ranks.h"

namespace shard::testing {

// The ranks of kHosts and kTcp meet in RunGroup, and have no URL of their own.
enum class Backend { kThreads, kShm, kHosts, kTcp };

inline std::string BackendName(Backend backend) {
  constexpr const char* kNames[] = {"threads", "shm", "hosts", "tcp"};
  return kNames[static_cast<int>(backend)];
}

inline bool HasProcesses(Backend backend) {
  return backend == Backend::kShm || backend == Backend::kTcp;
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
  if (!HasProcesses(backend)) {
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
  const std::string name = UniqueName();
  std::optional<TcpHosts> tcp;
  if (backend == Backend::kTcp) tcp.emplace(world_size);
  std::unique_ptr<MirroredHosts> hosts;
  if (backend == Backend::kHosts) {
    hosts = std::make_unique<MirroredHosts>(HostBegins(world_size));
  }
  RunEach(backend, world_size, [&](int rank) {
    const CommOptions options{.rank = rank, .world_size = world_size};
    if (tcp) {
      const Status entered = tcp->Enter(rank);
      ASSERT_TRUE(entered.ok()) << entered.ToString();
    }
    const std::string url =
        tcp ? tcp->Url(rank) : UrlFor(backend, name, world_size, parameters);
    auto comm =
        hosts != nullptr
            ? StatusOr<std::shared_ptr<Communicator>>(hosts->Open(options))
            : OpenCommunicator(url, options);
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
