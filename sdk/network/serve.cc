// SPDX-License-Identifier: Apache-2.0

#include "sdk/network/serve.h"

#include <memory>
#include <utility>

#include "core/comm/network/helper/host_helper.h"
#include "core/comm/network/helper/loop.h"

namespace shard::network {

Status Serve(Fd listening, std::function<void(std::string_view)> warn) {
  SHARD_ASSIGN_OR_RETURN(const auto loop, Loop::Create());
  SHARD_ASSIGN_OR_RETURN(
      const auto host,
      HostHelper::Create(std::move(listening), loop.get(),
                         SHARD_NETWORK_VERSION, std::move(warn)));
  return loop->Run();
}

}  // namespace shard::network
