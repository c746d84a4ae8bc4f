// SPDX-License-Identifier: Apache-2.0
//
// The number type of the model.
//
// The model trains in float. check.c compares the same source with finite
// differences, compiled a second time with GPT_DOUBLE: in double the two agree
// to seven digits, where float leaves three and hides real mistakes. Both
// builds are in one program, so the second one needs other names.

#ifndef SHARD_SAMPLES_GPT_REAL_H_
#define SHARD_SAMPLES_GPT_REAL_H_

#include <cblas.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef GPT_DOUBLE

typedef double real;
#define real_gemm cblas_dgemm
#define real_sqrt sqrt
#define real_exp exp

#define attention_backward attention_backward_double
#define attention_forward attention_forward_double
#define cross_entropy_backward cross_entropy_backward_double
#define cross_entropy_forward cross_entropy_forward_double
#define embedding_backward embedding_backward_double
#define embedding_forward embedding_forward_double
#define gelu_backward gelu_backward_double
#define gelu_forward gelu_forward_double
#define gpt_backward gpt_backward_double
#define gpt_create gpt_create_double
#define gpt_forward gpt_forward_double
#define gpt_free gpt_free_double
#define gpt_initialize gpt_initialize_double
#define gpt_probabilities gpt_probabilities_double
#define layer_norm_backward layer_norm_backward_double
#define layer_norm_forward layer_norm_forward_double
#define linear_backward linear_backward_double
#define linear_forward linear_forward_double

#else

typedef float real;
#define real_gemm cblas_sgemm
#define real_sqrt sqrtf
#define real_exp fast_expf

// Returns e^x to a few 1e-7, relative, in operations that a compiler can
// vectorize: x = n ln 2 + r, |r| <= ln 2 / 2, Taylor's e^r, and n added to the
// exponent. Beyond +-87, where float ends, the result stays at its last value:
// a softmax does not notice, and a tanh has long been +-1.
static inline float fast_expf(float x) {
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

#endif

#endif  // SHARD_SAMPLES_GPT_REAL_H_
