// SPDX-License-Identifier: Apache-2.0
//
// Stream::FinishNorm: the norm of all ranks' gradients, the scale that clips
// them, and whether the step is skipped.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/device/device.h"
#include "kernels/cpu/norm.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/devices_test.h"

namespace shard::finish_norm_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The results that FinishNorm leaves in a block.
struct Finished {
  double grad_norm;
  double scale;
  bool skipped;
};

class FinishNormTest : public testing::DevicesTest {
 protected:
  Finished Finish(Stream* stream, const std::vector<float>& values,
                  NormType type, double max_grad_norm) {
    StepBlock block = {};
    block.gradient_scale = 0.5;
    block.scale = kNaN;
    block.grad_norm = -1;
    block.max_grad_norm = max_grad_norm;
    block.norm_type = type;
    block.norm_p = 3;
    for (const NormPass pass : {NormPass::kFirst, NormPass::kSecond}) {
      if (pass == NormPass::kSecond && type != NormType::kP) continue;
      // Two ranks.
      NormSum sums[2] = {};
      for (size_t i = 0; i < values.size(); ++i) {
        if (pass == NormPass::kSecond && !NeedsSecondPass(block)) continue;
        AddToNorm(NormTypeOf(block, pass), 3, block.largest, &values[i], 1,
                  &sums[i % 2]);
      }
      stream->FinishNorm(pass, sums, 2, &block);
      EXPECT_OK(stream->Synchronize(Deadline::After(60)));
    }
    return {block.grad_norm, block.scale, block.skipped};
  }
};

INSTANTIATE_TEST_SUITE_P(
    Devices, FinishNormTest,
    ::testing::ValuesIn(testing::DeviceSpecs({"cpu", "cpu-async"})));

TEST_P(FinishNormTest, ClipsTheScaledGradients) {
  const struct {
    NormType type;
    double norm;
  } cases[] = {{NormType::kOne, 7},
               {NormType::kTwo, 5},
               {NormType::kInf, 4},
               {NormType::kP, std::cbrt(27 + 64)}};
  for (const auto& stream : streams_) {
    for (const auto& one : cases) {
      for (const double most : {0.0, 1.0, 100.0}) {
        const Finished got = Finish(stream.get(), {3, -4}, one.type, most);
        const double scaled = one.norm / 2;
        EXPECT_FALSE(got.skipped);
        EXPECT_NEAR(got.grad_norm, scaled, 1e-12);
        EXPECT_NEAR(got.scale, most == 1 ? 0.5 / (scaled + 1e-6) : 0.5, 1e-12);
      }
    }
  }
}

TEST_P(FinishNormTest, SkipsGradientsThatAreNotFinite) {
  const auto infinity = static_cast<float>(kInfinity);
  const auto nan = static_cast<float>(kNaN);
  for (const auto& stream : streams_) {
    for (const NormType type :
         {NormType::kOne, NormType::kTwo, NormType::kInf, NormType::kP}) {
      Finished got = Finish(stream.get(), {1, infinity}, type, 1);
      EXPECT_TRUE(got.skipped);
      EXPECT_EQ(got.grad_norm, kInfinity);
      got = Finish(stream.get(), {infinity, nan}, type, 1);
      EXPECT_TRUE(got.skipped);
      EXPECT_TRUE(std::isnan(got.grad_norm));
      got = Finish(stream.get(), {0, 0}, type, 1);
      EXPECT_FALSE(got.skipped);
      EXPECT_EQ(got.grad_norm, 0);
      EXPECT_EQ(got.scale, 0.5);
    }
  }
}

}  // namespace
}  // namespace shard::finish_norm_test
