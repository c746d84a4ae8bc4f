// SPDX-License-Identifier: Apache-2.0
//
// The bytes that Muon's own kernels read and write: docs/benchmarks.md has
// them, and predicts times with them. The engine does not count them as the
// kernels of a GPU do it, so they are compiled here with accesses that count.

// A kernel accesses tensors through two functions of this header alone. Of all
// headers it comes first, so that the others see those below.
// clang-format off
#define Load PlainLoad
#define Store PlainStore
#include "kernels/cuda/device.h"
#undef Load
#undef Store
// clang-format on

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace shard::cuda {

inline uint64_t accessed_bytes = 0;

template <class T, Use kUse = Use::kAgain>
T Load(const void* from) {
  accessed_bytes += sizeof(T);
  return PlainLoad<T, kUse>(from);
}
template <Use kUse = Use::kAgain, class T>
void Store(const T& value, void* to) {
  accessed_bytes += sizeof(T);
  PlainStore<kUse>(value, to);
}

}  // namespace shard::cuda

#include "core/base/dtype.h"
#include "core/device/cuda/element_range.h"
#include "core/device/cuda/tile_groups.h"
#include "kernels/cuda/muon.cu"
#include "kernels/cuda/sum_squares.cu"
#include "kernels/formula/all.h"
#include "tests/core/device/kernel_inputs.h"
#include "tests/docs/benchmark_rows.h"
#include "tests/kernels/cuda/test_range.h"

namespace shard::muon_bytes_test {
namespace {

// Whole tiles, as large matrices have but for one of them.
constexpr int64_t kSide = 64;
constexpr size_t kNumel = kSide * kSide;

// Returns the bytes per element of an update of a matrix.
double CountBytes(DType x_dtype) {
  const testing::FormulaCase formula =
      testing::CaseOf<Muon>(Formula::kMuon, "Muon");
  const testing::Layout layout = {
      kNumel, {{0, kNumel, 0, 0}}, 0, {{kSide, kSide}}};
  const testing::Range range(formula, {}, layout, 1, 7);
  const testing::Block latched(formula, 1);
  const UpdateList& list = range.list();
  const auto slices = cuda::ElementSlices(list, list.ranges[0]);
  const auto groups = cuda::GroupTiles(slices);
  std::vector<cuda::SquareSums> sums(groups.num_sums());
  std::vector<cuda::Words4> directions(kNumel / 4);
  std::vector<cuda::Words4> x(kNumel / 4);
  cuda::MuonArgs args = {};
  args.tensors = {cuda::ElementRangeOf(list, list.ranges[0], slices,
                                       slices.data(), list.sources.data()),
                  cuda::SquareTableOf(groups, groups.first.data(), sums.data()),
                  &latched.block};
  args.directions = reinterpret_cast<float*>(directions.data());
  args.x = x.data();
  args.x_dtype = x_dtype;
  args.stride = kNumel * sizeof(float);
  cuda::accessed_bytes = 0;
  cuda::shard_muon_momentum(&args, 3, 64);
  cuda::shard_sum_squares(&args.tensors, 3, 64);
  cuda::shard_muon_normalize(&args, 3, 64);
  cuda::shard_muon_apply(&args, 3, 64);
  return static_cast<double>(cuda::accessed_bytes) / kNumel;
}

TEST(MuonBytesTest, AreThoseOfTheBenchmarks) {
  const std::map<std::string, DType> precisions = {{"highest", DType::kF32},
                                                   {"high", DType::kF32},
                                                   {"medium", DType::kBF16}};
  for (const auto& [precision, x_dtype] : precisions) {
    SCOPED_TRACE(precision);
    const auto rows = testing::BenchmarkRows("muon " + precision + ", ");
    EXPECT_EQ(rows.size(), 2u);
    for (const testing::BenchmarkRow& row : rows) {
      EXPECT_EQ(CountBytes(x_dtype), std::stod(row.bytes)) << row.name;
    }
  }
}

}  // namespace
}  // namespace shard::muon_bytes_test
