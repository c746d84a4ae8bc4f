// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/data/data_layout.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace shard::data_layout_test {
namespace {

TEST(DataLayoutTest, SmallSlicesShareAPage) {
  DataLayout layout;
  EXPECT_EQ(layout.file_bytes(), 0u);
  EXPECT_EQ(layout.Add(1), 0u);
  EXPECT_EQ(layout.Add(64), 64u);
  EXPECT_EQ(layout.Add(65), 128u);
  EXPECT_EQ(layout.Add(4095), 256u);
  EXPECT_EQ(layout.file_bytes(), 8192u);
  // A large slice begins at a page, and the next slice right behind it.
  EXPECT_EQ(layout.Add(4096), 8192u);
  EXPECT_EQ(layout.Add(4097), 12288u);
  EXPECT_EQ(layout.Add(3), 16448u);
  EXPECT_EQ(layout.file_bytes(), 20480u);
}

TEST(DataLayoutTest, NeverOverlapsAndPadsLessThanAPage) {
  std::mt19937 random(1);
  DataLayout layout;
  uint64_t end = 0;
  for (int i = 0; i < 10000; ++i) {
    const uint64_t bytes = 1 + random() % (i % 3 == 0 ? 20000 : 300);
    const uint64_t offset = layout.Add(bytes);
    EXPECT_GE(offset, end);
    EXPECT_LT(offset - end, kSliceAlignment);
    EXPECT_EQ(offset % (bytes >= kSliceAlignment ? kSliceAlignment
                                                 : kSmallSliceAlignment),
              0u);
    end = offset + bytes;
    EXPECT_EQ(layout.file_bytes() % kSliceAlignment, 0u);
    EXPECT_GE(layout.file_bytes(), end);
    EXPECT_LT(layout.file_bytes() - end, kSliceAlignment);
  }
}

TEST(DataLayoutTest, SlicesGrowWithTheCheckpoint) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  EXPECT_EQ(SliceBytes(0), 4 * kMiB);
  EXPECT_EQ(SliceBytes(kMiB << 20), 4 * kMiB);
  EXPECT_EQ(SliceBytes((kMiB << 20) * 4), 16 * kMiB);
  EXPECT_EQ(SliceBytes(UINT64_MAX / 2), kMaxSliceBytes);
}

TEST(DataLayoutTest, TensorsAreCutIntoSlices) {
  DataLayout layout;
  layout.Add(100);
  std::vector<Slice> slices;
  PlaceElements(5, 0, 4, 3, 4096, &layout, &slices);
  EXPECT_TRUE(slices.empty());
  // Slices have 1024 elements each, and the last one the rest.
  PlaceElements(5, 2500, 4, 3, 4096, &layout, &slices);
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices[0].begin, 5);
  EXPECT_EQ(slices[0].numel, 1024);
  EXPECT_EQ(slices[0].extent.file, 3u);
  EXPECT_EQ(slices[0].extent.offset, 4096u);
  EXPECT_EQ(slices[0].extent.bytes, 4096u);
  EXPECT_EQ(slices[1].begin, 1029);
  EXPECT_EQ(slices[1].extent.offset, 8192u);
  EXPECT_EQ(slices[2].begin, 2053);
  EXPECT_EQ(slices[2].numel, 452);
  EXPECT_EQ(slices[2].extent.offset, 12288u);
  EXPECT_EQ(slices[2].extent.bytes, 1808u);
}

TEST(DataLayoutTest, FilesAreNamedByNumber) {
  EXPECT_EQ(DataFileName(0), "data-00000.bin");
  EXPECT_EQ(DataFileName(123456), "data-123456.bin");
}

}  // namespace
}  // namespace shard::data_layout_test
