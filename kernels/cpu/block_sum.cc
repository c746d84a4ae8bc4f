// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/block_sum.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/gradients.h"

namespace shard {

namespace {

// Sums are formed on the stack, in the L1 cache.
constexpr size_t kChunk = 1024;

void Sum(const void* const* data, size_t sources, DType dtype, size_t begin,
         size_t count, float* out) {
  SumGradients({data, sources, dtype}, begin, count, /*scale=*/1,
               std::numeric_limits<double>::infinity(), out);
}

}  // namespace

void SumBlocks(const BlockSum& sum) {
  std::vector<const void*> sources;
  sources.reserve(static_cast<size_t>(sum.ranks));
  const auto* peer = static_cast<const std::byte*>(sum.peers);
  for (int i = 0; i < sum.ranks; ++i) {
    if (i != sum.own_index) {
      sources.push_back(peer);
      peer += sum.count * DTypeSize(sum.dtype);
    } else if (sum.own != nullptr) {
      sources.push_back(sum.own);
    }
  }
  SumSources(sources.data(), sources.size(), /*zeros=*/sum.own == nullptr,
             sum.dtype, sum.count, sum.recv, sum.recv_dtype, sum.add);
}

void SumSources(const void* const* sources, size_t num_sources, bool zeros,
                DType dtype, size_t count, void* recv, DType recv_dtype,
                bool add) {
  alignas(64) float sum[kChunk];
  alignas(64) float old[kChunk];
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const size_t n = std::min(count - begin, kChunk);
    std::byte* const to =
        static_cast<std::byte*>(recv) + begin * DTypeSize(recv_dtype);
    if (num_sources == 0) {
      std::fill_n(sum, n, 0.0f);
    } else {
      Sum(sources, num_sources, dtype, begin, n, sum);
    }
    // Adding zero turns -0 into 0, at any place in the sum.
    for (size_t i = 0; zeros && i < n; ++i) sum[i] += 0.0f;
    if (add) {
      Widen(recv_dtype, to, old, n);
      const void* const both[] = {old, sum};
      Sum(both, 2, DType::kF32, 0, n, sum);
    }
    Narrow(recv_dtype, sum, to, n, nullptr);
  }
}

}  // namespace shard
