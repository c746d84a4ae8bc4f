// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_SDK_NETWORK_SERVE_H_
#define SHARD_SDK_NETWORK_SERVE_H_

#include <functional>
#include <string_view>

#include "core/base/fd.h"
#include "core/base/status.h"
#include "shard/base.h"

#define SHARD_NETWORK_TEXT_INNER(x) #x
#define SHARD_NETWORK_TEXT(x) SHARD_NETWORK_TEXT_INNER(x)
// Tests make a helper of another version.
#ifndef SHARD_NETWORK_VERSION
#define SHARD_NETWORK_VERSION                                         \
  SHARD_NETWORK_TEXT(SHARD_VERSION_MAJOR)                             \
  "." SHARD_NETWORK_TEXT(SHARD_VERSION_MINOR) "." SHARD_NETWORK_TEXT( \
      SHARD_VERSION_PATCH)
#endif

namespace shard::network {

// The work of a network helper: serves the ranks that connect to `listening`,
// and returns when they are gone. `warn` takes lines for the log.
Status Serve(Fd listening, std::function<void(std::string_view)> warn);

}  // namespace shard::network

#endif  // SHARD_SDK_NETWORK_SERVE_H_
