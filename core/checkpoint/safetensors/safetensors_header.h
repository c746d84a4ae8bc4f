// SPDX-License-Identifier: Apache-2.0
//
// The header of a safetensors file: which tensors it holds, and where.
//
//   8 bytes   N, little-endian
//   N bytes   JSON: {"KEY": {"dtype": "F32", "shape": [2, 3],
//             "data_offsets": [0, 24]}, ..., "__metadata__": {"NAME": "TEXT"}},
//             and spaces
//   the rest  the tensors, little-endian, row-major; data_offsets count from
//             here and leave neither a hole nor a byte at the end
//
// SafetensorsHeader holds what was read, in the order of the data; all of it
// was checked. It copies: the text is not needed afterwards. Immutable; any
// number of threads may use it.

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

// "F32"; null for kQ8, which the format has not, and for kOpaque, which are
// several.
const char* SafetensorsTypeName(ElementType type);
// kOpaque for a type that libshard does not read: the format has some, and will
// have more. nullopt for what is no name of a type: letters, digits and '_', at
// most kMaxSafetensorsType.
std::optional<ElementType> SafetensorsTypeOf(std::string_view name);
inline constexpr size_t kMaxSafetensorsType = 32;

// Whether elements of a type that is kOpaque, of a shape, can have so many
// bytes. Of a type whose size is not known, any number. The number of elements.
StatusOr<int64_t> CheckOpaqueTensor(std::string_view type,
                                    std::span<const int64_t> shape,
                                    uint64_t bytes);

// N. kCorrupt when it cannot be that of a file of `file_bytes`.
StatusOr<uint64_t> SafetensorsHeaderBytes(
    std::span<const std::byte, kSafetensorsPrefixBytes> prefix,
    uint64_t file_bytes);

class SafetensorsHeader {
 public:
  struct Tensor {
    std::string_view key;
    const int64_t* dims = nullptr;
    uint8_t rank = 0;
    uint8_t opaque_type = 0;  // Of kOpaque: for type_name.
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

  // `json` is the N bytes, `data_bytes` what follows them in the file. Memory:
  // at most the size of `json` and 16 MiB. O(n log n) in the tensors. Errors:
  // kCorrupt says which tensor and value is wrong; kResourceExhausted for a
  // header that would take more memory than that.
  static StatusOr<SafetensorsHeader> Parse(std::string_view json,
                                           uint64_t data_bytes);

  // By ascending place, tensors without elements included.
  size_t num_tensors() const { return tensors_.size(); }
  const Tensor& tensor(size_t index) const { return tensors_[index]; }
  // "F32", as in the file.
  std::string_view type_name(const Tensor& tensor) const {
    return tensor.type == ElementType::kOpaque
               ? opaque_types_[tensor.opaque_type]
               : SafetensorsTypeName(tensor.type);
  }
  // -1: there is none. O(log n).
  int64_t Find(std::string_view key) const;
  // In the order of the file.
  const std::deque<std::pair<std::string_view, std::string_view>>& metadata()
      const {
    return metadata_;
  }

 private:
  class Builder;

  explicit SafetensorsHeader(uint64_t limit) : arena_(limit) {}

  // Brings the tensors into the order of their data and indexes their keys.
  // kCorrupt unless keys differ and the tensors fill the data without gaps.
  Status Index(uint64_t data_bytes);

  Arena arena_;
  // Deques grow without a second copy of what they hold.
  std::deque<Tensor> tensors_;
  std::deque<std::pair<std::string_view, std::string_view>> metadata_;
  std::vector<uint32_t> by_key_;
  std::vector<std::string_view> opaque_types_;  // Each once.
};

// What a header is made from.
struct SafetensorsTensor {
  std::string key;
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;
  // Of kOpaque: the name of the type, and the bytes of the tensor.
  std::string opaque_type = {};
  uint64_t opaque_bytes = 0;
};

// The bytes of each. Errors: kInvalidArgument for what Parse would refuse, keys
// that are there twice included, and for kQ8.
StatusOr<std::vector<uint64_t>> CheckSafetensors(
    std::span<const SafetensorsTensor> tensors);

struct SafetensorsLayout {
  // All that precedes the data: a multiple of 8 bytes.
  std::string header;
  uint64_t file_bytes = 0;
  // By tensor, in the order given: its place in the file.
  std::vector<uint64_t> begin;
  std::vector<uint64_t> bytes;
};

// Lays the tensors out as the format's own library does: by type, those of
// large elements first, then by key. Of types whose size is not known, tensors
// of whole 8 bytes come first and the others last, so that none of a known type
// loses its alignment. Errors: those of CheckSafetensors, and
// kInvalidArgument for metadata that is not UTF-8; kResourceExhausted for a
// header beyond the limit.
StatusOr<SafetensorsLayout> LayOutSafetensors(
    std::span<const SafetensorsTensor> tensors,
    std::span<const std::pair<std::string, std::string>> metadata);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_HEADER_H_
