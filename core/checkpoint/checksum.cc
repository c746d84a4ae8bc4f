// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace shard {

namespace {

Checksum From(const XXH128_hash_t& hash) { return {hash.low64, hash.high64}; }

}  // namespace

Checksum ChecksumOf(const void* data, size_t bytes) {
  return From(XXH3_128bits(data, bytes));
}

Checksum CopyWithChecksum(void* to, const void* from, size_t bytes) {
  // Small enough that the second reader finds the block in the first cache.
  constexpr size_t kBlock = 16 * 1024;
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(to);
  for (size_t at = 0; at < bytes; at += kBlock) {
    const size_t count = std::min(kBlock, bytes - at);
    XXH3_128bits_update(&state, source + at, count);
    std::memcpy(target + at, source + at, count);
  }
  return From(XXH3_128bits_digest(&state));
}

std::string ChecksumText(const Checksum& checksum) {
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx",
                static_cast<unsigned long long>(checksum.high),
                static_cast<unsigned long long>(checksum.low));
  return text;
}

}  // namespace shard
