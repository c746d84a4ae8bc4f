// SPDX-License-Identifier: Apache-2.0
//
// The workspace of optimizers that step whole parameters, of a processor and of
// a GPU. A plan counts it before it is allocated; planner and engine compute
// the same layout.

#ifndef SHARD_CORE_OPTIM_WORKSPACE_H_
#define SHARD_CORE_OPTIM_WORKSPACE_H_

#include <cstddef>
#include <cstdint>

#include "core/base/rounding.h"
#include "kernels/cpu/newton_schulz.h"
#include "kernels/formula/registry.h"

namespace shard {

// Workspaces begin at a multiple of this many elements.
inline constexpr int64_t kWorkspaceElements =
    static_cast<int64_t>(kWorkspaceAlignment / sizeof(float));

constexpr int64_t AlignWorkspace(int64_t elements) {
  return RoundUp(elements, kWorkspaceElements);
}

// Returns how many matrices of this shape Muon steps at a time: several small
// ones, because a call of the BLAS would cost more than its work.
int64_t MuonBatch(int64_t rows, int64_t cols);

// The workspace of a batch of several matrices on a GPU is at most this large.
// A product is made in tiles of, say, 128 x 128 results, one after the other by
// each of a GPU's some 130 multiprocessors. A batch that needs more than half
// of this room has 205 to 1024 tiles in each product, with shapes up to 1 : 4:
// multiprocessors are at work for two thirds of the time or more. With half as
// much room it would be half of the time; with more, little would be gained for
// the memory.
inline constexpr size_t kGpuBatchBytes = size_t{256} << 20;

// Returns how many of `count` matrices of this shape, those that a rank owns in
// a flat buffer, Muon steps at a time on a GPU: as many as have room in
// kGpuBatchBytes, or fewer that make as few batches, and at least one.
// REQUIRES: count > 0, and a workspace of one matrix that can be counted.
int64_t GpuMuonBatch(int64_t rows, int64_t cols, int64_t count);

// Returns the fp32 elements for a step of a parameter of this shape: gradients
// (MuonBatch of them), each aligned, followed by the kernel's own workspace.
// Saturates at 2^62 - 1; 0 for a parameter without elements. REQUIRES: a tensor
// formula that fits the shape.
int64_t WorkspaceNumel(Formula formula, const int64_t* shape, int ndim);

// Returns the fp32 elements that a GPU needs for the steps of `count`
// parameters of this shape, those that a rank owns in a flat buffer: the
// matrices of GpuMuonBatch. Its kernels step the parameters of other formulas
// where they lie. Saturation, parameters without elements and requirements are
// those of WorkspaceNumel.
int64_t GpuWorkspaceNumel(Formula formula, const int64_t* shape, int ndim,
                          int64_t count);

}  // namespace shard

#endif  // SHARD_CORE_OPTIM_WORKSPACE_H_
