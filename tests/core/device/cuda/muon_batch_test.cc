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

// A list of one range of matrices, of shapes that are adjacent where equal.
UpdateList ListOf(const std::vector<EqualMatrices>& batches) {
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

TEST(MatrixRunsTest, AreBalancedAndFitTheWorkspace) {
  const std::vector<EqualMatrices> batches = {
      {8, 8, 100}, {8, 16, 1}, {16, 8, 7}, {33, 70, 5}};
  const UpdateList list = ListOf(batches);
  const size_t largest = EqualMatrices{33, 70, 1}.workspace_bytes();
  for (const size_t bytes :
       {largest, largest + 1, 2 * largest - 1, 2 * largest, 1000 * largest}) {
    SCOPED_TRACE(StrCat(bytes, " bytes"));
    const auto runs = MatrixRuns(list, list.ranges[0], bytes);
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
        EXPECT_LE(run.matrices.workspace_bytes(), bytes);
      }
      EXPECT_GE(least, 1u);
      EXPECT_LE(most - least, 1u);
      // No fewer would do.
      const size_t one =
          EqualMatrices{batch.rows, batch.cols, 1}.workspace_bytes();
      EXPECT_EQ(count, (batch.count + bytes / one - 1) / (bytes / one));
    }
  }
}

TEST(MatrixRunsTest, AWorkspaceOfOneMatrixHasOneAtATime) {
  const std::vector<EqualMatrices> batches = {{40, 30, 4}};
  const UpdateList list = ListOf(batches);
  const size_t one = EqualMatrices{40, 30, 1}.workspace_bytes();
  const auto runs = MatrixRuns(list, list.ranges[0], one);
  EXPECT_EQ(runs.size(), 4u);
  ExpectCovered(runs, batches);
  EXPECT_EQ(MatrixRuns(list, list.ranges[0], 4 * one).size(), 1u);
}

TEST(MatrixRunsTest, ARangeWithoutMatricesHasNone) {
  const UpdateList list = ListOf({});
  EXPECT_TRUE(MatrixRuns(list, list.ranges[0], 0).empty());
}

// Where matrices lie, each is aligned, and none overlaps another.
TEST(MatrixRunsTest, TheMemoryOfABatchIsItsWorkspace) {
  for (const EqualMatrices& batch :
       {EqualMatrices{8, 8, 3}, EqualMatrices{5, 70, 2},
        EqualMatrices{70, 5, 1}}) {
    alignas(kCublasAlignment) static std::byte memory[1 << 16];
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
