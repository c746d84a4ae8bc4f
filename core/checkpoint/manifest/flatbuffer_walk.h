// SPDX-License-Identifier: Apache-2.0
//
// Checks that bytes are a FlatBuffer that can be read without further checks.
//
// FlatBufferWalk visits every object once, and finds those that are misaligned
// or share bytes. FlatBuffers' own verifier detects neither shared bytes (a
// table that a million others share makes a small file large) nor misaligned
// elements of vectors.
//
// Time is proportional to the bytes; memory is a 32nd of them.

#ifndef SHARD_CORE_CHECKPOINT_MANIFEST_FLATBUFFER_WALK_H_
#define SHARD_CORE_CHECKPOINT_MANIFEST_FLATBUFFER_WALK_H_

#include <flatbuffers/flatbuffers.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace shard {

// Returns whether `verify`, a function that flatc generated, accepts `body`.
// For schemas whose root has tables, and whose other tables have none.
// REQUIRES: `body` is aligned to 8 bytes and has less than 2 GiB.
inline bool IsFlatBuffer(std::span<const std::byte> body,
                         bool (*verify)(flatbuffers::Verifier& verifier)) {
  // The least that a table takes: its offset in a vector, and itself.
  constexpr size_t kMinTableBytes = 8;
  flatbuffers::Verifier::Options options;
  options.max_depth = 2;
  options.max_tables =
      static_cast<flatbuffers::uoffset_t>(body.size() / kMinTableBytes);
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(body.data()),
                                 body.size(), options);
  return verify(verifier);
}

class FlatBufferWalk {
 public:
  // REQUIRES: IsFlatBuffer(body), and only objects of `body` below.
  explicit FlatBufferWalk(std::span<const std::byte> body) : words_(body) {
    // The root's offset and the file identifier.
    ok_ = words_.Take(body.data(), 8);
  }

  // Returns false from the first misplaced object on.
  bool ok() const { return ok_; }

  void Table(const flatbuffers::Table* table) {
    const auto* begin = reinterpret_cast<const uint8_t*>(table);
    // A vtable is its own size, the table's size, and offsets of fields. Any
    // number of tables may share a vtable.
    const uint8_t* vtable = table->GetVTable();
    if (flatbuffers::ReadScalar<flatbuffers::voffset_t>(vtable) < 4) {
      ok_ = false;
      return;
    }
    const size_t bytes =
        flatbuffers::ReadScalar<flatbuffers::voffset_t>(vtable + 2);
    ok_ = ok_ && bytes >= sizeof(flatbuffers::soffset_t) &&
          words_.Take(begin, bytes);
  }

  void String(const flatbuffers::String* text) {
    if (text == nullptr) return;
    // The string's bytes include the zero at its end.
    ok_ = ok_ && words_.Take(text, sizeof(flatbuffers::uoffset_t) +
                                       size_t{text->size()} + 1);
  }

  void Strings(
      const flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>*
          texts) {
    Vector(texts, sizeof(flatbuffers::uoffset_t),
           sizeof(flatbuffers::uoffset_t));
    if (texts == nullptr) return;
    for (flatbuffers::uoffset_t i = 0; ok_ && i < texts->size(); ++i) {
      String(texts->Get(i));
    }
  }

  // Elements are not followed. Where there are none, FlatBuffers' builder
  // aligns only the length.
  template <typename T>
  void Vector(const flatbuffers::Vector<T>* vector, size_t element_bytes,
              size_t alignment) {
    if (vector == nullptr) return;
    const bool aligned =
        vector->size() == 0 ||
        reinterpret_cast<uintptr_t>(vector->Data()) % alignment == 0;
    ok_ = ok_ && aligned &&
          words_.Take(vector, sizeof(flatbuffers::uoffset_t) +
                                  size_t{vector->size()} * element_bytes);
  }

  template <typename T, typename Visit>
  void Tables(const flatbuffers::Vector<flatbuffers::Offset<T>>* tables,
              Visit visit) {
    Vector(tables, sizeof(flatbuffers::uoffset_t),
           sizeof(flatbuffers::uoffset_t));
    if (tables == nullptr) return;
    for (flatbuffers::uoffset_t i = 0; ok_ && i < tables->size(); ++i) {
      const T* table = tables->Get(i);
      Table(reinterpret_cast<const flatbuffers::Table*>(table));
      // No other object shares the table, so its fields are visited once.
      if (ok_) visit(*table);
    }
  }

 private:
  // The words of four bytes that belong to an object. Every object begins with
  // a word.
  class Words {
   public:
    explicit Words(std::span<const std::byte> body)
        : begin_(reinterpret_cast<const uint8_t*>(body.data())),
          bytes_(body.size()),
          taken_((body.size() / kWord + kBits) / kBits) {}

    // Marks [from, from + bytes) as taken. Returns false when the bytes are not
    // inside, or partly taken already.
    bool Take(const void* from, size_t bytes) {
      const auto offset =
          static_cast<size_t>(static_cast<const uint8_t*>(from) - begin_);
      if (offset > bytes_ || bytes > bytes_ - offset) return false;
      size_t word = offset / kWord;
      const size_t end = (offset + bytes + kWord - 1) / kWord;
      while (word < end) {
        const size_t in_entry = word % kBits;
        const size_t count = std::min(kBits - in_entry, end - word);
        const uint64_t ones =
            count == kBits ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
        uint64_t& entry = taken_[word / kBits];
        if ((entry & ones << in_entry) != 0) return false;
        entry |= ones << in_entry;
        word += count;
      }
      return true;
    }

   private:
    static constexpr size_t kWord = 4;
    static constexpr size_t kBits = 64;

    const uint8_t* begin_;
    size_t bytes_;
    std::vector<uint64_t> taken_;
  };

  Words words_;
  bool ok_ = true;
};

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_MANIFEST_FLATBUFFER_WALK_H_
