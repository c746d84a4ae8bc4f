// SPDX-License-Identifier: Apache-2.0

#include "core/device/cpu/norm_pass.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/gradients.h"
#include "kernels/cpu/norm.h"

namespace shard::cpu {

namespace {

// Elements of a tile: few enough that two sources and the sum take less than
// half of an L1 cache of 32 KiB, enough that the calls cost little.
constexpr size_t kTile = 1024;

constexpr double kNoClip = std::numeric_limits<double>::infinity();

}  // namespace

void AddToNorm(const UpdateList& list, size_t range, NormPass pass,
               const StepBlock& block, NormSum* sum) {
  const bool second = pass == NormPass::kSecond;
  if (second && !NeedsSecondPass(block)) return;
  const UpdateRange& given = list.ranges[range];
  const GradientSources sources = list.GradientsOf(given, second);
  const NormType type = NormTypeOf(block, pass);
  if (given.keeps_sum && sources.count == 1) {
    // Needs no sum: the values are summed already.
    shard::AddToNorm(type, block.norm_p, block.largest,
                     static_cast<const float*>(sources.data[0]), given.count,
                     sum);
    return;
  }
  auto* const kept =
      given.keeps_sum ? static_cast<float*>(given.own_grads) : nullptr;
  float tile[kTile];
  for (size_t done = 0; done < given.count; done += kTile) {
    const size_t some = std::min(kTile, given.count - done);
    float* const to = kept == nullptr ? tile : kept + done;
    SumGradients(sources, done, some, 1.0, kNoClip, to);
    shard::AddToNorm(type, block.norm_p, block.largest, to, some, sum);
  }
}

void FinishNorm(NormPass pass, const NormSum* sums, size_t count,
                StepBlock* block) {
  NormSum all = {};
  for (size_t i = 0; i < count; ++i) MergeNorm(sums[i], &all);
  shard::FinishNorm(pass, all, block);
}

}  // namespace shard::cpu
