// SPDX-License-Identifier: Apache-2.0
//
// The header of a safetensors file: its tensors and their places.
//
//   8 bytes   N, little-endian
//   N bytes   JSON: {"KEY": {"dtype": "F32", "shape": [2, 3],
//             "data_offsets": [0, 24]}, ..., "__metadata__": {"NAME": "TEXT"}},
//             and spaces
//   the rest  the tensors, little-endian, row-major; data_offsets count from
//             here and leave neither a hole nor a byte at the end
//
// SafetensorsHeader holds the checked contents of a header, in the order of the
// data. The contents are copies: the text is not needed afterwards. Immutable;
// any number of threads may use it.

#ifndef SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_HEADER_H_
#define SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/checkpoint/safetensors/arena.h"
#include "core/checkpoint/store/tensor_info.h"

namespace shard {

inline constexpr size_t kSafetensorsPrefixBytes = 8;
// The format's limit.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;
inline constexpr size_t kMaxSafetensorsRank = 64;

// Returns the format's name of a type, such as "F32"; null for kQ8, which the
// format does not have, and for kOpaque, which has several names.
const char* SafetensorsTypeName(ElementType type);
// Returns the type of a name; kOpaque for a type that libshard does not read:
// the format has some, and will have more. nullopt for text that is no name of
// a type (opaque_type.h).
std::optional<ElementType> SafetensorsTypeOf(std::string_view name);

// Returns N. kCorrupt when a file of `file_bytes` cannot have it.
StatusOr<uint64_t> SafetensorsHeaderBytes(
    std::span<const std::byte, kSafetensorsPrefixBytes> prefix,
    uint64_t file_bytes);

class SafetensorsHeader {
 public:
  struct Tensor {
    std::string_view key;
    const int64_t* dims = nullptr;
    uint8_t rank = 0;
    uint8_t opaque_type = 0;  // For kOpaque: used by type_name.
    ElementType type = ElementType::kF32;
    uint64_t begin = 0;  // Counted from the header's end.
    uint64_t bytes = 0;

    std::span<const int64_t> shape() const { return {dims, rank}; }
    int64_t numel() const {
      if (type != ElementType::kOpaque) {
        return static_cast<int64_t>(bytes / ElementSize(type));
      }
      int64_t product = 1;
      for (const int64_t dim : shape()) product *= dim;
      return product;
    }
  };

  // Parses a header. `json` is the N bytes, `data_bytes` the number of bytes
  // after them in the file. Memory: at most the size of `json` and 16 MiB. O(n
  // log n) in the tensors. Errors: kCorrupt says which tensor and value is
  // wrong; kResourceExhausted for a header that would take more memory than
  // that.
  static StatusOr<SafetensorsHeader> Parse(std::string_view json,
                                           uint64_t data_bytes);

  // Return the tensors by ascending place, those without elements included.
  size_t num_tensors() const { return tensors_.size(); }
  const Tensor& tensor(size_t index) const { return tensors_[index]; }
  // Returns the name of the type in the file, such as "F32".
  std::string_view type_name(const Tensor& tensor) const {
    return tensor.type == ElementType::kOpaque
               ? opaque_types_[tensor.opaque_type]
               : SafetensorsTypeName(tensor.type);
  }
  // Returns the index of the tensor with this key, or -1. O(log n).
  int64_t Find(std::string_view key) const;
  // Returns the metadata in the order of the file.
  const std::deque<std::pair<std::string_view, std::string_view>>& metadata()
      const {
    return metadata_;
  }

 private:
  class Builder;

  explicit SafetensorsHeader(uint64_t limit) : arena_(limit) {}

  // Sorts the tensors by the place of their data and indexes their keys.
  // kCorrupt unless keys differ and the tensors fill the data without gaps.
  Status Index(uint64_t data_bytes);

  Arena arena_;
  // Deques grow without a second copy of their elements.
  std::deque<Tensor> tensors_;
  std::deque<std::pair<std::string_view, std::string_view>> metadata_;
  std::vector<uint32_t> by_key_;
  std::vector<std::string_view> opaque_types_;  // Each once.
};

// A tensor of a header to write.
struct SafetensorsTensor {
  std::string key;
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;
  // For kOpaque: the name of the type, and the bytes of the tensor.
  std::string opaque_type = {};
  uint64_t opaque_bytes = 0;
};

// Returns the bytes of each tensor. Errors: kInvalidArgument for tensors that
// Parse would reject, with duplicate keys among them, and for kQ8.
StatusOr<std::vector<uint64_t>> CheckSafetensors(
    std::span<const SafetensorsTensor> tensors);

struct SafetensorsLayout {
  // All bytes before the data: a multiple of 8.
  std::string header;
  uint64_t file_bytes = 0;
  // The place of each tensor in the file, in the order given.
  std::vector<uint64_t> begin;
  std::vector<uint64_t> bytes;
};

// Lays the tensors out as the format's own library does: by type, large
// elements first, then by key. Among tensors of types of unknown size, those
// with a multiple of 8 bytes come first of all and the others last, so that
// tensors of known types stay aligned. Errors: those of CheckSafetensors, and
// kInvalidArgument for metadata that is not UTF-8; kResourceExhausted for a
// header beyond the limit.
StatusOr<SafetensorsLayout> LayOutSafetensors(
    std::span<const SafetensorsTensor> tensors,
    std::span<const std::pair<std::string, std::string>> metadata);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_HEADER_H_
