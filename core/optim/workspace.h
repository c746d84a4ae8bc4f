// SPDX-License-Identifier: Apache-2.0
//
// What optimizers of whole parameters work in: planned before it is allocated,
// and laid out the same way by what plans it and by what uses it.

#ifndef SHARD_CORE_OPTIM_WORKSPACE_H_
#define SHARD_CORE_OPTIM_WORKSPACE_H_

#include <cstdint>

#include "kernels/cpu/newton_schulz.h"
#include "kernels/formula/registry.h"

namespace shard {

// Workspaces begin at a multiple of this.
inline constexpr int64_t kWorkspaceElements =
    static_cast<int64_t>(kWorkspaceAlignment / sizeof(float));

constexpr int64_t AlignWorkspace(int64_t elements) {
  return (elements + kWorkspaceElements - 1) / kWorkspaceElements *
         kWorkspaceElements;
}

// How many matrices of this shape Muon steps at a time: several of those that
// are small, for which a call of the BLAS costs more than its work.
int64_t MuonBatch(int64_t rows, int64_t cols);

// fp32 elements for a step of a parameter of this shape: gradients (MuonBatch
// of them), each aligned, then what the kernel asks for. Saturates at
// 2^62 - 1; a parameter without elements needs none.
// REQUIRES: a tensor formula that fits the shape.
int64_t WorkspaceNumel(Formula formula, const int64_t* shape, int ndim);

}  // namespace shard

#endif  // SHARD_CORE_OPTIM_WORKSPACE_H_
