// SPDX-License-Identifier: Apache-2.0
//
// The layers of a GPU, on the fake of the driver, against references in double.
// Widths and lengths are no multiples of a warp's 32 columns, and above them.

#include "samples/gpt/cuda/cuda_layers.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "samples/gpt/random.h"
#include "samples/gpt/tensors.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace cuda_layers_test {
namespace {

namespace fake_cuda = shard::testing::fake_cuda;

using Doubles = std::vector<double>;

constexpr int kBatch = 2;
constexpr int kContext = 41;
constexpr int kLength = 37;  // That of the passes, shorter than the context.
constexpr int kWidth = 40;
constexpr int kHeads = 4;
constexpr int kRows = kBatch * kLength;

class CudaLayersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_cuda::Reset();
    char message[1024] = "";
    all_ = cuda_layers_open(0, kBatch, kContext, message, sizeof(message));
    ASSERT_NE(all_, nullptr) << message;
    on_ = cuda_layers_table(all_);
    for (int i = 0; i < kBatch * (kLength + 1); i++) {
      // Few bytes, so that the gradients of a token add up.
      sequences_.push_back(static_cast<uint8_t>(97 + random_bits(3, 1, i) % 9));
    }
  }
  void TearDown() override {
    for (float* memory : memory_) on_->release(on_, memory);
    cuda_layers_close(all_);
    EXPECT_EQ(fake_cuda::ViolationText(), "");
    EXPECT_EQ(fake_cuda::AliveText(), "");
  }

  // Returns memory of the GPU with NaNs, which nothing may read.
  float* Allocate(size_t count) {
    const size_t bytes = (count * sizeof(float) + 63) / 64 * 64;
    memory_.push_back(on_->allocate(on_, bytes));
    return memory_.back();
  }
  // Returns memory of the GPU with normal numbers, which are added to `values`.
  float* Random(size_t count, Doubles* values) {
    float* const data = Allocate(count);
    values->clear();
    for (size_t i = 0; i < count; i++) {
      // The fake's GPU has memory of the host.
      data[i] = static_cast<float>(random_normal(5, memory_.size(), i));
      values->push_back(data[i]);
    }
    return data;
  }
  // Uploads the sequences, as a pass does at its beginning.
  void BeginPass() {
    float* const weight = Allocate(GPT_VOCABULARY * kWidth);
    float* const out = Allocate(kRows * kWidth);
    on_->embedding_forward(on_, out, sequences_.data(), weight, weight, kBatch,
                           kLength, kWidth);
  }
  // Returns a row's byte, and the byte after it.
  size_t TokenOf(int row) const {
    return sequences_[row / kLength * (kLength + 1) + row % kLength];
  }
  size_t TargetOf(int row) const {
    return sequences_[row / kLength * (kLength + 1) + row % kLength + 1];
  }

  // Expects numbers on the GPU to be those of the reference, to what float sums
  // lose.
  void Expect(const float* data, const Doubles& expected, const char* what) {
    ASSERT_NE(on_->read(on_, data, 1), nullptr) << on_->error;  // Waits.
    for (size_t i = 0; i < expected.size(); i++) {
      ASSERT_NEAR(data[i], expected[i], 2e-5 * (1 + std::fabs(expected[i])))
          << what << " at " << i;
    }
  }

  cuda_layers* all_ = nullptr;
  layers* on_ = nullptr;
  std::vector<uint8_t> sequences_;

 private:
  std::vector<float*> memory_;
};

// Returns a(rows, inner) b(inner, columns), of elements that functions give.
using At = std::function<double(int, int)>;
Doubles Product(int rows, int inner, int columns, const At& a, const At& b) {
  Doubles c;
  for (int i = 0; i < rows; i++) {
    for (int j = 0; j < columns; j++) {
      double sum = 0;
      for (int k = 0; k < inner; k++) sum += a(i, k) * b(k, j);
      c.push_back(sum);
    }
  }
  return c;
}

At Of(const Doubles& matrix, int columns) {
  return [&matrix, columns](int i, int j) { return matrix[i * columns + j]; };
}
At Transposed(const Doubles& matrix, int columns) {
  return [&matrix, columns](int i, int j) { return matrix[j * columns + i]; };
}

