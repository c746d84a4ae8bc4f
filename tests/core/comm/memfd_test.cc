// SPDX-License-Identifier: Apache-2.0

#include "core/comm/shm/memfd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/fd.h"
#include "core/base/mapping.h"

namespace shard::shm::memfd_test {
namespace {

size_t PageBytes() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

// Returns whether each page of `mapping` is there and needs no page fault.
std::vector<bool> MappedPages(const Mapping& mapping) {
  std::vector<uint64_t> entries(mapping.size() / PageBytes());
  const size_t bytes = entries.size() * sizeof(uint64_t);
  const auto first = reinterpret_cast<uintptr_t>(mapping.data()) / PageBytes();
  const Fd pages(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(::pread(pages.get(), entries.data(), bytes,
                    static_cast<off_t>(first * sizeof(uint64_t))),
            static_cast<ssize_t>(bytes));
  std::vector<bool> mapped;
  for (const uint64_t entry : entries) mapped.push_back(entry >> 63 != 0);
  return mapped;
}

TEST(MemfdTest, PagesOfTheCommittedRangeAreThereAndNoOthers) {
  const auto memory = CreateMemory("test", 64 * PageBytes());
  ASSERT_TRUE(memory.ok()) << memory.status().ToString();
  const auto mapping = MapMemory(memory->get(), 64 * PageBytes(),
                                 16 * PageBytes(), 32 * PageBytes());
  ASSERT_TRUE(mapping.ok()) << mapping.status().ToString();
  std::vector<bool> committed(64);
  for (size_t page = 16; page < 48; ++page) committed[page] = true;
  EXPECT_EQ(MappedPages(*mapping), committed);
}

TEST(MemfdTest, MemoryThatCouldShrinkIsRefused) {
  const Fd memory(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memory.get(), static_cast<off_t>(PageBytes())), 0);
  EXPECT_EQ(
      MapMemory(memory.get(), PageBytes(), 0, PageBytes()).status().code(),
      StatusCode::kInternal);
}

}  // namespace
}  // namespace shard::shm::memfd_test
