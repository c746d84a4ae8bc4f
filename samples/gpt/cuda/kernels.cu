// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the layers. The formulas are those of cpu_layers.c; sums have
// another order.

#include "samples/gpt/cuda/kernels.h"
#include "samples/gpt/cuda/rows.h"
#include "samples/gpt/fast_exp.h"

namespace {

using gpt_cuda::each_column;
using gpt_cuda::each_element;
using gpt_cuda::each_row;
using gpt_cuda::max_columns;
using gpt_cuda::square_root;
using gpt_cuda::sum_columns;

constexpr int kVocabulary = 256;  // A token is a byte.

// A row of the batch: its sequence, and its position there.
struct Place {
  uint64_t sequence;
  int position;

  GPT_DEVICE Place(uint64_t row, int length)
      : sequence(row / static_cast<uint64_t>(length)),
        position(static_cast<int>(row % static_cast<uint64_t>(length))) {}
  // Returns the place of the row's token; the target is behind it.
  GPT_DEVICE uint64_t token(int length) const {
    return sequence * static_cast<uint64_t>(length + 1) +
           static_cast<uint64_t>(position);
  }
};

// gelu(x) = x / 2 (1 + tanh u), u = sqrt(2 / pi) (x + 0.044715 x^3).
constexpr float kSlope = 0.79788456080286535588f;
constexpr float kCubic = 0.044715f;

GPT_DEVICE float tanh_of_gelu(float x) {
  const float u = kSlope * (x + kCubic * x * x * x);
  return 1 - 2 / (fast_expf(2 * u) + 1);
}

}  // namespace

GPT_KERNEL(fill) {
  each_element(on, args.count, [&](uint64_t i) { args.data[i] = args.value; });
}

// ---- Embedding ------------------------------------------------------------

GPT_KERNEL(embed) {
  const uint64_t rows = uint64_t(args.batch) * uint64_t(args.length);
  const uint64_t width = uint64_t(args.width);
  each_row(on, rows, [&](uint64_t row) {
    const Place place(row, args.length);
    const uint64_t byte = args.sequences[place.token(args.length)];
    const float* token = args.token_weight + byte * width;
    const float* position =
        args.position_weight + uint64_t(place.position) * width;
    float* out = args.out + row * width;
    each_column(args.width, [&](int c) { out[c] = token[c] + position[c]; });
  });
}

GPT_KERNEL(embed_tokens_backward) {
  const uint64_t width = uint64_t(args.width);
  each_row(on, kVocabulary, [&](uint64_t byte) {
    float* d_token = args.d_token_weight + byte * width;
    each_column(args.width, [&](int c) {
      const uint8_t* tokens = args.sequences;
      const float* d_out = args.d_out + c;
      float sum = d_token[c];
      for (int b = 0; b < args.batch; b++, tokens += args.length + 1) {
        for (int t = 0; t < args.length; t++, d_out += width) {
          if (tokens[t] == byte) sum += *d_out;
        }
      }
      d_token[c] = sum;
    });
  });
}

GPT_KERNEL(embed_positions_backward) {
  const uint64_t width = uint64_t(args.width);
  const uint64_t sequence = uint64_t(args.length) * width;
  each_row(on, uint64_t(args.context), [&](uint64_t position) {
    float* d_position = args.d_position_weight + position * width;
    const bool used = position < uint64_t(args.length);
    each_column(args.width, [&](int c) {
      const float* d_out = args.d_out + position * width + c;
      float sum = 0;
      for (int b = 0; used && b < args.batch; b++, d_out += sequence) {
        sum += *d_out;
      }
      d_position[c] = sum;
    });
  });
}

// ---- Layer norm -----------------------------------------------------------

GPT_KERNEL(layer_norm) {
  const float width = static_cast<float>(args.width);
  each_row(on, uint64_t(args.rows), [&](uint64_t row) {
    const float* in = args.in + row * uint64_t(args.width);
    float* out = args.out + row * uint64_t(args.width);
    const float mean =
        sum_columns(args.width, [&](int c) { return in[c]; }) / width;
    const float squares = sum_columns(
        args.width, [&](int c) { return (in[c] - mean) * (in[c] - mean); });
    const float rstd = 1 / square_root(squares / width + 1e-5f);
    each_column(args.width, [&](int c) {
      out[c] = (in[c] - mean) * rstd * args.weight[c] + args.bias[c];
    });
    // All threads of the warp write the same.
    args.mean[row] = mean;
    args.rstd[row] = rstd;
  });
}

