// SPDX-License-Identifier: Apache-2.0

#include "core/optim/workspace.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/newton_schulz.h"
#include "kernels/cpu/tensor_step.h"
#include "kernels/cuda/equal_matrices.h"
#include "kernels/formula/shape.h"

namespace shard {

namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 2;

}  // namespace

int64_t MuonBatch(int64_t rows, int64_t cols) {
  return std::min(rows, cols) <= kBatchedSide ? kBatchedAtOnce : 1;
}

int64_t GpuMuonBatch(int64_t rows, int64_t cols, int64_t count) {
  const size_t one = cuda::EqualMatrices{rows, cols, 1}.workspace_bytes();
  const int64_t most =
      std::max<int64_t>(static_cast<int64_t>(kGpuBatchBytes / one), 1);
  const int64_t batches = (count + most - 1) / most;
  return (count + batches - 1) / batches;
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

int64_t GpuWorkspaceNumel(Formula formula, const int64_t* shape, int ndim,
                          int64_t count) {
  if (formula != Formula::kMuon) return 0;
  const int64_t numel = ShapeNumel(shape, ndim);
  if (numel == 0) return 0;
  if (numel > kMost / 128) return kMost;
  const cuda::EqualMatrices batch = {
      shape[0], shape[1],
      static_cast<size_t>(GpuMuonBatch(shape[0], shape[1], count))};
  return static_cast<int64_t>(batch.workspace_bytes() / sizeof(float));
}

}  // namespace shard
