// SPDX-License-Identifier: Apache-2.0
//
// Parses a header, and takes one byte as the number of bytes of data. A header
// that is accepted is laid out again, with the same result.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/safetensors/safetensors_header.h"
#include "tests/fuzz/fuzz.h"

namespace shard {

namespace {

void CheckAccepted(const SafetensorsHeader& header, uint64_t data_bytes) {
  std::vector<SafetensorsTensor> tensors;
  uint64_t end = 0;
  for (size_t i = 0; i < header.num_tensors(); ++i) {
    const SafetensorsHeader::Tensor& tensor = header.tensor(i);
    FUZZ_CHECK(tensor.begin == end);
    end += tensor.bytes;
    FUZZ_CHECK(header.Find(tensor.key) == static_cast<int64_t>(i));
    const auto shape = tensor.shape();
    tensors.push_back({.key = std::string(tensor.key),
                       .type = tensor.type,
                       .shape = {shape.begin(), shape.end()}});
    if (tensor.type == ElementType::kOpaque) {
      tensors.back().opaque_type = header.type_name(tensor);
      tensors.back().opaque_bytes = tensor.bytes;
    }
  }
  FUZZ_CHECK(end == data_bytes);
  std::vector<std::pair<std::string, std::string>> metadata;
  for (const auto& [name, text] : header.metadata()) {
    // The library reads text that is not UTF-8, but does not write it.
    if (IsValidUtf8(name) && IsValidUtf8(text)) {
      metadata.emplace_back(name, text);
    }
  }
  const auto layout = LayOutSafetensors(tensors, metadata);
  FUZZ_CHECK(layout.ok());
  const auto again = SafetensorsHeader::Parse(
      std::string_view(layout->header).substr(kSafetensorsPrefixBytes),
      data_bytes);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(again->num_tensors() == tensors.size());
  FUZZ_CHECK(again->metadata().size() == metadata.size());
  for (const SafetensorsTensor& tensor : tensors) {
    const int64_t index = again->Find(tensor.key);
    FUZZ_CHECK(index >= 0);
    const auto& found = again->tensor(static_cast<size_t>(index));
    FUZZ_CHECK(found.type == tensor.type);
    if (tensor.type == ElementType::kOpaque) {
      FUZZ_CHECK(again->type_name(found) == tensor.opaque_type);
      FUZZ_CHECK(found.bytes == tensor.opaque_bytes);
    }
    const auto shape = found.shape();
    FUZZ_CHECK(std::vector<int64_t>(shape.begin(), shape.end()) ==
               tensor.shape);
  }
}

}  // namespace

}  // namespace shard

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const uint64_t data_bytes = data[size - 1];
  const std::string_view json(reinterpret_cast<const char*>(data), size - 1);
  const auto header = shard::WithinLimits(
      size, [&] { return shard::SafetensorsHeader::Parse(json, data_bytes); });
  if (header.ok()) {
    shard::CheckAccepted(*header, data_bytes);
  } else {
    FUZZ_CHECK(shard::IsValidUtf8(header.status().message()));
  }
  if (size >= shard::kSafetensorsPrefixBytes) {
    const std::span<const std::byte, shard::kSafetensorsPrefixBytes> prefix(
        reinterpret_cast<const std::byte*>(data),
        shard::kSafetensorsPrefixBytes);
    const auto bytes = shard::SafetensorsHeaderBytes(prefix, size);
    FUZZ_CHECK(!bytes.ok() || *bytes + shard::kSafetensorsPrefixBytes <= size);
  }
  return 0;
}
