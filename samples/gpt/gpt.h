// SPDX-License-Identifier: Apache-2.0
//
// A byte-level GPT: token and position embeddings, pre-norm blocks, a final
// layer norm, and an lm head that is the token embedding again.
//
// The model owns its activations, in the memory of the device of its layers,
// and nothing else. Parameters and gradients are arrays of pointers, one per
// tensor in the order of gpt_tensor_at. The caller sets the pointers: hooks
// tell it when a pass begins and ends to need the parameters of a module.
// train_gpt points them into libshard's memory, so a gradient is written where
// the optimizer step reads it.

#ifndef SHARD_SAMPLES_GPT_GPT_H_
#define SHARD_SAMPLES_GPT_GPT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "samples/gpt/layers.h"
#include "samples/gpt/real.h"
#include "samples/gpt/tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpt gpt;

// The hooks that are called around the computation of a module (gpt_module_at)
// in a pass. Calls nest as modules do: the root's are the outermost. A pass
// reads the parameters of a module only between `enter` and `leave`, where the
// arrays of gpt_create point then; a backward pass writes its gradients only
// there. wte is entered for the whole pass: its weight is also that of the lm
// head, whose module is not entered. A hook that returns false stops the pass:
// no other hook is called.
typedef struct gpt_hooks {
  bool (*enter)(void* user_data, int module, bool backward);
  bool (*leave)(void* user_data, int module, bool backward);
  void* user_data;
} gpt_hooks;

// Fills `data` with the initial values of tensor `index`: a pure function of
// the seed, the same on every rank.
void gpt_initialize(const gpt_config* config, int index, uint64_t seed,
                    real* data);

// Creates a model with room for `batch` sequences of config->context bytes.
// `params` and `grads` are not copied and must outlive the model, as must
// `on`: the layers of the device that has the tensors, NULL for the
// processor's. `grads` may be NULL when there is no backward pass, and `hooks`
// when no pointer ever changes. Returns NULL when memory is short; `bytes` is
// then the number of bytes that it asked for.
gpt* gpt_create(const gpt_config* config, int batch, const real* const* params,
                real* const* grads, const gpt_hooks* hooks, layers* on,
                size_t* bytes);

// Runs the forward pass. `sequences` has `batch` times length + 1 bytes, where
// byte t + 1 is the target at position t. `nats` receives the sum of -log
// p(target) over batch * length positions. A batch of 0 computes nothing and
// calls the hooks. Returns false when a hook or an error of the layers
// (layers.error) stopped the pass. REQUIRES: batch and length are within those
// that the model was created for.
bool gpt_forward(gpt* model, const uint8_t* sequences, int batch, int length,
                 double* nats);

// Returns the GPT_VOCABULARY probabilities of the byte after `position` in the
// first sequence of the last forward pass, in memory of the host; NULL after an
// error of the layers. gpt_backward and the next call overwrite them.
const real* gpt_probabilities(const gpt* model, int position);

// Computes the gradients of the mean loss of the last forward pass. Overwrites
// every gradient. Returns false as gpt_forward. REQUIRES: `sequences` as in
// that forward pass; one backward pass per forward pass.
bool gpt_backward(gpt* model, const uint8_t* sequences);

void gpt_free(gpt* model);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHARD_SAMPLES_GPT_GPT_H_
