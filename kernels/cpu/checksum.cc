// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/checksum.h"

#include "kernels/cpu/checksum_target.h"

namespace shard {

namespace {

struct Functions {
  Xxh128 (*checksum)(const void* data, size_t bytes);
  Xxh128 (*copy)(void* to, const void* from, size_t bytes);
};

// The address sanitizer of gcc, with which a host may build, does not align
// xxHash's objects on the stack to the 64 bytes that AVX-512 loads need.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define SHARD_CHECKSUM_CHOOSES 1
#else
#define SHARD_CHECKSUM_CHOOSES 0
#endif

Functions Choose() {
#if SHARD_CHECKSUM_CHOOSES
  if (__builtin_cpu_supports("avx512f")) {
    return {&checksum_avx512::ChecksumBytes, &checksum_avx512::CopyAndChecksum};
  }
  if (__builtin_cpu_supports("avx2")) {
    return {&checksum_avx2::ChecksumBytes, &checksum_avx2::CopyAndChecksum};
  }
#endif
  return {&checksum_baseline::ChecksumBytes,
          &checksum_baseline::CopyAndChecksum};
}

const Functions& Chosen() {
  static const Functions chosen = Choose();
  return chosen;
}

}  // namespace

Xxh128 ChecksumBytes(const void* data, size_t bytes) {
  return Chosen().checksum(data, bytes);
}

Xxh128 CopyAndChecksum(void* to, const void* from, size_t bytes) {
  return Chosen().copy(to, from, bytes);
}

}  // namespace shard
