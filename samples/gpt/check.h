// SPDX-License-Identifier: Apache-2.0
//
// Compares the gradients of the backward pass with finite differences of the
// forward pass.

#ifndef SHARD_SAMPLES_GPT_CHECK_H_
#define SHARD_SAMPLES_GPT_CHECK_H_

#include <stdbool.h>

#include "samples/gpt/tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

// The largest relative difference between a gradient and a finite difference
// that counts as agreement. The model runs in double: with steps of 1e-4 a
// central difference is off by about 1e-8 from its third derivative and by
// 1e-12 from rounding; relative to the smallest gradient that is a few 1e-7. A
// wrong factor or a missing term is off by a per cent or more.
#define CHECK_TOLERANCE 1e-6

// Returns the relative error of the gradient of tensor `index`, in a small
// model with random parameters: |gradient - difference| over the elements that
// were probed, relative to |difference|. Returns -1 when memory is short.
double check_gradient(const gpt_config* config, int index);

// Checks every tensor of a small model and prints one line for each. Returns
// true when all agree.
bool check_all(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHARD_SAMPLES_GPT_CHECK_H_
