// SPDX-License-Identifier: Apache-2.0
//
// Stores that bypass the caches, for memory that is only written: an ordinary
// store reads the line first. (AdamW with bf16 parameters and fp32 master
// weights: 28 bytes per element instead of 30.)

#if defined(SHARD_KERNELS_CPU_STREAM_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_STREAM_INL
#undef SHARD_KERNELS_CPU_STREAM_INL
#else
#define SHARD_KERNELS_CPU_STREAM_INL
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Copies `bytes` of a tile in the L1 cache. Ordinary stores write the lines
// that are written in part, and all lines if `to` is not at the start of one.
// The caller calls hwy::FlushStream before another thread reads the result.
HWY_INLINE void StreamCopy(const void* tile, void* to, size_t bytes) {
  constexpr size_t kLine = 64;
  const hn::CappedTag<uint8_t, kLine> d;
  const auto* source = static_cast<const uint8_t*>(tile);
  auto* target = static_cast<uint8_t*>(to);
  const bool aligned = reinterpret_cast<uintptr_t>(to) % kLine == 0;
  const size_t whole = aligned ? bytes - bytes % kLine : 0;
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    hn::Stream(hn::LoadU(d, source + i), d, target + i);
  }
  std::memcpy(target + whole, source + whole, bytes - whole);
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_STREAM_INL
