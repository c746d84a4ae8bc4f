// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/checksum.h"

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

std::string ChecksumText(const Checksum& checksum) {
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx",
                static_cast<unsigned long long>(checksum.high),
                static_cast<unsigned long long>(checksum.low));
  return text;
}

}  // namespace shard
