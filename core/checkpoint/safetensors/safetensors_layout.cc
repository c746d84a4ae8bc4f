// SPDX-License-Identifier: Apache-2.0
//
// Writing a header.

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/base/json_writer.h"
#include "core/base/strings.h"
#include "core/checkpoint/safetensors/json_events.h"
#include "core/checkpoint/safetensors/safetensors_header.h"

namespace shard {

namespace {

struct TypeName {
  // A type that libshard has.
  constexpr TypeName(ElementType type)  // NOLINT: a row of the table below
      : type(type),
        name(InfoOf(type).safetensors),
        bits(uint64_t{8} * InfoOf(type).size) {}
  // A type that is only copied.
  constexpr TypeName(const char* name, uint64_t bits)
      : type(ElementType::kOpaque), name(name), bits(bits) {}

  ElementType type;
  const char* name;
  uint64_t bits;  // Per element.
};

// The types, in the order in which their tensors lie in a file.
constexpr TypeName kTypeNames[] = {
    ElementType::kU64,    ElementType::kI64,
    ElementType::kF64,    {"C64", 64},
    ElementType::kF32,    ElementType::kU32,
    ElementType::kI32,    ElementType::kBF16,
    ElementType::kF16,    ElementType::kU16,
    ElementType::kI16,    {"F8_E8M0", 8},
    {"F8_E4M3FNUZ", 8},   {"F8_E5M2FNUZ", 8},
    ElementType::kF8E4M3, ElementType::kF8E5M2,
    ElementType::kI8,     ElementType::kU8,
    ElementType::kBool,   {"F6_E3M2", 6},
    {"F6_E2M3", 6},       {"F4", 4},
};

const TypeName* FindType(ElementType type) {
  for (const TypeName& entry : kTypeNames) {
    if (entry.type == type && type != ElementType::kOpaque) return &entry;
  }
  return nullptr;
}

const TypeName* FindName(std::string_view name) {
  for (const TypeName& entry : kTypeNames) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

bool IsTypeName(std::string_view name) {
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
  return !name.empty() && name.size() <= kMaxSafetensorsType &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

const char* NameOf(const SafetensorsTensor& tensor) {
  return tensor.type == ElementType::kOpaque ? tensor.opaque_type.c_str()
                                             : SafetensorsTypeName(tensor.type);
}

// Returns the sort key of a tensor in a file: the place of its type, then its
// key.
std::pair<int, std::string_view> RankOf(const SafetensorsTensor& tensor) {
  const TypeName* const type = tensor.type == ElementType::kOpaque
                                   ? FindName(tensor.opaque_type)
                                   : FindType(tensor.type);
  const int unknown = tensor.opaque_bytes % 8 == 0
                          ? -1
                          : static_cast<int>(std::size(kTypeNames));
  return {type == nullptr ? unknown : static_cast<int>(type - kTypeNames),
          tensor.key};
}

Status CheckText(const char* what, const std::string& text) {
  if (IsValidUtf8(text)) return Status();
  return InvalidArgument(what, " ", QuoteForMessage(text),
                         " is not UTF-8 without NUL");
}

StatusOr<uint64_t> CheckedBytes(const SafetensorsTensor& tensor) {
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  if (tensor.key == "__metadata__") {
    return InvalidArgument(
        "a tensor cannot be named '__metadata__' in a safetensors file; "
        "rename it");
  }
  SHARD_RETURN_IF_ERROR(CheckText("key", tensor.key));
  const std::string name = QuoteForMessage(tensor.key);
  if (tensor.type == ElementType::kOpaque) {
    if (SafetensorsTypeOf(tensor.opaque_type) != ElementType::kOpaque) {
      return InvalidArgument("tensor ", name, " is of the type ",
                             QuoteForMessage(tensor.opaque_type),
                             ", which is not one that is only carried");
    }
  } else if (FindType(tensor.type) == nullptr) {
    return InvalidArgument("tensor ", name, " is ",
                           ElementTypeName(tensor.type),
                           ", which safetensors has not; load it as f32 first");
  }
  if (tensor.shape.size() > kMaxSafetensorsRank) {
    return InvalidArgument("tensor ", name, " has ", tensor.shape.size(),
                           " dimensions; at most ", kMaxSafetensorsRank,
                           " can be written");
  }
  if (tensor.type == ElementType::kOpaque) {
    const Status status =
        CheckOpaqueTensor(tensor.opaque_type, tensor.shape, tensor.opaque_bytes)
            .status();
    if (!status.ok()) return status.WithContext(StrCat("tensor ", name));
    return tensor.opaque_bytes;
  }
  uint64_t bytes = ElementSize(tensor.type);
  for (const int64_t dim : tensor.shape) {
    if (dim < 0 || (dim > 0 && bytes > kMax / static_cast<uint64_t>(dim))) {
      return InvalidArgument("tensor ", name, " has the shape ",
                             FormatList(tensor.shape),
                             ": negative, or more bytes than 63 bits count");
    }
    bytes *= static_cast<uint64_t>(dim);
  }
  return bytes;
}

}  // namespace

const char* SafetensorsTypeName(ElementType type) {
  const TypeName* entry = FindType(type);
  return entry == nullptr ? nullptr : entry->name;
}

std::optional<ElementType> SafetensorsTypeOf(std::string_view name) {
  const TypeName* const entry = FindName(name);
  if (entry != nullptr) return entry->type;
  if (IsTypeName(name)) return ElementType::kOpaque;
  return std::nullopt;
}

StatusOr<int64_t> CheckOpaqueTensor(std::string_view type,
                                    std::span<const int64_t> shape,
                                    uint64_t bytes) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int64_t numel = 1;
  for (const int64_t dim : shape) {
    if (dim < 0 || (dim > 0 && numel > kMax / dim)) {
      return InvalidArgument(
          "a shape of ", FormatList(shape),
          " is negative, or has more elements than 63 bits can count");
    }
    numel *= dim;
  }
  if (bytes > static_cast<uint64_t>(kMax)) {
    return InvalidArgument(bytes, " bytes are more than 63 bits can count");
  }
  const TypeName* const known = FindName(type);
  if (known == nullptr) return numel;
  // Neither product overflows 128 bits.
  using Wide = unsigned __int128;
  if (Wide{bytes} * 8 ==
      Wide{static_cast<uint64_t>(numel)} * Wide{known->bits}) {
    return numel;
  }
  return InvalidArgument(bytes, " bytes are not those of ", type, " of shape ",
                         FormatList(shape), ", at ", known->bits, " bits each");
}

StatusOr<std::vector<uint64_t>> CheckSafetensors(
    std::span<const SafetensorsTensor> tensors) {
  constexpr uint64_t kMax =
      std::numeric_limits<int64_t>::max() - kMaxSafetensorsHeader - 8;
  std::vector<uint64_t> bytes;
  std::vector<std::string_view> keys;
  bytes.reserve(tensors.size());
  keys.reserve(tensors.size());
  uint64_t total = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    SHARD_ASSIGN_OR_RETURN(const uint64_t size, CheckedBytes(tensor));
    if (size > kMax - total) {
      return InvalidArgument("the tensors have more bytes than 63 bits count");
    }
    total += size;
    bytes.push_back(size);
    keys.push_back(tensor.key);
  }
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice == keys.end()) return bytes;
  return InvalidArgument("key ", QuoteForMessage(*twice), " is there twice");
}

