// SPDX-License-Identifier: Apache-2.0
//
// Roofs: the simplest loops that move the same bytes as the kernel they are
// compared with. They are compiled with -O3 for AVX-512 and AVX2 as well, so
// that the compiler vectorizes them (-fopt-info-vec reports it).

#ifndef SHARD_TESTS_BENCH_ROOF_H_
#define SHARD_TESTS_BENCH_ROOF_H_

#include <cstddef>
#include <cstdint>

namespace shard::bench {

// Moves 32 bytes per element: reads g0, g1, p, m, v; writes p, m, v. `zero` is
// 0, which the compiler does not know, so the values do not change.
void AdamRoof(const float* g0, const float* g1, float* p, float* m, float* v,
              size_t count, float zero);

// Moves 12 + 8 num_states bytes per element: reads g, p and the states; writes
// p and the states. `zero` is 0, as for AdamRoof. REQUIRES: num_states <= 3.
void UpdateRoof(const float* g, float* p, float* const* states,
                size_t num_states, size_t count, float zero);

// Moves 28 bytes per element: reads g, master, m, v; writes master, m, v and,
// as bf16, p. `zero` is 0, as for AdamRoof.
void Bf16MasterRoof(const uint16_t* g, uint16_t* p, float* master, float* m,
                    float* v, size_t count, float zero);

// Moves 22 bytes per element: reads g, p (bf16), m, v; writes p, m, v.
void Bf16Roof(const uint16_t* g, uint16_t* p, float* m, float* v, size_t count,
              float zero);

// Moves 16 bytes per element: reads g, p and the codes m, v; writes p, m, v.
void Q8Roof(const float* g, float* p, uint8_t* m, uint8_t* v, size_t count,
            float zero);

// Moves 4 bytes per element: stores values that were just computed, as a
// backward pass does at its end. REQUIRES: count < 2^31.
void StoreRoof(float* out, size_t count, float scale);

// Moves 8 bytes per element: adds such values to the old ones.
void AddRoof(float* out, size_t count, float scale);

// Moves 12 bytes per element: reads g0, g1; writes sum.
void SumRoof(const float* g0, const float* g1, float* sum, size_t count);

// Moves 4 bytes per element: returns the sum of squares in double, in no
// particular order.
double SquaresRoof(const float* values, size_t count);

}  // namespace shard::bench

#endif  // SHARD_TESTS_BENCH_ROOF_H_
