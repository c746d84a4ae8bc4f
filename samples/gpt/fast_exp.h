// SPDX-License-Identifier: Apache-2.0
//
// The exponential of the float layers: one formula for processors and GPUs.

#ifndef SHARD_SAMPLES_GPT_FAST_EXP_H_
#define SHARD_SAMPLES_GPT_FAST_EXP_H_

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define GPT_ON_BOTH __host__ __device__
#else
#define GPT_ON_BOTH
#endif

// Returns e^x to a few 1e-7, relative, in operations that a compiler can
// vectorize: x = n ln 2 + r, |r| <= ln 2 / 2, Taylor's e^r, and n added to the
// exponent. Beyond +-87, where float ends, the result stays at its last value:
// a softmax does not notice, and a tanh has long been +-1.
GPT_ON_BOTH static inline float fast_expf(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 87.0f ? 87.0f : x;
  const int32_t n = (int32_t)(x * 1.44269504f + (x < 0.0f ? -0.5f : 0.5f));
  const float r = x - (float)n * 0.693147181f;
  const float e =
      1.0f +
      r * (1.0f +
           r * (1.0f / 2 +
                r * (1.0f / 6 +
                     r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720))))));
  const int32_t bits = (n + 127) << 23;
  float power;
  memcpy(&power, &bits, sizeof(power));
  return e * power;
}

#endif  // SHARD_SAMPLES_GPT_FAST_EXP_H_
