// SPDX-License-Identifier: Apache-2.0
//
// Muon's two passes over memory, before and after Orthogonalize
// (kernels/cpu/newton_schulz.h), for the instruction set of the processor.
//
// Bytes per fp32 element: MuonMomentum 16, MuonApply 12.
//
// `scalars` are Muon's (FormulaScalars::data). Pointers need no alignment; 64
// bytes are fastest. Elements do not depend on one another: a matrix may be
// passed in parts.
//
// Thread-safe; disjoint ranges may run at once.

#ifndef SHARD_KERNELS_CPU_MUON_STEP_H_
#define SHARD_KERNELS_CPU_MUON_STEP_H_

#include <cstddef>
#include <cstdint>

namespace shard {

// Adds the gradient to the momentum buffer, and replaces `gradient` by the
// direction that is to be made orthogonal.
void MuonMomentum(const void* scalars, float* gradient, float* momentum_buffer,
                  size_t count);

// Applies weight decay, then the step along `direction`, which Orthogonalize
// has made. `rows` and `cols` are those of the whole matrix.
void MuonApply(const void* scalars, int64_t rows, int64_t cols,
               const float* direction, float* param, size_t count);

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_MUON_STEP_H_
