// SPDX-License-Identifier: Apache-2.0
//
// Mapping: zero-filled pages with one owner, which unmaps them.

#ifndef SHARD_CORE_BASE_MAPPING_H_
#define SHARD_CORE_BASE_MAPPING_H_

#include <cstddef>
#include <utility>

#include "core/base/status.h"

namespace shard {

class Mapping {
 public:
  // Maps private pages of this process. From 2 MiB on they begin at a multiple
  // of 2 MiB, for huge pages where the kernel has them: fewer TLB misses, and a
  // disk reads or writes them in few pieces. REQUIRES: bytes > 0.
  static StatusOr<Mapping> Anonymous(size_t bytes);

  // Maps the first `bytes` of `fd`, shared with all processes that map it; `fd`
  // may be closed afterwards. REQUIRES: the file is at least that long and
  // cannot shrink, bytes > 0.
  static StatusOr<Mapping> Shared(int fd, size_t bytes);

  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  Mapping(std::byte* data, size_t size) : data_(data), size_(size) {}

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_BASE_MAPPING_H_