TEST_F(CudaLayersTest, Embedding) {
  Doubles tokens, positions, d_tokens, d_out;
  const float* token = Random(GPT_VOCABULARY * kWidth, &tokens);
  const float* position = Random(kContext * kWidth, &positions);
  float* const out = Allocate(kRows * kWidth);
  on_->embedding_forward(on_, out, sequences_.data(), token, position, kBatch,
                         kLength, kWidth);
  float* const d_token = Random(GPT_VOCABULARY * kWidth, &d_tokens);
  float* const d_position = Allocate(kContext * kWidth);
  on_->embedding_backward(on_, d_token, d_position,
                          Random(kRows * kWidth, &d_out), sequences_.data(),
                          kBatch, kLength, kContext, kWidth);
  Doubles sums;
  Doubles d_positions(kContext * kWidth);
  for (int r = 0; r < kRows; r++) {
    for (int c = 0; c < kWidth; c++) {
      const size_t t = r % kLength * kWidth + c;
      sums.push_back(tokens[TokenOf(r) * kWidth + c] + positions[t]);
      d_tokens[TokenOf(r) * kWidth + c] += d_out[r * kWidth + c];
      d_positions[t] += d_out[r * kWidth + c];
    }
  }
  Expect(out, sums, "out");
  Expect(d_token, d_tokens, "d_token_weight");
  Expect(d_position, d_positions, "d_position_weight");
}

TEST_F(CudaLayersTest, LayerNorm) {
  Doubles in, weight, bias, d_in, d_out;
  const float* in_ = Random(kRows * kWidth, &in);
  const float* weight_ = Random(kWidth, &weight);
  float* const out = Allocate(kRows * kWidth);
  float* const mean = Allocate(kRows);
  float* const rstd = Allocate(kRows);
  on_->layer_norm_forward(on_, out, mean, rstd, in_, weight_,
                          Random(kWidth, &bias), kRows, kWidth);
  float* const d_in_ = Random(kRows * kWidth, &d_in);
  float* const d_out_ = Random(kRows * kWidth, &d_out);
  float* const d_weight = Allocate(kWidth);
  float* const d_bias = Allocate(kWidth);
  Doubles outs, means, rstds, d_weights(kWidth), d_biases(kWidth);
  for (int r = 0; r < kRows; r++) {
    const double* x = &in[r * kWidth];
    double m = 0, squares = 0, g_mean = 0, gn_mean = 0;
    for (int c = 0; c < kWidth; c++) m += x[c] / kWidth;
    for (int c = 0; c < kWidth; c++) squares += (x[c] - m) * (x[c] - m);
    const double s = 1 / std::sqrt(squares / kWidth + 1e-5);
    for (int c = 0; c < kWidth; c++) {
      const double n = (x[c] - m) * s;
      const double d = d_out[r * kWidth + c];
      outs.push_back(n * weight[c] + bias[c]);
      d_weights[c] += d * n;
      d_biases[c] += d;
      g_mean += d * weight[c] / kWidth;
      gn_mean += d * weight[c] * n / kWidth;
    }
    for (int c = 0; c < kWidth; c++) {
      const double n = (x[c] - m) * s;
      const double g = d_out[r * kWidth + c] * weight[c];
      d_in[r * kWidth + c] += s * (g - g_mean - n * gn_mean);
    }
    means.push_back(m);
    rstds.push_back(s);
  }
  on_->layer_norm_backward(on_, d_in_, d_weight, d_bias, d_out_, in_, mean,
                           rstd, weight_, kRows, kWidth);
  Expect(out, outs, "out");
  Expect(mean, means, "mean");
  Expect(rstd, rstds, "rstd");
  Expect(d_in_, d_in, "d_in");
  Expect(d_weight, d_weights, "d_weight");
  Expect(d_bias, d_biases, "d_bias");
}

TEST_F(CudaLayersTest, Linear) {
  constexpr int kOut = 48;
  Doubles in, weight, bias, residual, d_out;
  const float* in_ = Random(kRows * kWidth, &in);
  const float* weight_ = Random(kOut * kWidth, &weight);
  const float* bias_ = Random(kOut, &bias);
  const float* residual_ = Random(kRows * kOut, &residual);
  const Doubles product =
      Product(kRows, kWidth, kOut, Of(in, kWidth), Transposed(weight, kWidth));
  for (const bool has_bias : {false, true}) {
    for (const bool has_residual : {false, true}) {
      Doubles expected = product;
      for (int i = 0; i < kRows * kOut; i++) {
        if (has_bias) expected[i] += bias[i % kOut];
        if (has_residual) expected[i] += residual[i];
      }
      float* const out = Allocate(kRows * kOut);
      on_->linear_forward(on_, out, in_, weight_, has_bias ? bias_ : nullptr,
                          has_residual ? residual_ : nullptr, kRows, kWidth,
                          kOut);
      Expect(out, expected, "out");
    }
  }
  const float* d_out_ = Random(kRows * kOut, &d_out);
  float* const d_in = Allocate(kRows * kWidth);
  float* const d_weight = Allocate(kOut * kWidth);
  float* const d_bias = Allocate(kOut);
  on_->linear_backward(on_, d_in, d_weight, d_bias, d_out_, in_, weight_, kRows,
                       kWidth, kOut);
  Expect(d_in,
         Product(kRows, kOut, kWidth, Of(d_out, kOut), Of(weight, kWidth)),
         "d_in");
  Expect(d_weight,
         Product(kOut, kRows, kWidth, Transposed(d_out, kOut), Of(in, kWidth)),
         "d_weight");
  const At ones = [](int, int) { return 1.0; };
  Expect(d_bias, Product(1, kRows, kOut, ones, Of(d_out, kOut)), "d_bias");
}

