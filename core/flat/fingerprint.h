// SPDX-License-Identifier: Apache-2.0
//
// Fingerprint: XXH3-64 over a sequence of values of any sizes. It first gathers
// the values into one block of memory: XXH3 runs at memory speed over kilobytes
// and an order of magnitude slower when fed four bytes at a time.
//
// The result depends on the values' order and sizes. A sequence of
// self-delimiting records (a length before every string) is therefore
// unambiguous. Values are little-endian, as on every machine the library runs
// on.

#ifndef SHARD_CORE_FLAT_FINGERPRINT_H_
#define SHARD_CORE_FLAT_FINGERPRINT_H_

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <type_traits>

namespace shard {

class Fingerprint {
 public:
  Fingerprint() : buffers_(new Buffers) { XXH3_64bits_reset(&buffers_->state); }

  template <typename T>
  void Add(T value) {
    static_assert(std::is_integral_v<T>, "enums and floats: say as what");
    AddBytes(&value, sizeof(value));
  }

  // Adds the length of `text`, then its bytes.
  void AddString(std::string_view text) {
    Add(static_cast<uint32_t>(text.size()));
    AddBytes(text.data(), text.size());
  }

  // Adds several pieces: integers as Add does, text as AddBytes does. Checks
  // for room once, which matters where a million tensors add five pieces each.
  template <typename... Pieces>
  void AddAll(Pieces... pieces) {
    const size_t size = (SizeOf(pieces) + ...);
    if (size > kPending - used_) Flush();
    if (size > kPending) {
      (AddPiece(pieces), ...);
      return;
    }
    char* at = buffers_->pending + used_;
    ((at = Put(pieces, at)), ...);
    used_ += size;
  }

  void AddBytes(const void* data, size_t size) {
    if (size > kPending - used_) {
      Flush();
      if (size > kPending) {
        XXH3_64bits_update(&buffers_->state, data, size);
        return;
      }
    }
    if (size > 0) std::memcpy(buffers_->pending + used_, data, size);
    used_ += size;
  }

  uint64_t Finish() {
    Flush();
    return XXH3_64bits_digest(&buffers_->state);
  }

 private:
  static constexpr size_t kPending = 16 * 1024;  // Fits into the L1 cache.

  static size_t SizeOf(std::string_view text) { return text.size(); }
  template <typename T>
  static size_t SizeOf(T) {
    return sizeof(T);
  }

  void AddPiece(std::string_view text) { AddBytes(text.data(), text.size()); }
  template <typename T>
  void AddPiece(T value) {
    Add(value);
  }

  // Copies a name or shape. They are short, so it avoids a call for each.
  static char* Put(std::string_view text, char* to) {
    const size_t size = text.size();
    const char* const from = text.data();
    // Copies two halves, which overlap.
    if (size >= 8 && size <= 16) {
      std::memcpy(to, from, 8);
      std::memcpy(to + size - 8, from + size - 8, 8);
    } else if (size >= 4 && size < 8) {
      std::memcpy(to, from, 4);
      std::memcpy(to + size - 4, from + size - 4, 4);
    } else if (size > 0) {
      std::memcpy(to, from, size);
    }
    return to + size;
  }
  template <typename T>
  static char* Put(T value, char* to) {
    static_assert(std::is_integral_v<T>, "enums and floats: say as what");
    std::memcpy(to, &value, sizeof(value));
    return to + sizeof(value);
  }

  void Flush() {
    XXH3_64bits_update(&buffers_->state, buffers_->pending, used_);
    used_ = 0;
  }

  // On the heap for its size.
  struct Buffers {
    XXH3_state_t state;
    char pending[kPending];
  };

  std::unique_ptr<Buffers> buffers_;
  size_t used_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_FLAT_FINGERPRINT_H_