StatusOr<SafetensorsLayout> LayOutSafetensors(
    std::span<const SafetensorsTensor> tensors,
    std::span<const std::pair<std::string, std::string>> metadata) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return RankOf(tensors[a]) < RankOf(tensors[b]);
  });

  SafetensorsLayout layout;
  layout.begin.resize(tensors.size());
  SHARD_ASSIGN_OR_RETURN(layout.bytes, CheckSafetensors(tensors));
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [name, text] : metadata) {
      SHARD_RETURN_IF_ERROR(CheckText("metadata", name));
      SHARD_RETURN_IF_ERROR(CheckText("metadata", text));
      if (json.back() != '{') json += ',';
      AppendJsonString(&json, name);
      json += ':';
      AppendJsonString(&json, text);
    }
    json += '}';
  }
  uint64_t end = 0;
  for (const size_t i : order) {
    const SafetensorsTensor& tensor = tensors[i];
    layout.begin[i] = end;
    end += layout.bytes[i];
    if (json.size() > 1) json += ',';
    AppendJsonString(&json, tensor.key);
    StrAppend(&json, ":{\"dtype\":\"", NameOf(tensor), "\",\"shape\":[");
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      StrAppend(&json, d == 0 ? "" : ",", tensor.shape[d]);
    }
    StrAppend(&json, "],\"data_offsets\":[", layout.begin[i], ",", end, "]}");
    if (json.size() > kMaxSafetensorsHeader - 8) {
      return ResourceExhausted(
          "the header would have more than ", kMaxSafetensorsHeader,
          " bytes, the format's limit; write several files (max_shard_bytes)");
    }
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');

  layout.header.resize(kSafetensorsPrefixBytes);
  for (size_t i = 0; i < kSafetensorsPrefixBytes; ++i) {
    layout.header[i] =
        static_cast<char>(static_cast<uint64_t>(json.size()) >> (8 * i));
  }
  layout.header += json;
  for (uint64_t& begin : layout.begin) begin += layout.header.size();
  layout.file_bytes = layout.header.size() + end;
  return layout;
}

}  // namespace shard
