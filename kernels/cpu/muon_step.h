// SPDX-License-Identifier: Apache-2.0
//
// Muon's two passes over memory, on either side of Orthogonalize
// (kernels/cpu/newton_schulz.h), for the instruction set the processor has.
//
// Bytes per fp32 element: MuonMomentum 16, MuonApply 12.
//
// `hypers` are those of Muon (kernels/formula/muon.h). Pointers need no
// alignment; 64 bytes are fastest. Elements do not depend on one another: a
// matrix may be passed in parts.
//
// Thread-safe; disjoint ranges may run at once.

#ifndef SHARD_KERNELS_CPU_MUON_STEP_H_
#define SHARD_KERNELS_CPU_MUON_STEP_H_

#include <cstddef>
#include <cstdint>

namespace shard {

// Takes the gradient into the momentum buffer, and leaves in `gradient` the
// direction that is to be made orthogonal.
void MuonMomentum(const double* hypers, float* gradient, float* momentum_buffer,
                  size_t count);

// Weight decay, then the step along `direction`, the orthogonalized one. `rows`
// and `cols` are those of the whole matrix.
void MuonApply(const double* hypers, int64_t rows, int64_t cols,
               const float* direction, float* param, size_t count);

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_MUON_STEP_H_
