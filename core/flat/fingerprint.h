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

// RecordHash: the hash of a sequence of records, for a fingerprint. A record is
// a word of facts and hashes of texts. A few cycles each, where XXH3 would take
// as long for a million records as reading them.
class RecordHash {
 public:
  void Add(uint64_t facts, uint64_t hash, uint64_t other_hash) {
    // The halves of the product depend on all bits of both factors.
    using Wide = unsigned __int128;
    const Wide product =
        static_cast<Wide>(hash ^ facts * kOdd) * (other_hash ^ kOther);
    value_ +=
        static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    value_ *= kOdd;  // So that the order counts.
  }

  uint64_t value() const { return value_; }

 private:
  // 5 modulo 8, so that no two of its first 2^62 powers are equal.
  static constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
  static constexpr uint64_t kOther = 0xC2B2AE3D27D4EB4F;

  uint64_t value_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_FLAT_FINGERPRINT_H_
