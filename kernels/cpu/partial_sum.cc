// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/partial_sum.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu/block_sum.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/gradients.h"

namespace shard {

namespace {

// Blocks are widened on the stack, in the L1 cache.
constexpr size_t kPart = 1024;

}  // namespace

void ContinueSum(const float* sum, const void* const* sources,
                 size_t num_sources, bool zeros, DType dtype, size_t count,
                 float* out) {
  if (sum == nullptr || dtype == DType::kF32) {
    std::vector<const void*> all;
    all.reserve(num_sources + 1);
    if (sum != nullptr) all.push_back(sum);
    all.insert(all.end(), sources, sources + num_sources);
    SumSources(all.data(), all.size(), zeros, dtype, count, out, DType::kF32,
               /*add=*/false);
    return;
  }
  alignas(64) float so_far[kPart];
  alignas(64) float next[kPart];
  for (size_t begin = 0; begin < count; begin += kPart) {
    const size_t n = std::min(count - begin, kPart);
    std::copy_n(sum + begin, n, so_far);
    for (size_t i = 0; i < num_sources; ++i) {
      Widen(
          dtype,
          static_cast<const std::byte*>(sources[i]) + begin * DTypeSize(dtype),
          next, n);
      const void* const both[] = {so_far, next};
      SumGradients({both, 2, DType::kF32}, 0, n, /*scale=*/1,
                   std::numeric_limits<double>::infinity(), so_far);
    }
    for (size_t i = 0; zeros && i < n; ++i) so_far[i] += 0.0f;
    std::copy_n(so_far, n, out + begin);
  }
}

}  // namespace shard
