// SPDX-License-Identifier: Apache-2.0
//
// The communicator of ranks on several hosts: that of ranks which share memory
// (core/comm/direct), over blocks that the hosts' network helpers keep alike
// (helper/mirror.h). direct() is false: the ranks of a host share no memory of
// tensors but that of kPerHost.

#ifndef SHARD_CORE_COMM_NETWORK_NETWORK_COMMUNICATOR_H_
#define SHARD_CORE_COMM_NETWORK_NETWORK_COMMUNICATOR_H_

#include <memory>
#include <string>

#include "core/base/mapping.h"
#include "core/comm/communicator.h"
#include "core/comm/direct/host_chain.h"
#include "core/comm/direct/hosts.h"
#include "core/comm/direct/liveness.h"
#include "core/comm/direct/membership.h"
#include "core/comm/network/helper_regions.h"

namespace shard::network {

// A rank that has met the others.
struct Met {
  direct::Hosts hosts;
  // The ControlBlock of all ranks, and this rank's membership in it.
  std::shared_ptr<const Mapping> control;
  direct::Membership membership;
  // Wakes the helper, see direct::Bell. Owned by `keeper`.
  int eventfd;
  std::shared_ptr<RegionKeeper> keeper;
  // Tells whether the helper lives; without it the ranks of other hosts do not.
  std::shared_ptr<const direct::Liveness> liveness;
  direct::HostSums sums = direct::HostSums::kFewestBytes;
};

// REQUIRES: options.observer is not null.
std::shared_ptr<Communicator> MakeNetworkCommunicator(
    Met met, const std::string& description, const CommOptions& options);

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_NETWORK_COMMUNICATOR_H_
