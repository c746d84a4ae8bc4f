// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_TESTS_CORE_ENGINE_RUN_ON_HOSTS_H_
#define SHARD_TESTS_CORE_ENGINE_RUN_ON_HOSTS_H_

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/comm/mirrored_hosts.h"
#include "tests/core/comm/tcp_hosts.h"

namespace shard {

// Runs body(communicator) on every rank of hosts, which are queues or, with
// `helpers`, have real ones. `begins`: the first rank of each host, and the
// number of ranks. `ends`: whether the group is whole at the end.
inline void RunOnHosts(
    const std::vector<int>& begins, bool helpers,
    const std::function<void(const std::shared_ptr<Communicator>&)>& body,
    bool ends = true) {
  std::optional<testing::MirroredHosts> mirrored;
  std::optional<testing::TcpHosts> tcp;
  helpers ? void(tcp.emplace(begins)) : void(mirrored.emplace(begins));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < begins.back(); ++rank) {
    threads.emplace_back([&, rank] {
      const CommOptions options = {
          .rank = rank, .world_size = begins.back(), .timeout = 30};
      auto comm = tcp ? OpenCommunicator(tcp->Url(rank), options)
                      : StatusOr<std::shared_ptr<Communicator>>(
                            mirrored->Open(options));
      ASSERT_OK(comm);
      body(*comm);
      if (ends) EXPECT_OK((*comm)->Shutdown(Deadline::After(30)));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_RUN_ON_HOSTS_H_
