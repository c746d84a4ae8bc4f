// SPDX-License-Identifier: Apache-2.0
//
// A byte-level GPT: token and position embeddings, pre-norm blocks, a final
// layer norm, and an lm head that is the token embedding again.
//
// The model owns its activations and nothing else. Parameters and gradients are
// arrays of pointers, one per tensor in the order of gpt_tensor_at. The caller
// sets the pointers: hooks tell it when a pass begins and ends to need the
// parameters of a module. train_gpt points them into libshard's memory, so a
// gradient is written where the optimizer step reads it.

#ifndef SHARD_SAMPLES_GPT_GPT_H_
#define SHARD_SAMPLES_GPT_GPT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "samples/gpt/real.h"
#include "samples/gpt/tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpt gpt;

// The hooks that are called around the computation of a module (gpt_module_at)
// in a pass. Calls nest as modules do: the root's are the outermost. A pass
// reads the parameters of a module, and in a backward pass writes its
// gradients, between `enter` and `leave` only, where the arrays of gpt_create
// point then. wte is entered for the whole pass: its weight is the lm head's
// too, whose module is not entered. False stops the pass: no other hook is
// called.
typedef struct gpt_hooks {
  bool (*enter)(void* user_data, int module, bool backward);
  bool (*leave)(void* user_data, int module, bool backward);
  void* user_data;
} gpt_hooks;

// Fills `data`, tensor `index`, with its initial values: a pure function of the
// seed, the same on every rank.
void gpt_initialize(const gpt_config* config, int index, uint64_t seed,
                    real* data);

// Creates a model with room for `batch` sequences of config->context bytes.
// `params` and `grads` are not copied and must outlive the model; `grads` may
// be NULL when there is no backward, and `hooks` when all pointers stay.
// Returns NULL when memory is short; `bytes` is then the number that was asked
// for.
gpt* gpt_create(const gpt_config* config, int batch, const real* const* params,
                real* const* grads, const gpt_hooks* hooks, size_t* bytes);

// Runs the forward pass. `sequences` has `batch` times length + 1 bytes, where
// byte t + 1 is the target at position t. REQUIRES: batch and length within
// what the model was created for. `nats` receives the sum of -log p(target)
// over batch * length positions. A batch of 0 computes nothing and calls the
// hooks. False when one stopped it.
bool gpt_forward(gpt* model, const uint8_t* sequences, int batch, int length,
                 double* nats);

// Returns the GPT_VOCABULARY probabilities of the next byte after `position` of
// the last forward's first sequence. Not after gpt_backward.
const real* gpt_probabilities(const gpt* model, int position);

// Computes the gradients of the mean loss of the last forward. Overwrites every
// gradient. REQUIRES: `sequences` as in that forward; one backward per forward.
// False when a hook stopped it.
bool gpt_backward(gpt* model, const uint8_t* sequences);

void gpt_free(gpt* model);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHARD_SAMPLES_GPT_GPT_H_
