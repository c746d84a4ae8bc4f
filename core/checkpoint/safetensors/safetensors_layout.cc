// SPDX-License-Identifier: Apache-2.0
//
// Writing a header.

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "core/base/json_writer.h"
#include "core/base/strings.h"
#include "core/checkpoint/safetensors/json_events.h"
#include "core/checkpoint/safetensors/safetensors_header.h"
#include "core/checkpoint/store/opaque_type.h"

namespace shard {

namespace {

// The names of types, in the order in which their tensors lie in a file.
constexpr std::string_view kTypeOrder[] = {
    "U64",         "I64",         "F64",     "C64",     "F32", "U32",
    "I32",         "BF16",        "F16",     "U16",     "I16", "F8_E8M0",
    "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E4M3", "F8_E5M2", "I8",  "U8",
    "BOOL",        "F6_E3M2",     "F6_E2M3", "F4",
};
static_assert(std::all_of(std::begin(kElementTypes), std::end(kElementTypes),
                          [](const ElementTypeInfo& info) {
                            return info.safetensors == nullptr ||
                                   std::find(std::begin(kTypeOrder),
                                             std::end(kTypeOrder),
                                             info.safetensors) !=
                                       std::end(kTypeOrder);
                          }),
              "every type of the format has a place in a file");

// REQUIRES: not kQ8, here and below.
std::string_view NameOf(const SafetensorsTensor& tensor) {
  return tensor.type == ElementType::kOpaque
             ? std::string_view(tensor.opaque_type)
             : SafetensorsTypeName(tensor.type);
}

// Returns the sort key of a tensor in a file: the place of its type, then its
// key.
std::pair<int, std::string_view> RankOf(const SafetensorsTensor& tensor) {
  const auto* const place =
      std::find(std::begin(kTypeOrder), std::end(kTypeOrder), NameOf(tensor));
  const bool first =
      place == std::end(kTypeOrder) && tensor.opaque_bytes % 8 == 0;
  return {first ? -1 : static_cast<int>(place - std::begin(kTypeOrder)),
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
    if (!IsOpaqueType(tensor.opaque_type)) {
      return InvalidArgument("tensor ", name, " is of the type ",
                             QuoteForMessage(tensor.opaque_type),
                             ", which is not one that is only carried");
    }
  } else if (SafetensorsTypeName(tensor.type) == nullptr) {
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
  return InfoOf(type).safetensors;
}

std::optional<ElementType> SafetensorsTypeOf(std::string_view name) {
  for (const ElementTypeInfo& info : kElementTypes) {
    if (info.safetensors != nullptr && info.safetensors == name) {
      return info.type;
    }
  }
  if (IsOpaqueType(name)) return ElementType::kOpaque;
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
  SafetensorsLayout layout;
  SHARD_ASSIGN_OR_RETURN(layout.bytes, CheckSafetensors(tensors));
  layout.begin.resize(tensors.size());
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return RankOf(tensors[a]) < RankOf(tensors[b]);
  });

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
