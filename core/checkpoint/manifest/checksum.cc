// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/manifest/checksum.h"

#include <xxhash.h>

#include <cstdio>

#include "kernels/cpu/checksum.h"

namespace shard {

Checksum ChecksumOf(const void* data, size_t bytes) {
  const Xxh128 sum = ChecksumBytes(data, bytes);
  return {sum.low, sum.high};
}

Checksum CopyWithChecksum(void* to, const void* from, size_t bytes) {
  const Xxh128 sum = CopyAndChecksum(to, from, bytes);
  return {sum.low, sum.high};
}

struct ChecksumStream::State {
  XXH3_state_t xxh;
};

ChecksumStream::ChecksumStream() : state_(new State) {
  XXH3_128bits_reset(&state_->xxh);
}

ChecksumStream::~ChecksumStream() = default;

void ChecksumStream::Add(const void* data, size_t bytes) {
  XXH3_128bits_update(&state_->xxh, data, bytes);
}

Checksum ChecksumStream::Finish() const {
  const XXH128_hash_t sum = XXH3_128bits_digest(&state_->xxh);
  return {sum.low64, sum.high64};
}

std::string ChecksumText(const Checksum& checksum) {
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx",
                static_cast<unsigned long long>(checksum.high),
                static_cast<unsigned long long>(checksum.low));
  return text;
}

}  // namespace shard
