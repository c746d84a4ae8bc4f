// SPDX-License-Identifier: Apache-2.0

#include "core/base/mapping.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "core/base/fd.h"

namespace shard::mapping_test {
namespace {

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(FdTest, ClosesOnceAndMoves) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  {
    Fd read(ends[0]);
    Fd write(ends[1]);
    Fd other = std::move(read);
    EXPECT_FALSE(read.valid());
    EXPECT_EQ(other.get(), ends[0]);
    other = std::move(write);  // Closes the descriptor that `other` had.
    EXPECT_FALSE(IsOpen(ends[0]));
    EXPECT_TRUE(IsOpen(ends[1]));
    EXPECT_EQ(other.Release(), ends[1]);
  }
  EXPECT_TRUE(IsOpen(ends[1]));
  ::close(ends[1]);
}

TEST(MappingTest, AnonymousIsZeroAndMoves) {
  auto made = Mapping::Anonymous(size_t{4} << 20);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  Mapping one = *std::move(made);
  std::byte* const data = one.data();
  EXPECT_EQ(data[0], std::byte{0});
  EXPECT_EQ(data[one.size() - 1], std::byte{0});
  Mapping two = std::move(one);
  EXPECT_EQ(one.data(), nullptr);
  EXPECT_EQ(two.data(), data);
  two = Mapping();
  // The memory is unmapped: the kernel knows no page there.
  unsigned char resident = 0;
  EXPECT_NE(::mincore(data, 1, &resident), 0);
}

// Returns the size of the address space of this process, in pages.
size_t MappedPages() {
  size_t pages = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  EXPECT_EQ(std::fscanf(file, "%zu", &pages), 1);
  std::fclose(file);
  return pages;
}

TEST(MappingTest, LargeOnesBeginWithAHugePageAndMapNoMore) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<Mapping> kept;
  for (const size_t bytes :
       {size_t{2} << 20, (size_t{2} << 20) + 1, (size_t{8} << 20) + page}) {
    // The first call lets stdio allocate its buffers.
    MappedPages();
    const size_t before = MappedPages();
    auto made = Mapping::Anonymous(bytes);
    const size_t after = MappedPages();
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(made->data()) % (size_t{2} << 20),
              size_t{0});
    EXPECT_EQ(after - before, (bytes + page - 1) / page);
    made->data()[bytes - 1] = std::byte{1};
    kept.push_back(*std::move(made));
  }
}

TEST(MappingTest, SharedSeesTheFileAfterItIsClosed) {
  Fd fd(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(fd.get(), 8192), 0);
  auto one = Mapping::Shared(fd.get(), 8192);
  auto two = Mapping::Shared(fd.get(), 8192);
  ASSERT_TRUE(one.ok() && two.ok());
  fd.Reset();
  one->data()[8191] = std::byte{7};
  EXPECT_EQ(two->data()[8191], std::byte{7});
}

TEST(MappingTest, Refused) {
  EXPECT_EQ(Mapping::Anonymous(size_t{1} << 60).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_FALSE(Mapping::Shared(-1, 4096).ok());
}

}  // namespace
}  // namespace shard::mapping_test
