// SPDX-License-Identifier: Apache-2.0
//
// The argument of shard_fill, which does what Stream::Fill does for up to
// kMaxFillParts parts: it copies memory of the device, or fills it with zeros.
// Parts may differ much in size: warps share the chunks of all parts evenly.
//
// Bytes per byte: one read where it is copied, and one written. A lane accesses
// 16 at a time where both ends have the same alignment to 16, else 4. No
// scratch memory. Useful warps: FillArgs::num_chunks.

#ifndef SHARD_KERNELS_CUDA_FILL_H_
#define SHARD_KERNELS_CUDA_FILL_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace shard::cuda {

// As many as an argument of 4 KiB has room for.
inline constexpr uint32_t kMaxFillParts = 144;

// The bytes that a warp fills at a time.
inline constexpr uint64_t kFillChunk = 16384;

struct FillPart {
  void* to;
  const void* from;  // Null: zeros.
  uint64_t bytes;
};

// All zeros is an argument without parts.
struct FillArgs {
  uint32_t num_parts;
  uint32_t num_chunks;  // Of all parts.
  // The number of chunks of the parts before. Apart from `parts`, so that an
  // element has no padding.
  uint32_t first_chunks[kMaxFillParts];
  FillPart parts[kMaxFillParts];
};
static_assert(std::is_trivially_copyable_v<FillArgs>);
static_assert(sizeof(FillArgs) <= 4096);

// Adds a part; returns false, and adds nothing, where there is no room for it:
// then the part belongs into another launch. REQUIRES: parts do not overlap.
inline bool AddFillPart(const FillPart& part, FillArgs* args) {
  if (part.bytes == 0) return true;
  // Chunks end where the written address is a multiple of 16.
  const uint64_t bytes = reinterpret_cast<uintptr_t>(part.to) % 16 + part.bytes;
  const uint64_t chunks =
      args->num_chunks + (bytes + kFillChunk - 1) / kFillChunk;
  if (args->num_parts == kMaxFillParts || chunks > UINT32_MAX) return false;
  args->first_chunks[args->num_parts] = args->num_chunks;
  args->parts[args->num_parts++] = part;
  args->num_chunks = static_cast<uint32_t>(chunks);
  return true;
}

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_FILL_H_
