// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the layers and their arguments. A kernel takes one struct,
// which the driver copies at the launch; its pointers are to memory of the GPU.
// Shapes are those of samples/gpt/layers.h: B sequences of T tokens are R rows.
//
// Matrix products, and the sums of columns that become the gradients of biases,
// are cuBLAS's. No kernel adds with atomics: the same inputs give the same
// bits.

#ifndef SHARD_SAMPLES_GPT_CUDA_KERNELS_H_
#define SHARD_SAMPLES_GPT_CUDA_KERNELS_H_

#include <stdint.h>

// X(name): the kernel gpt_NAME with the argument gpt_NAME_args.
#define GPT_KERNELS(X)        \
  X(fill)                     \
  X(embed)                    \
  X(embed_tokens_backward)    \
  X(embed_positions_backward) \
  X(layer_norm)               \
  X(layer_norm_backward)      \
  X(begin_rows)               \
  X(gelu)                     \
  X(gelu_backward)            \
  X(causal_softmax)           \
  X(causal_softmax_backward)  \
  X(cross_entropy)            \
  X(cross_entropy_backward)

// Sets data(count) to `value`. A thread per element.
typedef struct gpt_fill_args {
  float* data;
  uint64_t count;
  float value;
} gpt_fill_args;

// Computes out(R, C) = token_weight[byte] + position_weight[position]. A warp
// per row.
typedef struct gpt_embed_args {
  float* out;
  const uint8_t* sequences;  // (B, T + 1)
  const float* token_weight;
  const float* position_weight;
  int batch, length, width;
} gpt_embed_args;

// Adds the rows of d_out(R, C) to those of their bytes in d_token_weight(256,
// C). A warp per byte: it reads all tokens, and adds in their order.
typedef struct gpt_embed_tokens_backward_args {
  float* d_token_weight;
  const float* d_out;
  const uint8_t* sequences;
  int batch, length, width;
} gpt_embed_tokens_backward_args;

// Computes d_position_weight(context, C), which is 0 from row T on. A warp per
// position.
typedef struct gpt_embed_positions_backward_args {
  float* d_position_weight;
  const float* d_out;
  int batch, length, context, width;
} gpt_embed_positions_backward_args;

// Computes out(R, C), mean(R) and rstd(R). A warp per row.
typedef struct gpt_layer_norm_args {
  float* out;
  float* mean;
  float* rstd;
  const float* in;
  const float* weight;
  const float* bias;
  int rows, width;
} gpt_layer_norm_args;

// Adds to d_in(R, C), and multiplies d_out(R, C) by the normalized input: its
// columns then add up to the gradient of the weight. A warp per row.
typedef struct gpt_layer_norm_backward_args {
  float* d_in;
  float* d_out;
  const float* in;
  const float* mean;
  const float* rstd;
  const float* weight;
  int rows, width;
} gpt_layer_norm_backward_args;

// Computes out(R, M) = bias(M) + residual(R, M), each of which may be null. A
// warp per row.
typedef struct gpt_begin_rows_args {
  float* out;
  const float* bias;
  const float* residual;
  int rows, width;
} gpt_begin_rows_args;

// Computes out(count). A thread per element.
typedef struct gpt_gelu_args {
  float* out;
  const float* in;
  uint64_t count;
} gpt_gelu_args;

// Multiplies gradient(count) by the slope at in(count). A thread per element.
typedef struct gpt_gelu_backward_args {
  float* gradient;
  const float* in;
  uint64_t count;
} gpt_gelu_backward_args;

// Turns the scores of weights(matrices, T, T), times `scale`, into a softmax of
// each row t over its columns up to t; the others become 0. A warp per row.
typedef struct gpt_causal_softmax_args {
  float* weights;
  int matrices, length;
  float scale;
} gpt_causal_softmax_args;

// Turns d_weights(matrices, T, T), the gradient by the softmax's output, into
// the one by its input; masked entries become 0. A warp per row.
typedef struct gpt_causal_softmax_backward_args {
  float* d_weights;
  const float* weights;
  int matrices, length;
} gpt_causal_softmax_backward_args;

// Turns logits(R, V) into probabilities. The loss of row r is log(sums[r]) +
// margins[r]: the host takes the logarithms, and adds in double. A warp per
// row.
typedef struct gpt_cross_entropy_args {
  float* logits;
  float* sums;
  float* margins;
  const uint8_t* sequences;
  int batch, length, vocabulary;
} gpt_cross_entropy_args;

// Turns probabilities(R, V) into the gradient of the mean loss by the logits. A
// warp per row.
typedef struct gpt_cross_entropy_backward_args {
  float* probabilities;
  const uint8_t* sequences;
  int batch, length, vocabulary;
} gpt_cross_entropy_backward_args;

#endif  // SHARD_SAMPLES_GPT_CUDA_KERNELS_H_
