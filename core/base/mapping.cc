// SPDX-License-Identifier: Apache-2.0

#include "core/base/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "core/base/rounding.h"
#include "core/base/strings.h"

namespace shard {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Unmaps the parts of a mapping of `mapped` bytes before its first huge page
// and after `bytes` from there. The kernel itself aligns a mapping only when
// its length is a multiple of huge pages, and only in recent versions.
std::byte* TrimToHugePage(std::byte* data, size_t mapped, size_t bytes) {
  const size_t past = reinterpret_cast<uintptr_t>(data) % kHugePage;
  const size_t before = past == 0 ? 0 : kHugePage - past;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t end = before + RoundUp(bytes, page);
  if (before > 0) ::munmap(data, before);
  if (end < mapped) ::munmap(data + end, mapped - end);
  return data + before;
}

}  // namespace

StatusOr<Mapping> Mapping::Anonymous(size_t bytes) {
  const bool huge = bytes >= kHugePage;
  const size_t mapped =
      huge && bytes <= SIZE_MAX - kHugePage ? bytes + kHugePage : bytes;
  void* const pages = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    return ErrnoStatus(StrCat("mapping ", FormatBytes(bytes)), errno);
  }
  auto* data = static_cast<std::byte*>(pages);
  if (huge) {
    data = TrimToHugePage(data, mapped, bytes);
    ::madvise(data, bytes, MADV_HUGEPAGE);  // Advice only.
  }
  return Mapping(data, bytes);
}

StatusOr<Mapping> Mapping::Shared(int fd, size_t bytes) {
  void* data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return ErrnoStatus(StrCat("mapping ", FormatBytes(bytes), " of a file"),
                       errno);
  }
  return Mapping(static_cast<std::byte*>(data), bytes);
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    Mapping old(std::exchange(data_, std::exchange(other.data_, nullptr)),
                std::exchange(size_, std::exchange(other.size_, 0)));
  }
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace shard
