// SPDX-License-Identifier: Apache-2.0
//
// Fills of a GPU write the bytes of their parts, and no other: the kernel,
// compiled for the host.

#include "kernels/cuda/fill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/kernels/cuda/run_kernel.h"

namespace shard::fill_test {
namespace {

using testing::Grid;
using testing::kGrids;
using testing::RunKernel;

using Bytes = std::vector<unsigned char>;

Bytes RandomBytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  // No zeros, which a fill writes.
  for (auto& byte : bytes)
    byte = static_cast<unsigned char>(random() % 255 + 1);
  return bytes;
}

// A part of `to`, by offsets.
struct Part {
  size_t to;
  size_t from;
  size_t bytes;
  bool zeros;
};

// Does the parts in one launch, and as std::copy does them.
void Check(const std::vector<Part>& parts, size_t size, const Grid& grid) {
  const Bytes from = RandomBytes(size, 1);
  Bytes to = RandomBytes(size, 2);
  Bytes expected = to;
  cuda::FillArgs args = {};
  for (const Part& part : parts) {
    const auto* const source = from.data() + part.from;
    auto* const target = expected.data() + part.to;
    if (part.zeros) {
      std::fill_n(target, part.bytes, uint8_t{0});
    } else {
      std::copy_n(source, part.bytes, target);
    }
    ASSERT_TRUE(cuda::AddFillPart(
        {to.data() + part.to, part.zeros ? nullptr : source, part.bytes},
        &args));
  }
  RunKernel("shard_fill", args, grid);
  const auto at = std::mismatch(to.begin(), to.end(), expected.begin());
  ASSERT_TRUE(at.first == to.end()) << "byte " << at.first - to.begin();
}

TEST(Fill, CopiesAtAllAlignments) {
  for (size_t to = 0; to < 17; ++to) {
    for (size_t from = 0; from < 17; ++from) {
      for (const size_t bytes : {1, 3, 15, 16, 17, 33, 700}) {
        SCOPED_TRACE(StrCat(bytes, " bytes from ", from, " to ", to));
        Check({{to, from, bytes, false}}, 1000, kGrids[0]);
        if (from == 0) Check({{to, 0, bytes, true}}, 1000, kGrids[0]);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Sources of their own, which end where a sanitizer sees it.
TEST(Fill, ReadsNothingBeyondTheSource) {
  for (const size_t offset : {0, 1, 2, 3, 4}) {
    for (const size_t bytes : {7, 8, 9, 10, 11, 700, 701, 702, 703}) {
      SCOPED_TRACE(StrCat(bytes, " bytes from ", offset));
      const Bytes from = RandomBytes(offset + bytes, 3);
      Bytes to(bytes);
      cuda::FillArgs args = {};
      ASSERT_TRUE(
          cuda::AddFillPart({to.data(), from.data() + offset, bytes}, &args));
      RunKernel("shard_fill", args, kGrids[0]);
      ASSERT_TRUE(std::equal(to.begin(), to.end(), from.data() + offset));
    }
  }
}

// Chunks end at aligned addresses: at both sides of their ends, for words of
// 16, 4 and 1 bytes.
TEST(Fill, CopiesChunks) {
  constexpr size_t kChunk = cuda::kFillChunk;
  for (const size_t to : {0, 5, 16}) {
    for (const size_t difference : {0, 4, 8, 3}) {
      for (const size_t bytes :
           {kChunk - 16, kChunk - 5, kChunk - 1, kChunk, kChunk + 1,
            3 * kChunk - 5, 3 * kChunk, 3 * kChunk + 20}) {
        for (const bool zeros : {false, true}) {
          SCOPED_TRACE(StrCat(bytes, " bytes to ", to));
          for (const Grid& grid : kGrids) {
            Check({{to, to + difference, bytes, zeros}}, 4 * kChunk, grid);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Fill, DoesManyPartsOfAllSizes) {
  std::mt19937 random(7);
  std::vector<Part> parts;
  size_t size = 0;
  while (parts.size() < cuda::kMaxFillParts) {
    const size_t most = random() % 8 == 0 ? 100000 : 40;
    const Part part = {size, random() % 1000, random() % most,
                       random() % 3 == 0};
    if (part.bytes == 0) continue;
    parts.push_back(part);
    // Parts may touch each other.
    size += part.bytes + (random() % 2 == 0 ? 0 : random() % 20);
  }
  for (const Grid& grid : kGrids) Check(parts, size + 200000, grid);
}

TEST(Fill, TakesAsManyPartsAsThereIsRoomFor) {
  cuda::FillArgs args = {};
  Bytes to(1000);
  for (uint32_t i = 0; i < cuda::kMaxFillParts; ++i) {
    EXPECT_TRUE(cuda::AddFillPart({to.data() + i, nullptr, 1}, &args));
  }
  EXPECT_FALSE(cuda::AddFillPart({to.data() + 500, nullptr, 1}, &args));
  // A part without bytes needs no room.
  EXPECT_TRUE(cuda::AddFillPart({to.data(), nullptr, 0}, &args));
  EXPECT_EQ(args.num_parts, cuda::kMaxFillParts);
  EXPECT_EQ(args.num_chunks, cuda::kMaxFillParts);

  args = {};
  EXPECT_FALSE(
      cuda::AddFillPart({to.data(), nullptr, uint64_t{1} << 62}, &args));
  EXPECT_EQ(args.num_parts, 0u);
}

TEST(Fill, NoPartsWriteNothing) { Check({}, 100, kGrids[2]); }

}  // namespace
}  // namespace shard::fill_test