double Gelu(double x) {
  const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
  return x / 2 * (1 + std::tanh(u));
}

TEST_F(CudaLayersTest, Gelu) {
  constexpr int kCount = 1000;
  Doubles in, gradient, outs;
  const float* in_ = Random(kCount, &in);
  float* const out = Allocate(kCount);
  on_->gelu_forward(on_, out, in_, kCount);
  float* const gradient_ = Random(kCount, &gradient);
  on_->gelu_backward(on_, gradient_, in_, kCount);
  for (int i = 0; i < kCount; i++) {
    outs.push_back(Gelu(in[i]));
    gradient[i] *= (Gelu(in[i] + 1e-6) - Gelu(in[i] - 1e-6)) / 2e-6;
  }
  Expect(out, outs, "out");
  Expect(gradient_, gradient, "gradient");
}

TEST_F(CudaLayersTest, Attention) {
  constexpr int kSize = kWidth / kHeads;
  const double scale = 1 / std::sqrt(double{kSize});
  Doubles qkv, d_out;
  const float* qkv_ = Random(kRows * 3 * kWidth, &qkv);
  const float* d_out_ = Random(kRows * kWidth, &d_out);
  const size_t squares = on_->attention_scratch(kBatch, kLength, kHeads);
  float* const weights = Allocate(squares);
  float* const out = Allocate(kRows * kWidth);
  float* const d_qkv = Allocate(kRows * 3 * kWidth);
  on_->attention_forward(on_, out, weights, qkv_, kBatch, kLength, kWidth,
                         kHeads);
  on_->attention_backward(on_, d_qkv, Allocate(squares), d_out_, weights, qkv_,
                          kBatch, kLength, kWidth, kHeads);

  Doubles softmax;
  Doubles outs(kRows * kWidth);
  Doubles d_qkvs(kRows * 3 * kWidth);
  for (int b = 0; b < kBatch; b++) {
    for (int h = 0; h < kHeads; h++) {
      const auto at = [&](int part, int t, int c) {
        return ((b * kLength + t) * 3 + part) * kWidth + h * kSize + c;
      };
      const auto out_at = [&](int t, int c) {
        return (b * kLength + t) * kWidth + h * kSize + c;
      };
      for (int t = 0; t < kLength; t++) {
        Doubles p(kLength), dp(kLength);
        double sum = 0, dot = 0;
        for (int s = 0; s <= t; s++) {
          double score = 0;
          for (int c = 0; c < kSize; c++) {
            score += qkv[at(0, t, c)] * qkv[at(1, s, c)];
          }
          sum += p[s] = std::exp(scale * score);
        }
        for (int s = 0; s <= t; s++) {
          p[s] /= sum;
          for (int c = 0; c < kSize; c++) {
            outs[out_at(t, c)] += p[s] * qkv[at(2, s, c)];
            dp[s] += d_out[out_at(t, c)] * qkv[at(2, s, c)];
            d_qkvs[at(2, s, c)] += p[s] * d_out[out_at(t, c)];
          }
          dot += p[s] * dp[s];
        }
        for (int s = 0; s <= t; s++) {
          const double d_score = scale * p[s] * (dp[s] - dot);
          for (int c = 0; c < kSize; c++) {
            d_qkvs[at(0, t, c)] += d_score * qkv[at(1, s, c)];
            d_qkvs[at(1, s, c)] += d_score * qkv[at(0, t, c)];
          }
        }
        softmax.insert(softmax.end(), p.begin(), p.end());
      }
    }
  }
  Expect(weights, softmax, "weights");
  Expect(out, outs, "out");
  Expect(d_qkv, d_qkvs, "d_qkv");
}

