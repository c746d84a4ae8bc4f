// SPDX-License-Identifier: Apache-2.0

#include "core/optim/workspace.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/newton_schulz.h"
#include "kernels/cpu/tensor_step.h"
#include "kernels/formula/shape.h"

namespace shard {

namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 2;

}  // namespace

int64_t MuonBatch(int64_t rows, int64_t cols) {
  return std::min(rows, cols) <= kBatchedSide ? kBatchedAtOnce : 1;
}

int64_t WorkspaceNumel(Formula formula, const int64_t* shape, int ndim) {
  const int64_t numel = ShapeNumel(shape, ndim);
  // A parameter without elements is never stepped.
  if (numel == 0) return 0;
  // The kernels' own workspaces are at most a small multiple of the parameter.
  if (numel > kMost / 128) return kMost;
  if (formula == Formula::kMuon) {
    const int64_t batch = MuonBatch(shape[0], shape[1]);
    return batch * AlignWorkspace(numel) +
           static_cast<int64_t>(
               OrthogonalizeWorkspace(batch, shape[0], shape[1]));
  }
  return AlignWorkspace(numel) +
         static_cast<int64_t>(TensorScratchElements(formula, shape, ndim));
}

}  // namespace shard
