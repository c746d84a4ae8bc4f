// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/gradients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/convert.h"
#include "tests/kernels/cpu/targets.h"

namespace shard::gradients_test {
namespace {

constexpr double kNoClip = std::numeric_limits<double>::infinity();

// Gradient sources of one dtype, and their values in fp32.
struct Sources {
  Sources(DType dtype, size_t num_sources, size_t count) {
    std::mt19937 generator(static_cast<uint32_t>(num_sources));
    std::normal_distribution<float> normal;
    for (size_t w = 0; w < num_sources; ++w) {
      std::vector<float> random(count);
      for (float& value : random) value = normal(generator);
      // The gradients begin at the second element of an allocation, so they are
      // aligned to 4 bytes only.
      bytes.emplace_back(count + 1);
      Narrow(dtype, random.data(), bytes.back().data() + 1, count, nullptr);
      values.emplace_back(count);
      Widen(dtype, bytes.back().data() + 1, values.back().data(), count);
    }
    for (const auto& source : bytes) pointers.push_back(source.data() + 1);
    view = {pointers.data(), num_sources, dtype};
  }

  std::vector<std::vector<float>> bytes;
  std::vector<std::vector<float>> values;
  std::vector<const void*> pointers;
  GradientSources view;
};

class GradientsTest : public TargetsTest {};

TEST_P(GradientsTest, SumsInSourceOrderInFp32) {
  constexpr size_t kCount = 1111;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (size_t num_sources = 1; num_sources <= 4; ++num_sources) {
      const Sources sources(dtype, num_sources, kCount);
      for (const size_t begin : {0u, 3u, 1000u}) {
        std::vector<float> out(kCount - begin);
        SumGradients(sources.view, begin, out.size(), 0.3, kNoClip, out.data());
        for (size_t i = 0; i < out.size(); ++i) {
          float sum = sources.values[0][begin + i];
          for (size_t w = 1; w < num_sources; ++w) {
            sum += sources.values[w][begin + i];
          }
          ASSERT_EQ(out[i], sum * 0.3f) << DTypeName(dtype) << ", " << i;
        }
      }
    }
  }
}

TEST_P(GradientsTest, ClipsAfterScaling) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> values = {-6, -4, -3.9f, 0, 3.9f, 4, 6, inf, -inf};
  // Copies of these values fill whole vectors and leave a tail.
  for (int i = 0; i < 7; ++i) {
    values.insert(values.end(), values.begin(), values.begin() + 9);
  }
  const void* source = values.data();
  std::vector<float> out(values.size());
  SumGradients({&source, 1, DType::kF32}, 0, out.size(), 0.5, 2.0, out.data());
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i], std::min(2.0f, std::max(-2.0f, values[i] / 2))) << i;
  }
}

TEST_P(GradientsTest, NaNStaysNaN) {
  for (const double clip : {1.0, kNoClip}) {
    for (const size_t where : {0u, 17u, 66u}) {
      std::vector<float> values(67, 5.0f);
      values[where] = std::numeric_limits<float>::quiet_NaN();
      const void* source = values.data();
      std::vector<float> out(values.size());
      SumGradients({&source, 1, DType::kF32}, 0, out.size(), 1, clip,
                   out.data());
      for (size_t i = 0; i < out.size(); ++i) {
        EXPECT_EQ(std::isnan(out[i]), i == where);
      }
    }
  }
}

TEST_P(GradientsTest, InPlace) {
  Sources sources(DType::kF32, 3, 1111);
  std::vector<float> expected(1111);
  SumGradients(sources.view, 0, 1111, 0.5, 1.0, expected.data());
  SumGradients(sources.view, 0, 1111, 0.5, 1.0, sources.bytes[0].data() + 1);
  sources.bytes[0].erase(sources.bytes[0].begin());
  EXPECT_EQ(sources.bytes[0], expected);
}

// A call of no elements reads and writes nothing.
TEST_P(GradientsTest, NothingToDo) {
  const void* source = nullptr;
  float sum = 7;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    SumGradients({&source, 1, dtype}, 0, 0, 1, 1, &sum);
  }
  EXPECT_EQ(sum, 7);
}

SHARD_ON_ALL_TARGETS(GradientsTest);

}  // namespace
}  // namespace shard::gradients_test
