// SPDX-License-Identifier: Apache-2.0
//
// Every kernel of a stream has the bits of the kernel called directly, on every
// device, though the caller reuses its own lists and numbers at once.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/device/device.h"
#include "kernels/cpu/block_sum.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cpu/q8.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/devices_test.h"
#include "tests/core/device/kernel_inputs.h"
#include "tests/kernels/cpu/fake_cblas.h"

namespace shard::kernels_test {
namespace {

using testing::kCount;
using testing::Lists;
using testing::Magnitudes;
using testing::Values;

class KernelsTest : public testing::DevicesTest {};

INSTANTIATE_TEST_SUITE_P(
    Devices, KernelsTest,
    ::testing::ValuesIn(testing::DeviceSpecs({"cpu", "cpu-async"})));

TEST_P(KernelsTest, SumGradients) {
  const std::vector<float> one = Values(kCount, 1);
  const std::vector<float> two = Values(kCount, 2);
  Lists lists;
  lists.sources = {one.data(), two.data()};
  const size_t begin = 7;
  const size_t count = kCount - begin;
  std::vector<float> expected(count);
  SumGradients({lists.sources.data(), 2, DType::kF32}, begin, count, 0.5, 0.4,
               expected.data());
  for (const auto& stream : streams_) {
    std::vector<float> actual(count);
    Run(stream.get(), lists, [&](Lists* on_stack) {
      stream->SumGradients({on_stack->sources.data(), 2, DType::kF32}, begin,
                           count, 0.5, 0.4, actual.data());
    });
    EXPECT_EQ(actual, expected);
  }
}

TEST_P(KernelsTest, SumBlocks) {
  const std::vector<float> own = Values(kCount, 1);
  const std::vector<float> peers = Values(3 * kCount, 2);
  BlockSum sum;
  sum.own = own.data();
  sum.own_index = 2;
  sum.peers = peers.data();
  sum.ranks = 4;
  sum.count = kCount;
  sum.add = true;
  std::vector<float> expected = Values(kCount, 3);
  sum.recv = expected.data();
  SumBlocks(sum);
  for (const auto& stream : streams_) {
    std::vector<float> actual = Values(kCount, 3);
    sum.recv = actual.data();
    Run(stream.get(), {}, [&](Lists*) { stream->SumBlocks(sum); });
    EXPECT_EQ(actual, expected);
  }
}

TEST_P(KernelsTest, NarrowAndWiden) {
  const std::vector<float> from = Values(kCount, 1);
  for (const bool stochastic : {false, true}) {
    Lists lists;
    lists.random = {9, 2, 1, 256};
    std::vector<uint16_t> expected(kCount);
    Narrow(DType::kBF16, from.data(), expected.data(), kCount,
           stochastic ? &lists.random : nullptr);
    std::vector<float> expected_wide(kCount);
    Widen(DType::kBF16, expected.data(), expected_wide.data(), kCount);
    for (const auto& stream : streams_) {
      std::vector<uint16_t> narrow(kCount);
      std::vector<float> wide(kCount);
      Run(stream.get(), lists, [&](Lists* on_stack) {
        stream->Narrow(DType::kBF16, from.data(), narrow.data(), kCount,
                       stochastic ? &on_stack->random : nullptr);
        stream->Widen(DType::kBF16, narrow.data(), wide.data(), kCount);
      });
      EXPECT_EQ(narrow, expected);
      EXPECT_EQ(wide, expected_wide);
    }
  }
}

TEST_P(KernelsTest, EncodeQ8) {
  const std::vector<float> from = Magnitudes(kCount, 1);
  for (const bool stochastic : {false, true}) {
    Lists lists;
    lists.random = {9, 2, 1, 256};
    std::vector<uint8_t> expected(kCount);
    std::vector<float> expected_scales(kCount / kQ8Block + 1);
    EncodeQ8(StateKind::kSquareAverage, from.data(), kCount,
             stochastic ? &lists.random : nullptr, 2, expected.data(),
             expected_scales.data());
    for (const auto& stream : streams_) {
      std::vector<uint8_t> codes(kCount);
      std::vector<float> scales(expected_scales.size());
      Run(stream.get(), lists, [&](Lists* on_stack) {
        stream->EncodeQ8(StateKind::kSquareAverage, from.data(), kCount,
                         stochastic ? &on_stack->random : nullptr, 2,
                         codes.data(), scales.data());
      });
      EXPECT_EQ(codes, expected);
      EXPECT_EQ(scales, expected_scales);
    }
  }
}

TEST_P(KernelsTest, SaysWhichBlasThereIsNot) {
  const BlasLibrary library("/nowhere/libnone.so");
  ExpectError(device_->LoadBlas(), StatusCode::kBackendUnavailable,
              {"/nowhere/libnone.so"});
}

}  // namespace
}  // namespace shard::kernels_test
