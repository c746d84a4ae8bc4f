// SPDX-License-Identifier: Apache-2.0
//
// Random numbers as pure functions of a key. There is no generator whose state
// must be kept: every rank can compute the numbers of any rank, and a batch
// does not depend on how many ranks share it.

#ifndef SHARD_SAMPLES_GPT_RANDOM_H_
#define SHARD_SAMPLES_GPT_RANDOM_H_

#include <math.h>
#include <stdint.h>

// Returns 64 random bits for (seed, stream, index): splitmix64's finalizer,
// three deep.
static inline uint64_t random_mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static inline uint64_t random_bits(uint64_t seed, uint64_t stream,
                                   uint64_t index) {
  return random_mix(random_mix(random_mix(seed) ^ stream) ^ index);
}

// Returns a uniform number in [0, 1).
static inline double random_uniform(uint64_t seed, uint64_t stream,
                                    uint64_t index) {
  return (double)(random_bits(seed, stream, index) >> 11) * 0x1p-53;
}

// Returns a standard normal number, by Box and Muller's transform.
static inline double random_normal(uint64_t seed, uint64_t stream,
                                   uint64_t index) {
  const double radius = 1.0 - random_uniform(seed, stream, 2 * index);
  const double angle = random_uniform(seed, stream, 2 * index + 1);
  return sqrt(-2.0 * log(radius)) * cos(6.283185307179586 * angle);
}

#endif  // SHARD_SAMPLES_GPT_RANDOM_H_
