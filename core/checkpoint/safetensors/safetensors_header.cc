// SPDX-License-Identifier: Apache-2.0
//
// Reading a header.

#include "core/checkpoint/safetensors/safetensors_header.h"

#include <algorithm>
#include <tuple>

#include "core/base/strings.h"
#include "core/checkpoint/safetensors/safetensors_builder.h"

namespace shard {

StatusOr<uint64_t> SafetensorsHeaderBytes(
    std::span<const std::byte, kSafetensorsPrefixBytes> prefix,
    uint64_t file_bytes) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < prefix.size(); ++i) {
    bytes |= std::to_integer<uint64_t>(prefix[i]) << (8 * i);
  }
  if (bytes > kMaxSafetensorsHeader) {
    return Corrupt("its header has ", bytes, " bytes; the format allows ",
                   kMaxSafetensorsHeader,
                   ". Is this a safetensors file at all?");
  }
  if (file_bytes < kSafetensorsPrefixBytes ||
      bytes > file_bytes - kSafetensorsPrefixBytes) {
    return Corrupt("its header has ", bytes, " bytes, and the file only ",
                   file_bytes, ": it is cut off");
  }
  return bytes;
}

StatusOr<SafetensorsHeader> SafetensorsHeader::Parse(std::string_view json,
                                                     uint64_t data_bytes) {
  if (json.size() > kMaxSafetensorsHeader) {
    return Corrupt("the header has ", json.size(), " bytes; the format allows ",
                   kMaxSafetensorsHeader);
  }
  if (json.empty() || json[0] != '{') {
    return Corrupt(
        "the header does not begin with '{'. Is this a safetensors "
        "file at all?");
  }
  // Removes padding, which may be longer than the JSON parser allows.
  json = json.substr(0, json.find_last_not_of(' ') + 1);
  SafetensorsHeader header(json.size() + kSafetensorsSlack);
  Builder builder(&header);
  SHARD_RETURN_IF_ERROR(ReadJson(json, &builder));
  SHARD_RETURN_IF_ERROR(header.Index(data_bytes));
  return header;
}

Status SafetensorsHeader::Index(uint64_t data_bytes) {
  // Sorts by the place of the data, then by key, so that the order is unique.
  std::sort(tensors_.begin(), tensors_.end(),
            [](const Tensor& a, const Tensor& b) {
              return std::tie(a.begin, a.bytes, a.key) <
                     std::tie(b.begin, b.bytes, b.key);
            });
  if (const auto twice = SortByKey(&by_key_, tensors_.size(), [&](uint32_t i) {
        return tensors_[i].key;
      })) {
    return Corrupt("key ", QuoteForMessage(*twice), " is there twice");
  }
  uint64_t end = 0;
  for (const Tensor& tensor : tensors_) {
    if (tensor.begin != end) {
      return Corrupt("tensor ", QuoteForMessage(tensor.key), " begins at byte ",
                     tensor.begin, " of the data, ",
                     tensor.begin < end ? "within the one before, which"
                                        : "after a hole: the one before",
                     " ends at ", end);
    }
    // No overflow: end <= data_bytes.
    if (tensor.bytes > data_bytes - end) {
      return Corrupt("tensor ", QuoteForMessage(tensor.key), " has bytes ",
                     tensor.begin, " to ", tensor.begin + tensor.bytes,
                     " of the data, and there are only ", data_bytes,
                     ": the file is cut off");
    }
    end += tensor.bytes;
  }
  if (end != data_bytes) {
    return Corrupt("there are ", data_bytes - end,
                   " bytes after the last tensor, which ends at byte ", end,
                   " of the data");
  }
  return Status();
}

int64_t SafetensorsHeader::Find(std::string_view key) const {
  const auto found = std::lower_bound(
      by_key_.begin(), by_key_.end(), key,
      [&](uint32_t i, std::string_view k) { return tensors_[i].key < k; });
  if (found == by_key_.end() || tensors_[*found].key != key) return -1;
  return *found;
}

}  // namespace shard
