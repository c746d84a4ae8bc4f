// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/cuda/cuda_layers.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "samples/gpt/cuda/gpu.h"
#include "samples/gpt/cuda/kernels.h"
#include "samples/gpt/tensors.h"

#define INDEX(name) KERNEL_##name,
enum { GPT_KERNELS(INDEX) KERNEL_COUNT };
#undef INDEX

struct cuda_layers {
  layers table;  // First, so that a layers* is a cuda_layers*.
  gpu device;
  gpu_function kernels[KERNEL_COUNT];
  size_t max_rows;
  // In memory of the GPU: `memory` has all three.
  void* memory;
  float* ones;         // (max_rows)
  float* losses;       // (2, max_rows): sums, then margins
  uint8_t* sequences;  // (batch, length + 1), of the last embedding_forward
  // In pinned memory, for copies from and to them.
  void* pinned;
  float* host_losses;
  float* host_numbers;  // (GPT_VOCABULARY)
  uint8_t* host_sequences;
  bool captures;         // Whether what is enqueued becomes part of a graph.
  gpu_graph_exec graph;  // NULL where there is none.
};

static size_t area(int rows, int columns) {
  return (size_t)rows * (size_t)columns;
}

static cuda_layers* of(layers* on) { return (cuda_layers*)on; }

