// SPDX-License-Identifier: Apache-2.0

#include "core/base/mapping.h"

#include <sys/mman.h>

#include <cerrno>

#include "core/base/strings.h"

namespace shard {

StatusOr<Mapping> Mapping::Anonymous(size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return ErrnoStatus(StrCat("mapping ", FormatBytes(bytes)), errno);
  }
  // Tensors are walked from end to end: huge pages save TLB misses. Advice
  // only, and of no use below one huge page.
  constexpr size_t kHugePage = size_t{2} << 20;
  if (bytes >= kHugePage) ::madvise(data, bytes, MADV_HUGEPAGE);
  return Mapping(static_cast<std::byte*>(data), bytes);
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
