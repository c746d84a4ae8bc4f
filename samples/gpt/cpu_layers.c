// SPDX-License-Identifier: Apache-2.0

#include <stdlib.h>

#include "samples/gpt/layers.h"

// The build is for plain x86-64, as a distribution's would be. The loops
// between the matrix products take half the time of a step in SSE2, so gcc
// compiles them for newer processors as well, and the loader picks one.
// Sanitizers would instrument the function that picks, which runs before they
// are ready.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HOT \
  __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define HOT
#endif

static size_t area(int rows, int columns) {
  return (size_t)rows * (size_t)columns;
}

// ---- Memory -----------------------------------------------------------------

static real* allocate(layers* on, size_t bytes) {
  return aligned_alloc(64, bytes);
}

static void release(layers* on, real* memory) { free(memory); }

static void set_zero(layers* on, real* data, size_t count) {
  memset(data, 0, count * sizeof(real));
}

static const real* read_data(layers* on, const real* data, size_t count) {
  return data;
}

// One head of one sequence is computed at a time.
static size_t attention_scratch(int batch, int length, int heads) {
  return area(length, length);
}

// ---- Embedding ------------------------------------------------------------

static void embedding_forward(layers* on, real* out, const uint8_t* sequences,
                              const real* token_weight,
                              const real* position_weight, int batch,
                              int length, int width) {
  for (int b = 0; b < batch; b++) {
    const uint8_t* tokens = sequences + area(b, length + 1);
    for (int t = 0; t < length; t++, out += width) {
      const real* token = token_weight + area(tokens[t], width);
      const real* position = position_weight + area(t, width);
      for (int c = 0; c < width; c++) out[c] = token[c] + position[c];
    }
  }
}

static void embedding_backward(layers* on, real* d_token_weight,
                               real* d_position_weight, const real* d_out,
                               const uint8_t* sequences, int batch, int length,
                               int context, int width) {
  memset(d_position_weight, 0, area(context, width) * sizeof(real));
  for (int b = 0; b < batch; b++) {
    const uint8_t* tokens = sequences + area(b, length + 1);
    for (int t = 0; t < length; t++, d_out += width) {
      real* d_token = d_token_weight + area(tokens[t], width);
      real* d_position = d_position_weight + area(t, width);
      for (int c = 0; c < width; c++) {
        d_token[c] += d_out[c];
        d_position[c] += d_out[c];
      }
    }
  }
}

// ---- Layer norm -----------------------------------------------------------

HOT static void layer_norm_forward(layers* on, real* out, real* mean,
                                   real* rstd, const real* in,
                                   const real* weight, const real* bias,
                                   int rows, int width) {
  for (int r = 0; r < rows; r++, in += width, out += width) {
    real sum = 0;
    for (int c = 0; c < width; c++) sum += in[c];
    const real m = sum / (real)width;
    real squares = 0;
    for (int c = 0; c < width; c++) squares += (in[c] - m) * (in[c] - m);
    const real s = 1 / real_sqrt(squares / (real)width + (real)1e-5);
    for (int c = 0; c < width; c++) {
      out[c] = (in[c] - m) * s * weight[c] + bias[c];
    }
    mean[r] = m;
    rstd[r] = s;
  }
}

HOT static void layer_norm_backward(layers* on, real* d_in, real* d_weight,
                                    real* d_bias, real* d_out, const real* in,
                                    const real* mean, const real* rstd,
                                    const real* weight, int rows, int width) {
  memset(d_weight, 0, (size_t)width * sizeof(real));
  memset(d_bias, 0, (size_t)width * sizeof(real));
  for (int r = 0; r < rows; r++, in += width, d_out += width, d_in += width) {
    const real m = mean[r];
    const real s = rstd[r];
    // With n = (in - m) s and g = d_out weight, the gradient by `in` is
    // s (g - mean(g) - n mean(g n)).
    real g_sum = 0;
    real gn_sum = 0;
    for (int c = 0; c < width; c++) {
      const real n = (in[c] - m) * s;
      const real g = d_out[c] * weight[c];
      g_sum += g;
      gn_sum += g * n;
    }
    const real g_mean = g_sum / (real)width;
    const real gn_mean = gn_sum / (real)width;
    for (int c = 0; c < width; c++) {
      const real n = (in[c] - m) * s;
      d_weight[c] += d_out[c] * n;
      d_bias[c] += d_out[c];
      d_in[c] += s * (d_out[c] * weight[c] - g_mean - n * gn_mean);
    }
  }
}