GPT_KERNEL(layer_norm_backward) {
  const float width = static_cast<float>(args.width);
  each_row(on, uint64_t(args.rows), [&](uint64_t row) {
    const uint64_t start = row * uint64_t(args.width);
    const float* in = args.in + start;
    float* d_in = args.d_in + start;
    float* d_out = args.d_out + start;
    const float mean = args.mean[row];
    const float rstd = args.rstd[row];
    // With n = (in - mean) rstd and g = d_out weight, the gradient by `in` is
    // rstd (g - mean(g) - n mean(g n)).
    const float g_mean =
        sum_columns(args.width,
                    [&](int c) { return d_out[c] * args.weight[c]; }) /
        width;
    const float gn_mean = sum_columns(args.width,
                                      [&](int c) {
                                        const float n = (in[c] - mean) * rstd;
                                        return d_out[c] * args.weight[c] * n;
                                      }) /
                          width;
    each_column(args.width, [&](int c) {
      const float n = (in[c] - mean) * rstd;
      d_in[c] += rstd * (d_out[c] * args.weight[c] - g_mean - n * gn_mean);
      d_out[c] *= n;
    });
  });
}

// ---- Linear ---------------------------------------------------------------

GPT_KERNEL(begin_rows) {
  each_row(on, uint64_t(args.rows), [&](uint64_t row) {
    const uint64_t start = row * uint64_t(args.width);
    each_column(args.width, [&](int c) {
      float sum = args.bias ? args.bias[c] : 0;
      if (args.residual) sum += args.residual[start + uint64_t(c)];
      args.out[start + uint64_t(c)] = sum;
    });
  });
}

// ---- GELU -----------------------------------------------------------------

GPT_KERNEL(gelu) {
  each_element(on, args.count, [&](uint64_t i) {
    const float x = args.in[i];
    args.out[i] = 0.5f * x * (1 + tanh_of_gelu(x));
  });
}

GPT_KERNEL(gelu_backward) {
  each_element(on, args.count, [&](uint64_t i) {
    const float x = args.in[i];
    const float t = tanh_of_gelu(x);
    const float slope = kSlope * (1 + 3 * kCubic * x * x);
    args.gradient[i] *= 0.5f * (1 + t + x * (1 - t * t) * slope);
  });
}

// ---- Attention ------------------------------------------------------------

GPT_KERNEL(causal_softmax) {
  const uint64_t rows = uint64_t(args.matrices) * uint64_t(args.length);
  each_row(on, rows, [&](uint64_t row) {
    float* weights = args.weights + row * uint64_t(args.length);
    const int count = Place(row, args.length).position + 1;
    const float most = max_columns(count, [&](int i) { return weights[i]; });
    each_column(args.length, [&](int i) {
      weights[i] = i < count ? fast_expf(args.scale * (weights[i] - most)) : 0;
    });
    const float inverse =
        1 / sum_columns(count, [&](int i) { return weights[i]; });
    each_column(count, [&](int i) { weights[i] *= inverse; });
  });
}

GPT_KERNEL(causal_softmax_backward) {
  const uint64_t rows = uint64_t(args.matrices) * uint64_t(args.length);
  each_row(on, rows, [&](uint64_t row) {
    const float* weights = args.weights + row * uint64_t(args.length);
    float* d_weights = args.d_weights + row * uint64_t(args.length);
    const int count = Place(row, args.length).position + 1;
    const float dot =
        sum_columns(count, [&](int i) { return d_weights[i] * weights[i]; });
    each_column(args.length, [&](int i) {
      d_weights[i] = i < count ? weights[i] * (d_weights[i] - dot) : 0;
    });
  });
}

// ---- Cross entropy --------------------------------------------------------

GPT_KERNEL(cross_entropy) {
  const uint64_t rows = uint64_t(args.batch) * uint64_t(args.length);
  const int vocabulary = args.vocabulary;
  each_row(on, rows, [&](uint64_t row) {
    float* logits = args.logits + row * uint64_t(vocabulary);
    const uint64_t token = Place(row, args.length).token(args.length);
    const int target = args.sequences[token + 1];
    const float most =
        max_columns(vocabulary, [&](int v) { return logits[v]; });
    each_column(vocabulary, [&](int v) {
      // The thread of the target's column has its logit.
      if (v == target) args.margins[row] = most - logits[v];
      logits[v] = fast_expf(logits[v] - most);
    });
    const float sum = sum_columns(vocabulary, [&](int v) { return logits[v]; });
    args.sums[row] = sum;
    each_column(vocabulary, [&](int v) { logits[v] *= 1 / sum; });
  });
}

GPT_KERNEL(cross_entropy_backward) {
  const uint64_t rows = uint64_t(args.batch) * uint64_t(args.length);
  const float scale = 1 / static_cast<float>(rows);
  each_row(on, rows, [&](uint64_t row) {
    float* row_of_v = args.probabilities + row * uint64_t(args.vocabulary);
    const uint64_t token = Place(row, args.length).token(args.length);
    const int target = args.sequences[token + 1];
    each_column(args.vocabulary, [&](int v) {
      row_of_v[v] = (row_of_v[v] - (v == target ? 1.0f : 0.0f)) * scale;
    });
  });
}
