// SPDX-License-Identifier: Apache-2.0
//
// The layers of a GPT, each as a forward and a backward function over plain
// row-major arrays. B sequences of T tokens are R = B * T rows; C is the width.
//
// The functions are entries of a table, so that the model is written once for
// every device: cpu_layers.c has the processor's, cuda/cuda_layers.c a GPU's.
// All arrays of numbers lie in the memory of the table's device; sequences lie
// in the memory of the host. The functions of a GPU only enqueue their work, in
// the order of the calls.
//
// A weight's gradient is overwritten, not added to, so that gradients need no
// zeroing pass. Only embedding_backward adds to one.
//
// One thread uses a table at a time.

#ifndef SHARD_SAMPLES_GPT_LAYERS_H_
#define SHARD_SAMPLES_GPT_LAYERS_H_

#include <stddef.h>
#include <stdint.h>

#include "samples/gpt/real.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct layers layers;

struct layers {
  // The reason why a call has failed, or NULL. Later calls then do nothing. The
  // processor's never fail, but for allocate.
  const char* error;

  // ---- Memory of the device ----

  // Returns memory for activations, 64 bytes aligned and not initialized, or
  // NULL where there is not so much. `bytes` is a multiple of 64.
  real* (*allocate)(layers* on, size_t bytes);
  // Frees memory of `allocate`, which may be NULL.
  void (*release)(layers* on, real* memory);
  void (*set_zero)(layers* on, real* data, size_t count);
  // Returns `count` numbers, at most GPT_VOCABULARY, where the host can read
  // them: the numbers themselves, or a copy that the next call overwrites. NULL
  // after an error. Waits for the device.
  const real* (*read)(layers* on, const real* data, size_t count);
  // Returns how many numbers the scratch of attention_backward has.
  size_t (*attention_scratch)(int batch, int length, int heads);

  // ---- Layers ----

  // Computes out(R, C) = token_weight[byte] + position_weight[position]. A
  // sequence has T + 1 bytes: the first T are inputs, the last T are targets.
  // This is the first layer of a pass: a GPU's copies the sequences, and the
  // functions below use its copy.
  void (*embedding_forward)(layers* on, real* out, const uint8_t* sequences,
                            const real* token_weight,
                            const real* position_weight, int batch, int length,
                            int width);
  // Adds to d_token_weight, which already holds the lm head's share: the two
  // weights are tied. Positions from `length` to `context` have gradient 0.
  void (*embedding_backward)(layers* on, real* d_token_weight,
                             real* d_position_weight, const real* d_out,
                             const uint8_t* sequences, int batch, int length,
                             int context, int width);

  // Computes out(R, C) = (in - mean) * rstd * weight + bias, row by row. Keeps
  // mean(R) and rstd(R) for the backward pass.
  void (*layer_norm_forward)(layers* on, real* out, real* mean, real* rstd,
                             const real* in, const real* weight,
                             const real* bias, int rows, int width);
  // Adds to d_in: a layer norm always starts a residual branch, so d_in already
  // holds the gradient of the residual stream. May overwrite d_out.
  void (*layer_norm_backward)(layers* on, real* d_in, real* d_weight,
                              real* d_bias, real* d_out, const real* in,
                              const real* mean, const real* rstd,
                              const real* weight, int rows, int width);

  // Computes out(R, M) = in(R, N) weight(M, N)^T + bias(M) + residual(R, M).
  // bias and residual may be NULL.
  void (*linear_forward)(layers* on, real* out, const real* in,
                         const real* weight, const real* bias,
                         const real* residual, int rows, int in_width,
                         int out_width);
  // Computes d_in(R, N), d_weight(M, N) and d_bias(M) from d_out(R, M). d_bias
  // may be NULL.
  void (*linear_backward)(layers* on, real* d_in, real* d_weight, real* d_bias,
                          const real* d_out, const real* in, const real* weight,
                          int rows, int in_width, int out_width);

  // Applies GELU in the tanh approximation of GPT-2.
  void (*gelu_forward)(layers* on, real* out, const real* in, size_t count);
  // Works in place: `gradient` is d_out on entry and d_in on return.
  void (*gelu_backward)(layers* on, real* gradient, const real* in,
                        size_t count);

  // Computes causal self-attention. qkv(R, 3C) holds query, key and value side
  // by side, each as `heads` vectors. weights(B, heads, T, T) is the softmax,
  // kept for the backward pass. The result is out(R, C).
  void (*attention_forward)(layers* on, real* out, real* weights,
                            const real* qkv, int batch, int length, int width,
                            int heads);
  // Computes d_qkv(R, 3C) from d_out(R, C).
  void (*attention_backward)(layers* on, real* d_qkv, real* scratch,
                             const real* d_out, const real* weights,
                             const real* qkv, int batch, int length, int width,
                             int heads);

  // Turns logits(R, V) into probabilities and returns the sum over all rows of
  // -log p(target), in nats. Waits for the device; returns 0 after an error.
  double (*cross_entropy_forward)(layers* on, real* logits,
                                  const uint8_t* sequences, int batch,
                                  int length, int vocabulary);
  // Works in place: probabilities become the gradient of the MEAN loss with
  // respect to the logits.
  void (*cross_entropy_backward)(layers* on, real* probabilities,
                                 const uint8_t* sequences, int batch,
                                 int length, int vocabulary);
};

// Returns the layers of the processor. Any thread: there is nothing to change.
layers* cpu_layers(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHARD_SAMPLES_GPT_LAYERS_H_
