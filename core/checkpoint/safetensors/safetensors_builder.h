// SPDX-License-Identifier: Apache-2.0
//
// Makes a SafetensorsHeader from the events of its JSON. The builder checks the
// grammar of a header and each tensor by itself; SafetensorsHeader checks the
// tensors together.

#ifndef SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_BUILDER_H_
#define SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_BUILDER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/checkpoint/safetensors/json_events.h"
#include "core/checkpoint/safetensors/safetensors_header.h"

namespace shard {

// Bytes of memory that a header may take beyond its size: enough for a small
// one with shapes of many dimensions.
inline constexpr uint64_t kSafetensorsSlack = uint64_t{2} << 20;

// Sorts the indices of `size` elements by their keys. Returns a key that two
// elements share, if any.
template <typename Key>
std::optional<std::string_view> SortByKey(std::vector<uint32_t>* by_key,
                                          size_t size, Key key) {
  by_key->resize(size);
  std::iota(by_key->begin(), by_key->end(), 0u);
  std::sort(by_key->begin(), by_key->end(),
            [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
  const auto twice = std::adjacent_find(
      by_key->begin(), by_key->end(),
      [&](uint32_t a, uint32_t b) { return key(a) == key(b); });
  if (twice == by_key->end()) return std::nullopt;
  return key(*twice);
}

class SafetensorsHeader::Builder final : public JsonHandler {
 public:
  explicit Builder(SafetensorsHeader* header) : header_(*header) {}

  Status BeginObject() override;
  Status EndObject() override;
  Status BeginArray() override;
  Status EndArray() override;
  Status Key(std::string_view key) override;
  Status String(std::string_view value) override;
  Status Unsigned(uint64_t value) override;
  Status Other(std::string_view what) override { return Unexpected(what); }

 private:
  // kStart: before and after the document.
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };
  enum class Field { kType = 1, kShape = 2, kOffsets = 4 };

  static constexpr uint64_t kBytesPerTensor = sizeof(Tensor) + sizeof(uint32_t);
  static constexpr uint64_t kBytesPerMetadata =
      2 * sizeof(std::string_view) + sizeof(uint32_t);

  static Status TooLarge();
  Status InTensor(const Status& status) const;
  Status Unexpected(std::string_view what) const;
  const char* FieldName() const;
  Status OpaqueType(std::string_view name);
  Status TensorField(std::string_view key);
  Status AddTensor();
  Status AddOpaqueTensor();
  Status CheckOffsets() const;
  Status KeepTensor();
  Status CheckMetadata() const;
  Status Copy(std::string_view text, std::string_view* copy);

  SafetensorsHeader& header_;
  Place place_ = Place::kStart;
  Field field_ = Field::kType;
  bool in_metadata_ = false;
  bool seen_metadata_ = false;
  std::string_view metadata_name_;
  // The tensor that is being read.
  Tensor tensor_;
  std::vector<int64_t> dims_;
  int fields_seen_ = 0;
  uint64_t offsets_[2] = {};
  size_t num_offsets_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_BUILDER_H_
