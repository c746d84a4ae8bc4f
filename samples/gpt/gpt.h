// SPDX-License-Identifier: Apache-2.0
//
// A byte-level GPT: token and position embeddings, pre-norm blocks, a final
// layer norm, and an lm head that is the token embedding again.
//
// The model owns its activations and nothing else. Parameters and gradients
// are arrays of pointers, one per tensor in the order of gpt_tensor_at; where
// they point is the caller's business. train_gpt points them into libshard's
// memory, so a gradient is born where the optimizer step reads it.

#ifndef SHARD_SAMPLES_GPT_GPT_H_
#define SHARD_SAMPLES_GPT_GPT_H_

#include <stddef.h>
#include <stdint.h>

#include "samples/gpt/real.h"
#include "samples/gpt/tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpt gpt;

// Fills `data`, tensor `index`, with its initial values: a pure function of the
// seed, the same on every rank.
void gpt_initialize(const gpt_config* config, int index, uint64_t seed,
                    real* data);

// Room for `batch` sequences of config->context bytes. `params` and `grads` are
// not copied and must outlive the model; `grads` may be NULL when there is no
// backward. NULL when memory is short; `bytes` then says how much was asked.
gpt* gpt_create(const gpt_config* config, int batch, real* const* params,
                real* const* grads, size_t* bytes);

// `sequences`: `batch` times length + 1 bytes, where byte t + 1 is the target
// at position t. REQUIRES: batch and length within what the model was created
// for. Returns the sum of -log p(target) over batch * length positions, in
// nats.
double gpt_forward(gpt* model, const uint8_t* sequences, int batch, int length);

// Probabilities of the next byte after `position` of the last forward's first
// sequence: GPT_VOCABULARY of them. Not after gpt_backward.
const real* gpt_probabilities(const gpt* model, int position);

// Gradients of the mean loss of the last forward. Overwrites every gradient.
// REQUIRES: `sequences` as in that forward; one backward per forward.
void gpt_backward(gpt* model, const uint8_t* sequences);

void gpt_free(gpt* model);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHARD_SAMPLES_GPT_GPT_H_
