// SPDX-License-Identifier: Apache-2.0
//
// Roofs of kernels/cpu/tensor_step.h: the simplest loops that make the same
// passes over one parameter, compiled as those of roof.h. Each pass runs from
// the first element to the last. `zero` is 0, which the compiler does not know,
// so the values do not change.

#ifndef SHARD_TESTS_BENCH_TENSOR_ROOF_H_
#define SHARD_TESTS_BENCH_TENSOR_ROOF_H_

#include <cstddef>

namespace shard::bench {

// Moves 40 bytes per element: reads g, p, m, v and writes m, v; reads p, m, v
// and writes p.
void LambRoof(const float* g, float* p, float* m, float* v, size_t count,
              float zero);

// Moves 24 bytes per element: reads g; reads g, p; reads g, p and writes p.
void AdafactorRoof(const float* g, float* p, size_t count, float zero);

}  // namespace shard::bench

#endif  // SHARD_TESTS_BENCH_TENSOR_ROOF_H_
