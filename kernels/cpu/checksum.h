// SPDX-License-Identifier: Apache-2.0
//
// XXH3 with 128 bits of large amounts of memory, alone or during a copy. Every
// instruction set gives the same value; AVX-512 and AVX2 are three times as
// fast as the SSE2 that every x86-64 has, and then a copy with a checksum takes
// 1.2 times as long as one without.
//
// Thread-safe.

#ifndef SHARD_KERNELS_CPU_CHECKSUM_H_
#define SHARD_KERNELS_CPU_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

namespace shard {

struct Xxh128 {
  uint64_t low;
  uint64_t high;
};

Xxh128 ChecksumBytes(const void* data, size_t bytes);

// Copies memory and returns its checksum. Reads each byte once: 1 byte read and
// 1 written per byte. A target that is large and aligned to 64 bytes is written
// past the caches. REQUIRES: the two do not overlap.
Xxh128 CopyAndChecksum(void* to, const void* from, size_t bytes);

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_CHECKSUM_H_
