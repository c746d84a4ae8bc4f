// SPDX-License-Identifier: Apache-2.0
//
// Writing a header.

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/base/json_writer.h"
#include "core/base/strings.h"
#include "core/checkpoint/json_events.h"
#include "core/checkpoint/safetensors_header.h"

namespace shard {

namespace {

struct TypeName {
  ElementType type;
  const char* name;
};

// In the order in which tensors of these types lie in a file.
constexpr TypeName kTypeNames[] = {
    {ElementType::kU64, "U64"},        {ElementType::kI64, "I64"},
    {ElementType::kF64, "F64"},        {ElementType::kF32, "F32"},
    {ElementType::kU32, "U32"},        {ElementType::kI32, "I32"},
    {ElementType::kBF16, "BF16"},      {ElementType::kF16, "F16"},
    {ElementType::kU16, "U16"},        {ElementType::kI16, "I16"},
    {ElementType::kF8E4M3, "F8_E4M3"}, {ElementType::kF8E5M2, "F8_E5M2"},
    {ElementType::kI8, "I8"},          {ElementType::kU8, "U8"},
    {ElementType::kBool, "BOOL"},
};

const TypeName* FindType(ElementType type) {
  for (const TypeName& entry : kTypeNames) {
    if (entry.type == type) return &entry;
  }
  return nullptr;
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
  if (FindType(tensor.type) == nullptr) {
    return InvalidArgument("tensor ", name, " is ",
                           ElementTypeName(tensor.type),
                           ", which safetensors has not; load it as f32 first");
  }
  if (tensor.shape.size() > kMaxSafetensorsRank) {
    return InvalidArgument("tensor ", name, " has ", tensor.shape.size(),
                           " dimensions; at most ", kMaxSafetensorsRank,
                           " can be written");
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
  for (const TypeName& entry : kTypeNames) {
    if (entry.name == name) return entry.type;
  }
  return std::nullopt;
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
  const auto rank = [&](size_t i) {
    return std::pair<const TypeName*, std::string_view>(
        FindType(tensors[i].type), tensors[i].key);
  };
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return rank(a) < rank(b); });

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
    StrAppend(&json, ":{\"dtype\":\"", SafetensorsTypeName(tensor.type),
              "\",\"shape\":[");
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
