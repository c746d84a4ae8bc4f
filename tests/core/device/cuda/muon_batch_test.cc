// SPDX-License-Identifier: Apache-2.0
//
// The batches of equal matrices that Muon orthogonalizes at once, and where
// their memory lies.

#include "core/device/cuda/muon_batch.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shard::cuda {
namespace {

// Returns a list of one range of matrices, of shapes that are adjacent where
// equal, `at_once` of which may be stepped together.
UpdateList ListOf(const std::vector<EqualMatrices>& batches, size_t at_once) {
  UpdateList list;
  UpdateRange& range = list.ranges.emplace_back();
  range.formula = Formula::kMuon;
  range.is_tensor = true;
  for (const EqualMatrices& batch : batches) {
    for (size_t i = 0; i < batch.count; ++i) {
      const auto numel = static_cast<size_t>(batch.rows * batch.cols);
      list.slices.push_back(
          {range.count, numel, 0, static_cast<uint32_t>(range.num_slices++)});
      range.count += numel;
      TensorSlice& tensor = list.tensors.emplace_back();
      tensor.shape = list.sizes.size();
      tensor.ndim = 2;
      tensor.batch = at_once;
      list.sizes.push_back(batch.rows);
      list.sizes.push_back(batch.cols);
    }
  }
  return list;
}

// Fails unless each matrix is in one batch of its shape.
void ExpectCovered(const std::vector<MatrixRun>& runs,
                   const std::vector<EqualMatrices>& batches) {
  size_t next = 0;
  size_t of_batch = 0;
  size_t batch = 0;
  for (const MatrixRun& run : runs) {
    EXPECT_EQ(run.first, next);
    ASSERT_LT(batch, batches.size());
    EXPECT_EQ(run.matrices.rows, batches[batch].rows);
    EXPECT_EQ(run.matrices.cols, batches[batch].cols);
    next += run.matrices.count;
    of_batch += run.matrices.count;
    ASSERT_LE(of_batch, batches[batch].count);
    if (of_batch < batches[batch].count) continue;
    ++batch;
    of_batch = 0;
  }
  EXPECT_EQ(batch, batches.size());
}

TEST(MatrixRunsTest, AreBalancedAndFew) {
  const std::vector<EqualMatrices> batches = {
      {8, 8, 100}, {8, 16, 1}, {16, 8, 7}, {33, 70, 5}};
  for (const size_t at_once : {1, 2, 3, 5, 7, 34, 99, 100, 1000}) {
    SCOPED_TRACE(StrCat(at_once, " at once"));
    const UpdateList list = ListOf(batches, at_once);
    const auto runs = MatrixRuns(list, list.ranges[0]);
    ExpectCovered(runs, batches);
    for (const EqualMatrices& batch : batches) {
      size_t count = 0;
      size_t least = batch.count;
      size_t most = 0;
      for (const MatrixRun& run : runs) {
        if (run.matrices.rows != batch.rows ||
            run.matrices.cols != batch.cols) {
          continue;
        }
        ++count;
        least = std::min(least, run.matrices.count);
        most = std::max(most, run.matrices.count);
      }
      EXPECT_GE(least, 1u);
      EXPECT_LE(most, at_once);
      EXPECT_LE(most - least, 1u);
      // No fewer would do.
      EXPECT_EQ(count, (batch.count + at_once - 1) / at_once);
    }
  }
}

TEST(MatrixRunsTest, ARangeWithoutMatricesHasNone) {
  const UpdateList list = ListOf({}, 1);
  EXPECT_TRUE(MatrixRuns(list, list.ranges[0]).empty());
}

// Where matrices lie, each is aligned, and none overlaps another.
TEST(MatrixRunsTest, TheMemoryOfABatchIsItsWorkspace) {
  for (const EqualMatrices& batch :
       {EqualMatrices{8, 8, 3}, EqualMatrices{5, 70, 2},
        EqualMatrices{70, 5, 1}}) {
    alignas(kMatrixAlignment) static std::byte memory[1 << 16];
    const MuonMemory at(reinterpret_cast<float*>(memory), batch, nullptr);
    ASSERT_LE(batch.workspace_bytes(), sizeof(memory));
    EXPECT_GE(batch.stride(),
              static_cast<size_t>(batch.rows * batch.cols) * sizeof(float));
    EXPECT_EQ(batch.stride() % kCublasAlignment, 0u);
    EXPECT_EQ(batch.small_stride() % kCublasAlignment, 0u);
    EXPECT_EQ(at.x, memory);
    EXPECT_EQ(at.other, at.x + batch.count * batch.stride());
    EXPECT_EQ(at.gram, at.other + batch.count * batch.stride());
    EXPECT_EQ(at.poly, at.gram + batch.count * batch.small_stride());
    EXPECT_EQ(at.poly + batch.count * batch.small_stride(),
              memory + batch.workspace_bytes());
  }
}

}  // namespace
}  // namespace shard::cuda
