// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_COMM_NETWORK_OPEN_NETWORK_H_
#define SHARD_CORE_COMM_NETWORK_OPEN_NETWORK_H_

#include <memory>
#include <string>
#include <string_view>

#include "core/base/spec.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/comm/direct/host_chain.h"

namespace shard::network {

// How the ranks of several hosts meet.
struct NetworkOptions {
  // "tcp://host:port", where the master listens, or "file:/folder", where it
  // writes its address.
  std::string where;
  // Which job this is: ranks of another job do not meet these. The same on all
  // ranks.
  std::string job;
  int64_t restart = 0;  // Counts the starts of the job.
  double meet = 300;    // Seconds to meet.
  // The parameters that are the helper's, as a URL.
  std::string helper_url;
  // Another host than the machine, for tests that have several on one machine.
  std::string host;
  // Whether the helper is a process of its own; not so in tests alone.
  bool isolate = true;
  // How gradients are summed over hosts; the same on all ranks.
  direct::HostSums sums = direct::HostSums::kFewestBytes;
};

// Takes the parameters of a "tcp:" or "file:" URL from `spec`.
StatusOr<NetworkOptions> TakeNetworkOptions(std::string_view url, Spec* spec);

// Takes the parameters of such a URL that a launcher's environment does not
// have, and returns them as the tail of one: "&interface=eth1".
std::string TakePassedKeys(Spec* spec);

// Opens a communicator over hosts: starts the helper of this host, if no rank
// has, and meets the other ranks by it. COLLECTIVE. REQUIRES: rank, world size
// and observer of `options` are set.
StatusOr<std::shared_ptr<Communicator>> Open(const NetworkOptions& network,
                                             const std::string& description,
                                             const CommOptions& options);

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_OPEN_NETWORK_H_
