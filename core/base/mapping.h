// SPDX-License-Identifier: Apache-2.0
//
// Mapping: pages with one owner, unmapped with it. Zero-filled at first.

#ifndef SHARD_CORE_BASE_MAPPING_H_
#define SHARD_CORE_BASE_MAPPING_H_

#include <cstddef>
#include <utility>

#include "core/base/status.h"

namespace shard {

class Mapping {
 public:
  // Private pages of this process. From 2 MiB on they begin at a multiple of
  // that, for huge pages where the kernel has them: fewer TLB misses, and what
  // a disk reads or writes there is in few pieces. REQUIRES: bytes > 0.
  static StatusOr<Mapping> Anonymous(size_t bytes);

  // The first `bytes` of `fd`, shared with all who map it; `fd` may be closed
  // afterwards. REQUIRES: the file is at least that long and cannot shrink,
  // bytes > 0.
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
