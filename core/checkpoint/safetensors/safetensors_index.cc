// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/safetensors/safetensors_index.h"

#include <algorithm>
#include <map>

#include "core/base/json_writer.h"
#include "core/base/strings.h"
#include "core/checkpoint/safetensors/json_events.h"

namespace shard {

namespace {

constexpr uint64_t kSlackBytes = uint64_t{2} << 20;
// A node of the map below, and the name in files_.
constexpr uint64_t kBytesPerFile = 128;
// Linux's limit.
constexpr size_t kMaxNameBytes = 255;

bool IsPlainName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name != "." &&
         name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace

// Makes an index from its JSON events.
class SafetensorsIndex::Builder final : public JsonHandler {
 public:
  explicit Builder(SafetensorsIndex* index) : index_(*index) {}

  Status BeginObject() override {
    if (depth_ == 2) return Unexpected("an object");
    ++depth_;
    return Status();
  }

  Status EndObject() override {
    --depth_;
    return Status();
  }

  Status BeginArray() override { return Unexpected("an array"); }
  Status EndArray() override { return Unexpected("an array"); }

  Status Key(std::string_view key) override {
    if (depth_ == 2) return section_ == kWeightMap ? TensorKey(key) : Status();
    if (key == "metadata") {
      section_ = kMetadata;
    } else if (key == "weight_map") {
      section_ = kWeightMap;
    } else {
      return Corrupt("unknown field ", QuoteForMessage(key),
                     "; there are metadata and weight_map");
    }
    if ((seen_ & section_) != 0) {
      return Corrupt(QuoteForMessage(key), " is there twice");
    }
    seen_ |= section_;
    return Status();
  }

  Status String(std::string_view value) override {
    if (depth_ != 2) return Unexpected(QuoteForMessage(value));
    if (section_ == kMetadata) return Status();
    if (!IsPlainName(value)) {
      return Corrupt(
          "tensor ", QuoteForMessage(key_), " is in file ",
          QuoteForMessage(value),
          ", which is not the plain name of a file beside the index");
    }
    auto found = file_of_.find(value);
    if (found == file_of_.end()) {
      if (!index_.arena_.Charge(kBytesPerFile)) return TooLarge();
      std::string_view name;
      SHARD_RETURN_IF_ERROR(Copy(value, &name));
      const auto file = static_cast<uint32_t>(index_.files_.size());
      index_.files_.push_back(name);
      found = file_of_.emplace(name, file).first;
    }
    if (!index_.arena_.Charge(sizeof(Entry))) return TooLarge();
    index_.entries_.push_back({.key = key_, .file = found->second});
    return Status();
  }

  Status Unsigned(uint64_t value) override { return Scalar(StrCat(value)); }
  Status Other(std::string_view what) override { return Scalar(what); }

  Status Finish() {
    if ((seen_ & kWeightMap) == 0) return Corrupt("there is no weight_map");
    std::deque<Entry>& entries = index_.entries_;
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.key < b.key; });
    const auto twice = std::adjacent_find(
        entries.begin(), entries.end(),
        [](const Entry& a, const Entry& b) { return a.key == b.key; });
    if (twice == entries.end()) return Status();
    return Corrupt("key ", QuoteForMessage(twice->key), " is there twice");
  }

 private:
  enum Section { kMetadata = 1, kWeightMap = 2 };

  static Status TooLarge() {
    return ResourceExhausted(
        "the index would take more memory than its size "
        "and ",
        FormatBytes(kSlackBytes), ": it has too many short names");
  }

  Status Unexpected(std::string_view what) const {
    if (depth_ == 0) return Corrupt("the index is ", what, ", not an object");
    const char* section = section_ == kMetadata ? "metadata" : "weight_map";
    if (depth_ == 1) {
      return Corrupt("'", section, "' is ", what, ", not an object");
    }
    if (section_ == kMetadata) return Corrupt("'metadata' holds ", what);
    return Corrupt("tensor ", QuoteForMessage(key_), " is in ", what,
                   ", not in a file");
  }

  // Metadata may have scalars of any type, directly in its object.
  Status Scalar(std::string_view what) const {
    return depth_ == 2 && section_ == kMetadata ? Status() : Unexpected(what);
  }

  Status TensorKey(std::string_view key) {
    if (key.find('\0') != std::string_view::npos) {
      return Corrupt("key ", QuoteForMessage(key), " holds a NUL");
    }
    return Copy(key, &key_);
  }

  Status Copy(std::string_view text, std::string_view* copy) {
    return index_.arena_.Copy(text, copy) ? Status() : TooLarge();
  }

  SafetensorsIndex& index_;
  int depth_ = 0;
  Section section_ = kMetadata;
  int seen_ = 0;
  std::string_view key_;
  // A tree: no choice of names makes it slow.
  std::map<std::string_view, uint32_t> file_of_;
};

StatusOr<SafetensorsIndex> SafetensorsIndex::Parse(std::string_view json) {
  if (json.size() > kMaxSafetensorsIndex) {
    return Corrupt("the index has ", json.size(), " bytes; at most ",
                   kMaxSafetensorsIndex, " are read");
  }
  SafetensorsIndex index(json.size() + kSlackBytes);
  Builder builder(&index);
  SHARD_RETURN_IF_ERROR(ReadJson(json, &builder));
  SHARD_RETURN_IF_ERROR(builder.Finish());
  return index;
}

std::string EncodeSafetensorsIndex(
    uint64_t total_size,
    std::vector<std::pair<std::string, std::string>> keys) {
  std::sort(keys.begin(), keys.end());
  std::string json;
  StrAppend(&json, "{\n  \"metadata\": {\n    \"total_size\": ", total_size,
            "\n  },\n  \"weight_map\": {");
  const char* separator = "\n    ";
  for (const auto& [key, file] : keys) {
    json += separator;
    AppendJsonString(&json, key);
    json += ": ";
    AppendJsonString(&json, file);
    separator = ",\n    ";
  }
  json += keys.empty() ? "}\n}\n" : "\n  }\n}\n";
  return json;
}

}  // namespace shard
