// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/network_communicator.h"

#include <utility>

#include "core/comm/direct/bell.h"
#include "core/comm/direct/direct_communicator.h"
#include "core/comm/direct/group.h"
#include "core/comm/direct/link.h"

namespace shard::network {

std::shared_ptr<Communicator> MakeNetworkCommunicator(
    Met met, const std::string& description, const CommOptions& options) {
  const direct::Hosts& hosts = met.hosts;
  const int world_size = hosts.world_size();
  const std::shared_ptr<direct::ControlBlock> block(
      met.control,
      reinterpret_cast<direct::ControlBlock*>(met.control->data()));
  auto bell = std::make_shared<const direct::Bell>(block.get(), met.eventfd,
                                                   met.keeper);
  return std::make_shared<direct::DirectCommunicator>(
      std::make_shared<direct::Group>(
          block, std::move(met.membership), world_size, std::move(met.liveness),
          options.find_deadlocks_at_once, std::move(bell)),
      std::make_unique<HelperRegions>(std::move(met.keeper)), description,
      options,
      direct::Link{.direct = false,
                   .shares_host = hosts.count() < world_size,
                   .sums = met.sums},
      hosts);
}

}  // namespace shard::network