// ---- Linear ---------------------------------------------------------------

static void linear_forward(layers* on, real* out, const real* in,
                           const real* weight, const real* bias,
                           const real* residual, int rows, int in_width,
                           int out_width) {
  // The sum begins with the bias and the residual; the product is then
  // accumulated onto it.
  for (int r = 0; r < rows; r++) {
    real* row = out + area(r, out_width);
    const size_t bytes = (size_t)out_width * sizeof(real);
    if (bias && residual) {
      const real* other = residual + area(r, out_width);
      for (int m = 0; m < out_width; m++) row[m] = bias[m] + other[m];
    } else if (bias) {
      memcpy(row, bias, bytes);
    } else if (residual) {
      memcpy(row, residual + area(r, out_width), bytes);
    }
  }
  real_gemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, out_width, in_width,
            1, in, in_width, weight, in_width, bias || residual ? 1 : 0, out,
            out_width);
}

HOT static void sum_rows(real* restrict sum, const real* restrict matrix,
                         int rows, int width) {
  memset(sum, 0, (size_t)width * sizeof(real));
  for (int r = 0; r < rows; r++, matrix += width) {
    for (int c = 0; c < width; c++) sum[c] += matrix[c];
  }
}

static void linear_backward(layers* on, real* d_in, real* d_weight,
                            real* d_bias, const real* d_out, const real* in,
                            const real* weight, int rows, int in_width,
                            int out_width) {
  real_gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, in_width,
            out_width, 1, d_out, out_width, weight, in_width, 0, d_in,
            in_width);
  real_gemm(CblasRowMajor, CblasTrans, CblasNoTrans, out_width, in_width, rows,
            1, d_out, out_width, in, in_width, 0, d_weight, in_width);
  if (d_bias) sum_rows(d_bias, d_out, rows, out_width);
}

// ---- GELU -----------------------------------------------------------------

// gelu(x) = x / 2 (1 + tanh u), u = sqrt(2 / pi) (x + 0.044715 x^3).
static const real kSlope = (real)0.79788456080286535588;
static const real kCubic = (real)0.044715;

static inline real tanh_by_exp(real u) { return 1 - 2 / (real_exp(2 * u) + 1); }

HOT static void gelu_forward(layers* on, real* restrict out,
                             const real* restrict in, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const real x = in[i];
    const real t = tanh_by_exp(kSlope * (x + kCubic * x * x * x));
    out[i] = (real)0.5 * x * (1 + t);
  }
}

HOT static void gelu_backward(layers* on, real* restrict gradient,
                              const real* restrict in, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const real x = in[i];
    const real t = tanh_by_exp(kSlope * (x + kCubic * x * x * x));
    const real slope = kSlope * (1 + 3 * kCubic * x * x);
    gradient[i] *= (real)0.5 * (1 + t + x * (1 - t * t) * slope);
  }
}

// ---- Attention ------------------------------------------------------------

// Turns a row, multiplied by `scale`, into exponentials divided by their sum.
// Returns log sum exp(scale row).
HOT static real softmax(real* row, int count, real scale) {
  real max = row[0];
  for (int i = 1; i < count; i++) max = row[i] > max ? row[i] : max;
  real sum = 0;
  for (int i = 0; i < count; i++) {
    row[i] = real_exp(scale * (row[i] - max));
    sum += row[i];
  }
  const real inverse = 1 / sum;
  for (int i = 0; i < count; i++) row[i] *= inverse;
  return scale * max + (real)log((double)sum);
}

