// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/data/data_layout.h"

#include <algorithm>
#include <bit>
#include <cstdio>

namespace shard {

uint64_t SliceBytes(uint64_t total_bytes) {
  constexpr uint64_t kLeast = uint64_t{4} << 20;
  constexpr uint64_t kMostSlices = uint64_t{1} << 18;
  return std::clamp(std::bit_ceil(total_bytes / kMostSlices), kLeast,
                    kMaxSliceBytes);
}

void PlaceElements(int64_t begin, int64_t numel, size_t element_size,
                   uint32_t file, uint64_t slice_bytes, DataLayout* layout,
                   std::vector<Slice>* slices) {
  const auto most = static_cast<int64_t>(slice_bytes / element_size);
  for (const int64_t end = begin + numel; begin < end;) {
    const int64_t some = std::min(most, end - begin);
    const uint64_t bytes = static_cast<uint64_t>(some) * element_size;
    slices->push_back({begin, some, {file, layout->Add(bytes), bytes, {}}});
    begin += some;
  }
}

std::string DataFileName(uint32_t file) {
  char name[32];
  std::snprintf(name, sizeof(name), "data-%05u.bin", file);
  return name;
}

}  // namespace shard
