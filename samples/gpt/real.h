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

#include "samples/gpt/fast_exp.h"

#ifdef GPT_DOUBLE

typedef double real;
#define real_gemm cblas_dgemm
#define real_sqrt sqrt
#define real_exp exp

#define cpu_layers cpu_layers_double
#define gpt_backward gpt_backward_double
#define gpt_create gpt_create_double
#define gpt_forward gpt_forward_double
#define gpt_free gpt_free_double
#define gpt_initialize gpt_initialize_double
#define gpt_probabilities gpt_probabilities_double

#else

typedef float real;
#define real_gemm cblas_sgemm
#define real_sqrt sqrtf
#define real_exp fast_expf

#endif

#endif  // SHARD_SAMPLES_GPT_REAL_H_
