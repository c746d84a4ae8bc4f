// SPDX-License-Identifier: Apache-2.0
//
// ReceiveBuffer: the bytes of a connection that have come and are not consumed
// yet. It begins small, since most of thousands of connections are idle, grows
// while reads fill it, and is small again once a large frame is consumed.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_RECEIVE_BUFFER_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_RECEIVE_BUFFER_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

namespace shard::network {

class ReceiveBuffer {
 public:
  static constexpr size_t kSmallest = 1024;
  // A buffer grows to this size by itself, and beyond only for a frame.
  static constexpr size_t kLargestIdle = size_t{256} << 10;

  std::span<const std::byte> data() const {
    return {bytes_.get() + begin_, end_ - begin_};
  }
  size_t capacity() const { return capacity_; }

  // Returns room for what comes next, in a buffer that can hold `least` bytes
  // in all.
  std::span<std::byte> Room(size_t least) {
    least = std::max(least, kSmallest);
    // A buffer that the last read has filled is too small for its sender.
    if (filled_ && capacity_ < kLargestIdle) {
      least = std::max(least, 2 * capacity_);
    }
    if (least > capacity_) {
      Move(least);
    } else if (begin_ > 0) {
      std::memmove(bytes_.get(), bytes_.get() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    return {bytes_.get() + end_, capacity_ - end_};
  }

  // Adds `count` bytes, which were written into the room.
  void Commit(size_t count) {
    end_ += count;
    filled_ = end_ == capacity_;
  }

  void Consume(size_t count) {
    begin_ += count;
    if (begin_ < end_) return;
    begin_ = end_ = 0;
    if (capacity_ > kLargestIdle) {
      bytes_.reset();
      capacity_ = 0;
    }
  }

 private:
  void Move(size_t capacity) {
    auto bytes = std::make_unique_for_overwrite<std::byte[]>(capacity);
    const size_t size = end_ - begin_;
    if (size > 0) std::memcpy(bytes.get(), bytes_.get() + begin_, size);
    bytes_ = std::move(bytes);
    capacity_ = capacity;
    begin_ = 0;
    end_ = size;
  }

  std::unique_ptr<std::byte[]> bytes_;
  size_t capacity_ = 0;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool filled_ = false;
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_RECEIVE_BUFFER_H_
