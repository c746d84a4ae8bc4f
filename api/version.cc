// SPDX-License-Identifier: Apache-2.0

#include "shard/shard.h"

#define SHARD_STRINGIFY_INNER(x) #x
#define SHARD_STRINGIFY(x) SHARD_STRINGIFY_INNER(x)

extern "C" {

const char* shard_version(void) noexcept {
  return SHARD_STRINGIFY(SHARD_VERSION_MAJOR) "." SHARD_STRINGIFY(
      SHARD_VERSION_MINOR) "." SHARD_STRINGIFY(SHARD_VERSION_PATCH);
}

// The number in the SONAME, which api/BUILD.bazel sets.
int32_t shard_abi_version(void) noexcept { return 0; }

}  // extern "C"