TEST_F(CudaLayersTest, CrossEntropy) {
  BeginPass();
  Doubles logits;
  float* const logits_ = Random(kRows * GPT_VOCABULARY, &logits);
  const double loss = on_->cross_entropy_forward(
      on_, logits_, sequences_.data(), kBatch, kLength, GPT_VOCABULARY);
  double expected = 0;
  Doubles probabilities, gradient;
  for (int r = 0; r < kRows; r++) {
    const double* x = &logits[r * GPT_VOCABULARY];
    double sum = 0;
    for (int v = 0; v < GPT_VOCABULARY; v++) sum += std::exp(x[v]);
    expected += std::log(sum) - x[TargetOf(r)];
    for (size_t v = 0; v < GPT_VOCABULARY; v++) {
      probabilities.push_back(std::exp(x[v]) / sum);
      gradient.push_back((probabilities.back() - (v == TargetOf(r))) / kRows);
    }
  }
  EXPECT_NEAR(loss, expected, 1e-6 * expected);
  Expect(logits_, probabilities, "probabilities");
  on_->cross_entropy_backward(on_, logits_, sequences_.data(), kBatch, kLength,
                              GPT_VOCABULARY);
  Expect(logits_, gradient, "gradient");
}

// exp of such numbers is infinite, or 0.
TEST_F(CudaLayersTest, CrossEntropyOfLargeLogits) {
  BeginPass();
  Doubles logits;
  float* const logits_ = Random(kRows * GPT_VOCABULARY, &logits);
  for (int i = 0; i < kRows * GPT_VOCABULARY; i++) {
    logits_[i] = i % GPT_VOCABULARY == 7 ? 500 : -500;
  }
  EXPECT_NEAR(on_->cross_entropy_forward(on_, logits_, sequences_.data(),
                                         kBatch, kLength, GPT_VOCABULARY),
              1000.0 * kRows, 1e-3);
}

TEST_F(CudaLayersTest, ABatchOfZeroEnqueuesNothing) {
  Doubles values;
  float* const data = Random(kWidth * 3 * kWidth, &values);
  ASSERT_NE(on_->read(on_, data, 1), nullptr);
  const fake_cuda::Counters before = fake_cuda::Count();
  on_->embedding_forward(on_, data, nullptr, data, data, 0, kLength, kWidth);
  on_->layer_norm_forward(on_, data, data, data, data, data, data, 0, kWidth);
  on_->linear_forward(on_, data, data, data, data, data, 0, kWidth, kWidth);
  on_->gelu_forward(on_, data, data, 0);
  on_->attention_forward(on_, data, data, data, 0, kLength, kWidth, kHeads);
  EXPECT_EQ(on_->cross_entropy_forward(on_, data, nullptr, 0, kLength,
                                       GPT_VOCABULARY),
            0);
  EXPECT_EQ(fake_cuda::CountSince(before).Calls(), 0u);
  EXPECT_EQ(on_->error, nullptr);
}

TEST_F(CudaLayersTest, SetsZeroAndReads) {
  Doubles values;
  float* const data = Random(300, &values);
  ASSERT_NE(on_->read(on_, data + 2, GPT_VOCABULARY), nullptr);
  const float* const read = on_->read(on_, data + 2, GPT_VOCABULARY);
  for (int i = 0; i < GPT_VOCABULARY; i++) EXPECT_EQ(read[i], data[i + 2]);
  on_->set_zero(on_, data, 299);
  ASSERT_NE(on_->read(on_, data, 1), nullptr);
  for (int i = 0; i < 300; i++) {
    EXPECT_EQ(data[i], i < 299 ? 0 : static_cast<float>(values[i])) << i;
  }
}

TEST_F(CudaLayersTest, KeepTheirFirstError) {
  Doubles values, others;
  float* const other = Random(64, &others);
  float* const data = Random(64, &values);
  // This goes on after the error, and the release of its memory waits for it.
  on_->gelu_backward(on_, other, other, 64);
  fake_cuda::FailCall("cuLaunchKernel", 1,
                      shard::cuda::CuResult::kLaunchFailed);
  on_->set_zero(on_, data, 64);
  ASSERT_NE(on_->error, nullptr);
  EXPECT_NE(std::strstr(on_->error, "cuLaunchKernel: "), nullptr) << on_->error;
  EXPECT_NE(std::strstr(on_->error, "(719)"), nullptr) << on_->error;
  // Nothing runs after it.
  on_->gelu_backward(on_, data, data, 64);
  EXPECT_EQ(on_->read(on_, data, 1), nullptr);
  fake_cuda::RunAll();
  for (int i = 0; i < 64; i++) EXPECT_EQ(data[i], values[i]);
}

TEST_F(CudaLayersTest, NameAGpuThatIsNotThere) {
  char message[1024] = "";
  EXPECT_EQ(cuda_layers_open(7, kBatch, kContext, message, sizeof(message)),
            nullptr);
  EXPECT_NE(std::strstr(message, "cuDeviceGet: "), nullptr) << message;
  EXPECT_EQ(cuda_device_count(), 2);
}

}  // namespace
}  // namespace cuda_layers_test
