// SPDX-License-Identifier: Apache-2.0

#include <cstddef>

#include "core/base/dtype.h"
#include "core/engine/step/update.h"
#include "core/engine/step/wide_param.h"
#include "core/optim/workspace.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cpu/muon_step.h"
#include "kernels/cpu/newton_schulz.h"
#include "kernels/formula/muon.h"

namespace shard {

namespace {

// Returns the slices of the range that are stepped.
const std::vector<RangeSlice>& SteppedSlices(const OwnedRange& range,
                                             const UpdateInput& input,
                                             std::vector<RangeSlice>* some) {
  if (input.param_steps == nullptr) return range.slices();
  for (const RangeSlice& slice : range.slices()) {
    if (StepOf(slice, input) != 0) some->push_back(slice);
  }
  return *some;
}

}  // namespace

uint64_t UpdateMatrices(const OwnedRange& range, const Optimizer& optimizer,
                        const UpdateInput& input, float* workspace,
                        Stream* stream) {
  const double* const hypers = optimizer.hypers().data();
  const GradientSources gradients = range.gradients(input.reduced);
  std::vector<RangeSlice> stepped;
  const std::vector<RangeSlice>& slices = SteppedSlices(range, input, &stepped);
  uint64_t bytes = 0;
  size_t end = 0;
  for (size_t begin = 0; begin < slices.size(); begin = end) {
    // Matrices of one shape are adjacent.
    const std::vector<int64_t>& shape = *slices[begin].shape;
    const auto most = static_cast<size_t>(MuonBatch(shape[0], shape[1]));
    for (end = begin + 1; end < slices.size() && end < begin + most; ++end) {
      if (*slices[end].shape != shape) break;
    }
    MatrixBatch batch;
    batch.first = workspace;
    batch.count = static_cast<int64_t>(end - begin);
    batch.rows = shape[0];
    batch.cols = shape[1];
    batch.stride = AlignWorkspace(static_cast<int64_t>(slices[begin].count));
    const auto direction_of = [&](size_t i) {
      return batch.first + static_cast<int64_t>(i - begin) * batch.stride;
    };
    float* const scratch =
        batch.first + static_cast<int64_t>(most) * batch.stride;
    float* const copy =
        workspace + WorkspaceNumel(optimizer.formula(), shape.data(), 2);

    for (size_t i = begin; i < end; ++i) {
      stream->SumGradients(gradients, slices[i].begin, slices[i].count,
                           input.scale, input.clip_value, direction_of(i));
      stream->MuonMomentum(
          hypers, direction_of(i),
          static_cast<float*>(range.state(0, slices[i].state_begins[0])),
          slices[i].count);
    }
    stream->Orthogonalize(batch, static_cast<int>(hypers[Muon::kNsSteps]),
                          hypers[Muon::kEps], scratch);
    for (size_t i = begin; i < end; ++i) {
      const WideParam param(range, slices[i], copy, stream);
      stream->MuonApply(hypers, batch.rows, batch.cols, direction_of(i),
                        param.data(), slices[i].count);
      param.Publish(input, stream);
      // Bytes of gradients and momentum (16) and of the update (12); the
      // products, which mostly stay in the caches, are left out.
      bytes += slices[i].count * (gradients.count * DTypeSize(gradients.dtype) +
                                  sizeof(float) + 16 + 12) +
               param.extra_bytes();
    }
  }
  return bytes;
}

}  // namespace shard
