// SPDX-License-Identifier: Apache-2.0

#include "core/device/cpu/gradient_norm.h"

#include <algorithm>
#include <limits>

namespace shard::cpu {

namespace {

// Elements of a tile: few enough that two sources and the sum take less than
// half of an L1 cache of 32 KiB, enough that the calls cost little.
constexpr size_t kTile = 1024;

constexpr double kNoClip = std::numeric_limits<double>::infinity();

}  // namespace

void AddGradientsToNorm(NormType type, double p, double reference,
                        const GradientSources& sources, size_t begin,
                        size_t count, float* out, NormSum* sum) {
  float tile[kTile];
  for (size_t done = 0; done < count; done += kTile) {
    const size_t some = std::min(kTile, count - done);
    float* const to = out == nullptr ? tile : out + done;
    SumGradients(sources, begin + done, some, 1.0, kNoClip, to);
    AddToNorm(type, p, reference, to, some, sum);
  }
}

}  // namespace shard::cpu
