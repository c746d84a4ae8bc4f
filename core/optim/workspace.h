// SPDX-License-Identifier: Apache-2.0
//
// The workspace of optimizers that step whole parameters. A plan counts it
// before it is allocated; planner and engine compute the same layout.

#ifndef SHARD_CORE_OPTIM_WORKSPACE_H_
#define SHARD_CORE_OPTIM_WORKSPACE_H_

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

// Returns the fp32 elements for a step of a parameter of this shape: gradients
// (MuonBatch of them), each aligned, followed by the kernel's own workspace.
// Saturates at 2^62 - 1; 0 for a parameter without elements. REQUIRES: a tensor
// formula that fits the shape.
int64_t WorkspaceNumel(Formula formula, const int64_t* shape, int ndim);

}  // namespace shard

#endif  // SHARD_CORE_OPTIM_WORKSPACE_H_