// Launches a kernel on the stream: LAUNCH(all, gelu, threads, .out = ...).
#define LAUNCH(all, name, threads, ...)                  \
  do {                                                   \
    const gpt_##name##_args launch_args = {__VA_ARGS__}; \
    launch(all, KERNEL_##name, &launch_args, threads);   \
  } while (0)

// Makes an error of the GPU one of the table.
static void keep_error(cuda_layers* all) {
  if (all->device.error[0]) all->table.error = all->device.error;
}

static void launch(cuda_layers* all, int kernel, const void* args,
                   uint64_t threads) {
  gpu_launch(&all->device, all->kernels[kernel], args, threads);
  keep_error(all);
}

static void multiply(cuda_layers* all, const gpu_product* product,
                     gpu_matrices a, gpu_matrices b, gpu_matrices c) {
  gpu_multiply(&all->device, product, a, b, c);
  keep_error(all);
}

// Returns the threads of kernels that take a warp for each row.
static uint64_t warps(size_t rows) { return 32 * (uint64_t)rows; }

// Returns one matrix without gaps between its rows. Inputs are not written to,
// though the type does not say so. cuBLAS wants a stride of a matrix without
// elements, too.
static gpu_matrices matrix(const float* data, int columns) {
  return (gpu_matrices){.data = (float*)(uintptr_t)data,
                        .stride = columns > 0 ? columns : 1};
}

// ---- Memory -----------------------------------------------------------------

static real* allocate(layers* on, size_t bytes) {
  real* memory = gpu_allocate(&of(on)->device, bytes);
  keep_error(of(on));
  return memory;
}

static void release(layers* on, real* memory) {
  gpu_free(&of(on)->device, memory);
}

static void set_zero(layers* on, real* data, size_t count) {
  LAUNCH(of(on), fill, count, .data = data, .count = count, .value = 0);
}

static const real* read_numbers(layers* on, const real* data, size_t count) {
  cuda_layers* all = of(on);
  gpu_copy(&all->device, all->host_numbers, data, count * sizeof(real));
  const bool done = gpu_wait(&all->device);
  keep_error(all);
  return done ? all->host_numbers : NULL;
}

// The softmax of all heads of all sequences is one launch.
static size_t attention_scratch(int batch, int length, int heads) {
  return area(batch, heads) * area(length, length);
}

// ---- Embedding ------------------------------------------------------------

// Writes the sequences of a pass to pinned memory, whose copy is the pass's
// first work. The copy of the pass before is done: the host has had its loss.
static void write_sequences(cuda_layers* all, const uint8_t* sequences,
                            int batch, int length) {
  const size_t bytes = area(batch, length + 1);
  if (bytes > 0) memcpy(all->host_sequences, sequences, bytes);
}

static void embedding_forward(layers* on, real* out, const uint8_t* sequences,
                              const real* token_weight,
                              const real* position_weight, int batch,
                              int length, int width) {
  cuda_layers* all = of(on);
  write_sequences(all, sequences, batch, length);
  gpu_copy(&all->device, all->sequences, all->host_sequences,
           area(batch, length + 1));
  LAUNCH(all, embed, warps(area(batch, length)), .out = out,
         .sequences = all->sequences, .token_weight = token_weight,
         .position_weight = position_weight, .batch = batch, .length = length,
         .width = width);
}

static void embedding_backward(layers* on, real* d_token_weight,
                               real* d_position_weight, const real* d_out,
                               const uint8_t* sequences, int batch, int length,
                               int context, int width) {
  cuda_layers* all = of(on);
  (void)sequences;
  LAUNCH(all, embed_tokens_backward, warps(GPT_VOCABULARY),
         .d_token_weight = d_token_weight, .d_out = d_out,
         .sequences = all->sequences, .batch = batch, .length = length,
         .width = width);
  LAUNCH(all, embed_positions_backward, warps((size_t)context),
         .d_position_weight = d_position_weight, .d_out = d_out, .batch = batch,
         .length = length, .context = context, .width = width);
}

// ---- Linear -----------------------------------------------------------------

static void linear_forward(layers* on, real* out, const real* in,
                           const real* weight, const real* bias,
                           const real* residual, int rows, int in_width,
                           int out_width) {
  cuda_layers* all = of(on);
  const bool begun = bias || residual;
  // As on the processor, the product is added to the bias and the residual.
  if (begun) {
    LAUNCH(all, begin_rows, warps((size_t)rows), .out = out, .bias = bias,
           .residual = residual, .rows = rows, .width = out_width);
  }
  const gpu_product product = {.transpose_b = true,
                               .rows = rows,
                               .columns = out_width,
                               .inner = in_width,
                               .alpha = 1,
                               .beta = begun ? 1 : 0,
                               .count = 1};
  multiply(all, &product, matrix(in, in_width), matrix(weight, in_width),
           matrix(out, out_width));
}

// Computes sum(width), the sum over the rows of a matrix: a row of ones times
// the matrix. cuBLAS spreads it over the GPU, and adds in the same order each
// time, as atomics would not.
static void sum_rows(cuda_layers* all, real* sum, const real* rows_of, int rows,
                     int width) {
  const gpu_product product = {
      .rows = 1, .columns = width, .inner = rows, .alpha = 1, .count = 1};
  multiply(all, &product, matrix(all->ones, rows), matrix(rows_of, width),
           matrix(sum, width));
}

static void linear_backward(layers* on, real* d_in, real* d_weight,
                            real* d_bias, const real* d_out, const real* in,
                            const real* weight, int rows, int in_width,
                            int out_width) {
  cuda_layers* all = of(on);
  const gpu_product by_in = {.rows = rows,
                             .columns = in_width,
                             .inner = out_width,
                             .alpha = 1,
                             .count = 1};
  multiply(all, &by_in, matrix(d_out, out_width), matrix(weight, in_width),
           matrix(d_in, in_width));
  const gpu_product by_weight = {.transpose_a = true,
                                 .rows = out_width,
                                 .columns = in_width,
                                 .inner = rows,
                                 .alpha = 1,
                                 .count = 1};
  multiply(all, &by_weight, matrix(d_out, out_width), matrix(in, in_width),
           matrix(d_weight, in_width));
  if (d_bias) sum_rows(all, d_bias, d_out, rows, out_width);
}

// ---- Layer norm -----------------------------------------------------------

static void layer_norm_forward(layers* on, real* out, real* mean, real* rstd,
                               const real* in, const real* weight,
                               const real* bias, int rows, int width) {
  LAUNCH(of(on), layer_norm, warps((size_t)rows), .out = out, .mean = mean,
         .rstd = rstd, .in = in, .weight = weight, .bias = bias, .rows = rows,
         .width = width);
}

static void layer_norm_backward(layers* on, real* d_in, real* d_weight,
                                real* d_bias, real* d_out, const real* in,
                                const real* mean, const real* rstd,
                                const real* weight, int rows, int width) {
  cuda_layers* all = of(on);
  sum_rows(all, d_bias, d_out, rows, width);
  LAUNCH(all, layer_norm_backward, warps((size_t)rows), .d_in = d_in,
         .d_out = d_out, .in = in, .mean = mean, .rstd = rstd, .weight = weight,
         .rows = rows, .width = width);
  // The kernel has multiplied d_out by the normalized input.
  sum_rows(all, d_weight, d_out, rows, width);
}

// ---- GELU -----------------------------------------------------------------

static void gelu_forward(layers* on, real* out, const real* in, size_t count) {
  LAUNCH(of(on), gelu, count, .out = out, .in = in, .count = count);
}

static void gelu_backward(layers* on, real* gradient, const real* in,
                          size_t count) {
  LAUNCH(of(on), gelu_backward, count, .gradient = gradient, .in = in,
         .count = count);
}

// ---- Attention ------------------------------------------------------------

// The matrices of one head in all sequences, which are one batch of products.
typedef struct head_matrices {
  gpu_matrices query, key, value;  // (T, C / heads), in qkv or its gradient
  gpu_matrices out;                // (T, C / heads), in (R, C)
  gpu_matrices weights;            // (T, T)
} head_matrices;

static head_matrices head_at(int head, const real* qkv, const real* out,
                             const real* weights, int length, int width,
                             int heads) {
  const int size = width / heads;
  gpu_matrices query = matrix(qkv + area(head, size), 3 * width);
  query.next = 3LL * length * width;
  gpu_matrices key = query;
  key.data += width;
  gpu_matrices value = key;
  value.data += width;
  gpu_matrices result = matrix(out + area(head, size), width);
  result.next = (long long)length * width;
  gpu_matrices square =
      matrix(weights + (size_t)head * area(length, length), length);
  square.next = (long long)heads * length * length;
  return (head_matrices){query, key, value, result, square};
}

static void attention_forward(layers* on, real* out, real* weights,
                              const real* qkv, int batch, int length, int width,
                              int heads) {
  cuda_layers* all = of(on);
  const int size = width / heads;
  const gpu_product scores = {.transpose_b = true,
                              .rows = length,
                              .columns = length,
                              .inner = size,
                              .alpha = 1,
                              .count = batch};
  const gpu_product mixture = {.rows = length,
                               .columns = size,
                               .inner = length,
                               .alpha = 1,
                               .count = batch};
  for (int h = 0; h < heads; h++) {
    const head_matrices m = head_at(h, qkv, out, weights, length, width, heads);
    multiply(all, &scores, m.query, m.key, m.weights);
  }
  const int matrices = batch * heads;
  LAUNCH(all, causal_softmax, warps(area(matrices, length)), .weights = weights,
         .matrices = matrices, .length = length,
         .scale = 1 / sqrtf((float)size));
  for (int h = 0; h < heads; h++) {
    const head_matrices m = head_at(h, qkv, out, weights, length, width, heads);
    multiply(all, &mixture, m.weights, m.value, m.out);
  }
}

static void attention_backward(layers* on, real* d_qkv, real* scratch,
                               const real* d_out, const real* weights,
                               const real* qkv, int batch, int length,
                               int width, int heads) {
  cuda_layers* all = of(on);
  const int size = width / heads;
  const float scale = 1 / sqrtf((float)size);
  const gpu_product by_value = {.transpose_a = true,
                                .rows = length,
                                .columns = size,
                                .inner = length,
                                .alpha = 1,
                                .count = batch};
  const gpu_product by_weights = {.transpose_b = true,
                                  .rows = length,
                                  .columns = length,
                                  .inner = size,
                                  .alpha = 1,
                                  .count = batch};
  for (int h = 0; h < heads; h++) {
    const head_matrices m =
        head_at(h, qkv, d_out, weights, length, width, heads);
    const head_matrices d =
        head_at(h, d_qkv, d_out, scratch, length, width, heads);
    multiply(all, &by_value, m.weights, d.out, d.value);
    multiply(all, &by_weights, d.out, m.value, d.weights);
  }
  const int matrices = batch * heads;
  LAUNCH(all, causal_softmax_backward, warps(area(matrices, length)),
         .d_weights = scratch, .weights = weights, .matrices = matrices,
         .length = length);
  gpu_product by_query = {.rows = length,
                          .columns = size,
                          .inner = length,
                          .alpha = scale,
                          .count = batch};
  gpu_product by_key = by_query;
  by_key.transpose_a = true;
  for (int h = 0; h < heads; h++) {
    const head_matrices m =
        head_at(h, qkv, d_out, weights, length, width, heads);
    const head_matrices d =
        head_at(h, d_qkv, d_out, scratch, length, width, heads);
    multiply(all, &by_query, d.weights, m.key, d.query);
    multiply(all, &by_key, d.weights, m.query, d.key);
  }
}

// ---- Cross entropy --------------------------------------------------------

// Waits for the pass whose losses were last copied, and adds them up.
static double await_loss(cuda_layers* all, size_t rows) {
  const bool done = gpu_wait(&all->device);
  keep_error(all);
  if (!done) return 0;
  const float* sums = all->host_losses;
  const float* margins = sums + rows;
  double loss = 0;
  for (size_t r = 0; r < rows; r++) {
    loss += log((double)sums[r]) + (double)margins[r];
  }
  return loss;
}

static double cross_entropy_forward(layers* on, real* logits,
                                    const uint8_t* sequences, int batch,
                                    int length, int vocabulary) {
  cuda_layers* all = of(on);
  (void)sequences;
  const size_t rows = area(batch, length);
  if (rows == 0) return 0;
  LAUNCH(all, cross_entropy, warps(rows), .logits = logits, .sums = all->losses,
         .margins = all->losses + rows, .sequences = all->sequences,
         .batch = batch, .length = length, .vocabulary = vocabulary);
  gpu_copy(&all->device, all->host_losses, all->losses,
           2 * rows * sizeof(float));
  keep_error(all);
  return all->captures ? 0 : await_loss(all, rows);
}

static void cross_entropy_backward(layers* on, real* probabilities,
                                   const uint8_t* sequences, int batch,
                                   int length, int vocabulary) {
  cuda_layers* all = of(on);
  (void)sequences;
  LAUNCH(all, cross_entropy_backward, warps(area(batch, length)),
         .probabilities = probabilities, .sequences = all->sequences,
         .batch = batch, .length = length, .vocabulary = vocabulary);
}

// ---- Graphs -----------------------------------------------------------------

bool cuda_layers_capture_begin(cuda_layers* all) {
  gpu_free_graph(&all->device, all->graph);
  all->graph = NULL;
  all->captures = gpu_capture_begin(&all->device);
  keep_error(all);
  return all->captures;
}

bool cuda_layers_capture_end(cuda_layers* all) {
  all->captures = false;
  all->graph = gpu_capture_end(&all->device);
  keep_error(all);
  return all->graph != NULL;
}

double cuda_layers_replay(cuda_layers* all, const uint8_t* sequences, int batch,
                          int length) {
  write_sequences(all, sequences, batch, length);
  gpu_launch_graph(&all->device, all->graph);
  return await_loss(all, area(batch, length));
}

// ---- Opening and closing ----------------------------------------------------

static const layers kTable = {
    .allocate = allocate,
    .release = release,
    .set_zero = set_zero,
    .read = read_numbers,
    .attention_scratch = attention_scratch,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .layer_norm_forward = layer_norm_forward,
    .layer_norm_backward = layer_norm_backward,
    .linear_forward = linear_forward,
    .linear_backward = linear_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .cross_entropy_forward = cross_entropy_forward,
    .cross_entropy_backward = cross_entropy_backward,
};

static bool find_kernels(cuda_layers* all) {
#define FIND(name) \
  all->kernels[KERNEL_##name] = gpu_kernel(&all->device, "gpt_" #name);
  GPT_KERNELS(FIND)
#undef FIND
  return !all->device.error[0];
}

static bool allocate_buffers(cuda_layers* all, int batch, int context) {
  const size_t rows = all->max_rows;
  const size_t sequences = area(batch, context + 1);
  all->memory =
      gpu_allocate(&all->device, 3 * rows * sizeof(float) + sequences);
  const size_t numbers = (2 * rows + GPT_VOCABULARY) * sizeof(float);
  all->pinned = gpu_allocate_pinned(&all->device, numbers + sequences);
  if (!all->memory || !all->pinned) return false;
  all->ones = all->memory;
  all->losses = all->ones + rows;
  all->sequences = (uint8_t*)(all->losses + 2 * rows);
  all->host_losses = all->pinned;
  all->host_numbers = all->host_losses + 2 * rows;
  all->host_sequences = (uint8_t*)(all->host_numbers + GPT_VOCABULARY);
  LAUNCH(all, fill, rows, .data = all->ones, .count = rows, .value = 1);
  return !all->device.error[0];
}

cuda_layers* cuda_layers_open(int ordinal, int batch, int context,
                              char* message, size_t message_size) {
  cuda_layers* all = calloc(1, sizeof(*all));
  if (!all) {
    snprintf(message, message_size, "out of memory");
    return NULL;
  }
  all->table = kTable;
  all->max_rows = area(batch, context);
  if (gpu_open(&all->device, ordinal) && find_kernels(all) &&
      allocate_buffers(all, batch, context)) {
    return all;
  }
  snprintf(message, message_size, "%s", all->device.error);
  cuda_layers_close(all);
  return NULL;
}

layers* cuda_layers_table(cuda_layers* all) { return &all->table; }

void* cuda_layers_stream(cuda_layers* all) { return all->device.stream; }

void cuda_layers_close(cuda_layers* all) {
  if (!all) return;
  if (all->device.context) {
    gpu_free_graph(&all->device, all->graph);
    gpu_free_pinned(&all->device, all->pinned);
    gpu_free(&all->device, all->memory);
  }
  gpu_close(&all->device);
  free(all);
}

int cuda_device_count(void) { return gpu_count(); }