static void attention_forward(layers* on, real* out, real* weights,
                              const real* qkv, int batch, int length, int width,
                              int heads) {
  const int size = width / heads;
  const int stride = 3 * width;
  const real scale = 1 / real_sqrt((real)size);
  for (int b = 0; b < batch; b++) {
    for (int h = 0; h < heads; h++, weights += area(length, length)) {
      const real* query = qkv + area(b * length, stride) + h * size;
      const real* key = query + width;
      const real* value = key + width;
      // Computes the whole square. Half of it is masked, but one product of
      // this size is faster than the pieces that avoid the masked half.
      real_gemm(CblasRowMajor, CblasNoTrans, CblasTrans, length, length, size,
                1, query, stride, key, stride, 0, weights, length);
      for (int t = 0; t < length; t++) {
        real* row = weights + area(t, length);
        softmax(row, t + 1, scale);
        memset(row + t + 1, 0, (size_t)(length - t - 1) * sizeof(real));
      }
      real_gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, length, size, length,
                1, weights, length, value, stride, 0,
                out + area(b * length, width) + h * size, width);
    }
  }
}

// Replaces d_row, the gradient with respect to the softmax's output, by the one
// with respect to its input. Entries beyond `count` are masked.
HOT static void softmax_backward(real* restrict d_row, const real* restrict row,
                                 int count, int length) {
  real dot = 0;
  for (int i = 0; i < count; i++) dot += d_row[i] * row[i];
  for (int i = 0; i < count; i++) d_row[i] = row[i] * (d_row[i] - dot);
  memset(d_row + count, 0, (size_t)(length - count) * sizeof(real));
}

static void attention_backward(layers* on, real* d_qkv, real* scratch,
                               const real* d_out, const real* weights,
                               const real* qkv, int batch, int length,
                               int width, int heads) {
  const int size = width / heads;
  const int stride = 3 * width;
  const real scale = 1 / real_sqrt((real)size);
  for (int b = 0; b < batch; b++) {
    for (int h = 0; h < heads; h++, weights += area(length, length)) {
      const size_t start = area(b * length, stride) + (size_t)(h * size);
      const real* query = qkv + start;
      const real* key = query + width;
      const real* value = key + width;
      real* d_query = d_qkv + start;
      real* d_key = d_query + width;
      real* d_value = d_key + width;
      const real* d_head = d_out + area(b * length, width) + h * size;

      real_gemm(CblasRowMajor, CblasTrans, CblasNoTrans, length, size, length,
                1, weights, length, d_head, width, 0, d_value, stride);
      real_gemm(CblasRowMajor, CblasNoTrans, CblasTrans, length, length, size,
                1, d_head, width, value, stride, 0, scratch, length);
      for (int t = 0; t < length; t++) {
        softmax_backward(scratch + area(t, length), weights + area(t, length),
                         t + 1, length);
      }
      real_gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, length, size, length,
                scale, scratch, length, key, stride, 0, d_query, stride);
      real_gemm(CblasRowMajor, CblasTrans, CblasNoTrans, length, size, length,
                scale, scratch, length, query, stride, 0, d_key, stride);
    }
  }
}

// ---- Cross entropy --------------------------------------------------------

static double cross_entropy_forward(layers* on, real* logits,
                                    const uint8_t* sequences, int batch,
                                    int length, int vocabulary) {
  double loss = 0;
  for (int b = 0; b < batch; b++) {
    const uint8_t* targets = sequences + area(b, length + 1) + 1;
    for (int t = 0; t < length; t++, logits += vocabulary) {
      const real logit = logits[targets[t]];
      loss += (double)softmax(logits, vocabulary, 1) - (double)logit;
    }
  }
  return loss;
}

static void cross_entropy_backward(layers* on, real* probabilities,
                                   const uint8_t* sequences, int batch,
                                   int length, int vocabulary) {
  const real scale = 1 / (real)area(batch, length);
  for (int b = 0; b < batch; b++) {
    const uint8_t* targets = sequences + area(b, length + 1) + 1;
    for (int t = 0; t < length; t++, probabilities += vocabulary) {
      probabilities[targets[t]] -= 1;
      for (int v = 0; v < vocabulary; v++) probabilities[v] *= scale;
    }
  }
}

// ---- The table --------------------------------------------------------------

layers* cpu_layers(void) {
  static layers table = {
      .allocate = allocate,
      .release = release,
      .set_zero = set_zero,
      .read = read_data,
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
  return &table;
}
