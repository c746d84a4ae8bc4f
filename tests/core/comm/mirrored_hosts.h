// SPDX-License-Identifier: Apache-2.0
//
// MirroredHosts: ranks that are threads of this process and act as if they were
// on several hosts. Each host has blocks of its own and a thread with a real
// Mirror; the links between the hosts are queues, which hold each message for a
// random time and keep the order, as a network does.

#ifndef SHARD_TESTS_CORE_COMM_MIRRORED_HOSTS_H_
#define SHARD_TESTS_CORE_COMM_MIRRORED_HOSTS_H_

#include <memory>
#include <vector>

#include "core/comm/communicator.h"
#include "core/comm/direct/host_chain.h"
#include "core/comm/direct/hosts.h"

namespace shard::testing {

class MirroredHosts {
 public:
  // `begins`: the first rank of each host, and the number of ranks.
  explicit MirroredHosts(
      std::vector<int> begins,
      direct::HostSums sums = direct::HostSums::kFewestBytes);
  // REQUIRES: all communicators are gone.
  ~MirroredHosts();

  // Opens the communicator of a rank, once. REQUIRES: the hosts are those of
  // HostBegins.
  std::shared_ptr<Communicator> Open(const CommOptions& options);

  // Cuts the links of a host.
  void Lose(int host);

  // Keep what a host sends to another one from here on, and let it come. Those
  // that are kept come in the order in which they were sent.
  void Hold(int from, int to);
  void Let(int from, int to);

  // Returns the bytes of tensors that left a host.
  size_t data_sent(int host) const;

 private:
  class Host;
  const direct::Hosts ranks_;
  const direct::HostSums sums_;
  std::vector<std::unique_ptr<Host>> hosts_;
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_COMM_MIRRORED_HOSTS_H_
