// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_PATH_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_PATH_H_

#include <string>

#include "core/base/status.h"

namespace shard::network {

// The program's name.
inline constexpr char kHelperName[] = "shard-network";

// Returns the absolute path of the network helper: that which the environment's
// SHARD_NETWORK_HELPER names, else ../libexec/libshard/shard-network or
// shard-network, from the folder of libshard.so. kBackendUnavailable, with the
// paths tried, where there is none that can be executed. A program with more
// rights than its user ignores the environment.
StatusOr<std::string> HelperPath();

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_PATH_H_
