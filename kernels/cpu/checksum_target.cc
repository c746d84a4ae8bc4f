// SPDX-License-Identifier: Apache-2.0
//
// Compiled with options for a newer CPU than the program's. The linker must
// therefore not replace other code by a copy from here: every function is
// static or in the target's own namespace, and no template of the standard
// library is used.

#include "kernels/cpu/checksum_target.h"

#include <string.h>
#include <xxhash.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#ifndef SHARD_CHECKSUM_TARGET
#error "the target's name: see BUILD.bazel"
#endif

namespace shard {
namespace SHARD_CHECKSUM_TARGET {

namespace {

// A block that the checksum has just read is in the second-level cache when it
// is copied.
constexpr size_t kBlock = size_t{64} << 10;
// Smaller targets are read again soon, or do not matter.
constexpr size_t kLeastPastCaches = size_t{256} << 10;

Xxh128 From(const XXH128_hash_t& hash) { return {hash.low64, hash.high64}; }

// Copies past the caches. REQUIRES: `to` is aligned to 64 bytes.
void CopyPastCaches(void* to, const void* from, size_t bytes) {
  size_t i = 0;
#if defined(__AVX512F__)
  for (; i + 64 <= bytes; i += 64) {
    const auto* source = static_cast<const char*>(from) + i;
    auto* target = static_cast<char*>(to) + i;
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target),
                        _mm512_loadu_si512(source));
  }
#elif defined(__AVX2__)
  for (; i + 32 <= bytes; i += 32) {
    const auto* source = static_cast<const char*>(from) + i;
    auto* target = static_cast<char*>(to) + i;
    _mm256_stream_si256(
        reinterpret_cast<__m256i*>(target),
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
  }
#elif defined(__SSE2__)
  for (; i + 16 <= bytes; i += 16) {
    const auto* source = static_cast<const char*>(from) + i;
    auto* target = static_cast<char*>(to) + i;
    _mm_stream_si128(reinterpret_cast<__m128i*>(target),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
  }
#endif
  memcpy(static_cast<char*>(to) + i, static_cast<const char*>(from) + i,
         bytes - i);
}

// Orders streaming stores before all later stores.
void Fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace

Xxh128 ChecksumBytes(const void* data, size_t bytes) {
  return From(XXH3_128bits(data, bytes));
}

Xxh128 CopyAndChecksum(void* to, const void* from, size_t bytes) {
  const bool past_caches =
      bytes >= kLeastPastCaches && reinterpret_cast<uintptr_t>(to) % 64 == 0;
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  for (size_t at = 0; at < bytes; at += kBlock) {
    const size_t count = bytes - at < kBlock ? bytes - at : kBlock;
    const auto* source = static_cast<const char*>(from) + at;
    auto* target = static_cast<char*>(to) + at;
    XXH3_128bits_update(&state, source, count);
    if (past_caches) {
      CopyPastCaches(target, source, count);
    } else {
      memcpy(target, source, count);
    }
  }
  if (past_caches) Fence();
  return From(XXH3_128bits_digest(&state));
}

}  // namespace SHARD_CHECKSUM_TARGET
}  // namespace shard
