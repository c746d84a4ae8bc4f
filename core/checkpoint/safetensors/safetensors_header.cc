// SPDX-License-Identifier: Apache-2.0
//
// Reading a header.

#include "core/checkpoint/safetensors/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>

#include "core/base/strings.h"
#include "core/checkpoint/safetensors/json_events.h"

namespace shard {

namespace {

// What a header may take beyond its size: enough for a small one with shapes
// of many dimensions.
constexpr uint64_t kSlackBytes = uint64_t{2} << 20;

// Of a header. Today's format has seven.
constexpr size_t kMaxOpaqueTypes = 255;

constexpr std::string_view kMetadataKey = "__metadata__";

// Sorts the indices of `size` elements by their keys. A key that two share, if
// any.
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

}  // namespace

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

// Takes the events of one header.
class SafetensorsHeader::Builder final : public JsonHandler {
 public:
  explicit Builder(SafetensorsHeader* header) : header_(*header) {}

  Status BeginObject() override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return Status();
      case Place::kTop:
        if (!in_metadata_) {
          place_ = Place::kTensor;
          return Status();
        }
        if (seen_metadata_) return Corrupt("key '__metadata__' is there twice");
        seen_metadata_ = true;
        place_ = Place::kMetadata;
        return Status();
      default:
        return Unexpected("an object");
    }
  }

  Status EndObject() override {
    switch (place_) {
      case Place::kTensor:
        place_ = Place::kTop;
        return AddTensor();
      case Place::kMetadata:
        place_ = Place::kTop;
        return CheckMetadata();
      default:
        place_ = Place::kStart;
        return Status();
    }
  }

  Status BeginArray() override {
    if (place_ != Place::kTensor) return Unexpected("an array");
    if (field_ == Field::kShape) {
      place_ = Place::kShape;
    } else if (field_ == Field::kOffsets) {
      place_ = Place::kOffsets;
    } else {
      return Unexpected("an array");
    }
    return Status();
  }

  Status EndArray() override {
    if (place_ == Place::kOffsets && num_offsets_ != 2) {
      return InTensor(
          Corrupt("data_offsets has ", num_offsets_, " numbers, not 2"));
    }
    place_ = Place::kTensor;
    return Status();
  }

  Status Key(std::string_view key) override {
    if (place_ == Place::kTensor) return TensorField(key);
    if (key.find('\0') != std::string_view::npos) {
      return Corrupt("key ", QuoteForMessage(key), " holds a NUL");
    }
    if (place_ == Place::kTop) {
      in_metadata_ = key == kMetadataKey;
      if (in_metadata_) return Status();
      tensor_ = Tensor();
      dims_.clear();
      fields_seen_ = 0;
      num_offsets_ = 0;
    }
    return Copy(key, place_ == Place::kTop ? &tensor_.key : &metadata_name_);
  }

  Status String(std::string_view value) override {
    if (place_ == Place::kMetadata) {
      std::string_view copy;
      SHARD_RETURN_IF_ERROR(Copy(value, &copy));
      if (!header_.arena_.Charge(kBytesPerMetadata)) return TooLarge();
      header_.metadata_.emplace_back(metadata_name_, copy);
      return Status();
    }
    if (place_ != Place::kTensor || field_ != Field::kType) {
      return Unexpected(QuoteForMessage(value));
    }
    const std::optional<ElementType> type = SafetensorsTypeOf(value);
    if (!type.has_value()) {
      return InTensor(Corrupt(
          "dtype ", QuoteForMessage(value),
          " is no name of a type: those are letters, digits and '_', at most ",
          kMaxSafetensorsType));
    }
    tensor_.type = *type;
    return *type == ElementType::kOpaque ? OpaqueType(value) : Status();
  }

  Status Unsigned(uint64_t value) override {
    if (place_ == Place::kOffsets) {
      if (num_offsets_ < 2) offsets_[num_offsets_] = value;
      ++num_offsets_;
      return Status();
    }
    if (place_ != Place::kShape) return Unexpected(StrCat(value));
    if (value > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return InTensor(Corrupt("dimension ", value, " is too large"));
    }
    if (dims_.size() == kMaxSafetensorsRank) {
      return InTensor(Corrupt("its shape has more than ", kMaxSafetensorsRank,
                              " dimensions"));
    }
    dims_.push_back(static_cast<int64_t>(value));
    return Status();
  }

  Status Other(std::string_view what) override { return Unexpected(what); }

  // The document is over: what only the tensors together show.
  Status Finish(uint64_t data_bytes) {
    // The order of the data; then keys, so that it is one order.
    std::sort(header_.tensors_.begin(), header_.tensors_.end(),
              [](const Tensor& a, const Tensor& b) {
                return std::tie(a.begin, a.bytes, a.key) <
                       std::tie(b.begin, b.bytes, b.key);
              });
    if (const auto twice =
            SortByKey(&header_.by_key_, header_.tensors_.size(),
                      [&](uint32_t i) { return header_.tensors_[i].key; })) {
      return Corrupt("key ", QuoteForMessage(*twice), " is there twice");
    }
    uint64_t end = 0;
    for (const Tensor& tensor : header_.tensors_) {
      if (tensor.begin != end) {
        return Corrupt("tensor ", QuoteForMessage(tensor.key),
                       " begins at byte ", tensor.begin, " of the data, ",
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

 private:
  // kStart: before and after the document.
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };
  enum class Field { kType = 1, kShape = 2, kOffsets = 4 };

  static constexpr uint64_t kBytesPerTensor = sizeof(Tensor) + sizeof(uint32_t);
  static constexpr uint64_t kBytesPerMetadata =
      2 * sizeof(std::string_view) + sizeof(uint32_t);

  static Status TooLarge() {
    return ResourceExhausted(
        "the header would take more memory than its size and ",
        FormatBytes(kSlackBytes),
        ": it has too many tensors of too many dimensions");
  }

  Status InTensor(const Status& status) const {
    return status.WithContext(StrCat("tensor ", QuoteForMessage(tensor_.key)));
  }

  Status Unexpected(std::string_view what) const {
    switch (place_) {
      case Place::kStart:
        return Corrupt("the header is ", what, ", not an object");
      case Place::kTop:
        return in_metadata_
                   ? Corrupt("'__metadata__' is ", what, ", not an object")
                   : InTensor(Corrupt("it is ", what, ", not an object"));
      case Place::kMetadata:
        return Corrupt("metadata ", QuoteForMessage(metadata_name_), " is ",
                       what, ", not a string");
      case Place::kTensor:
        return InTensor(
            Corrupt(FieldName(), " is ", what, ", not ",
                    field_ == Field::kType ? "a string" : "an array"));
      case Place::kShape:
      case Place::kOffsets:
        return InTensor(Corrupt(FieldName(), " holds ", what,
                                ", not a whole number of at most 64 bits"));
    }
    return Internal("unknown place in a header");
  }

  const char* FieldName() const {
    if (field_ == Field::kType) return "dtype";
    return field_ == Field::kShape ? "shape" : "data_offsets";
  }

  // There are few of them.
  Status OpaqueType(std::string_view name) {
    auto& types = header_.opaque_types_;
    const auto known = std::find(types.begin(), types.end(), name);
    tensor_.opaque_type = static_cast<uint8_t>(known - types.begin());
    if (known != types.end()) return Status();
    if (types.size() == kMaxOpaqueTypes) {
      return ResourceExhausted("the header has tensors of more than ",
                               kMaxOpaqueTypes,
                               " element types that are not known");
    }
    std::string_view copy;
    SHARD_RETURN_IF_ERROR(Copy(name, &copy));
    types.push_back(copy);
    return Status();
  }

  Status TensorField(std::string_view key) {
    if (key == "dtype") {
      field_ = Field::kType;
    } else if (key == "shape") {
      field_ = Field::kShape;
    } else if (key == "data_offsets") {
      field_ = Field::kOffsets;
    } else {
      return InTensor(Corrupt("unknown field ", QuoteForMessage(key),
                              "; there are dtype, shape and data_offsets"));
    }
    const int bit = static_cast<int>(field_);
    if ((fields_seen_ & bit) != 0) {
      return InTensor(Corrupt(FieldName(), " is there twice"));
    }
    fields_seen_ |= bit;
    return Status();
  }

  Status AddTensor() {
    for (const Field field : {Field::kType, Field::kShape, Field::kOffsets}) {
      if ((fields_seen_ & static_cast<int>(field)) != 0) continue;
      field_ = field;
      return InTensor(Corrupt("it has no ", FieldName()));
    }
    if (tensor_.type == ElementType::kOpaque) return AddOpaqueTensor();
    // As the format's own library: left to right, so that a product may
    // overflow although a 0 follows.
    constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
    uint64_t bytes = ElementSize(tensor_.type);
    for (const int64_t dim : dims_) {
      if (dim != 0 && bytes > kMax / static_cast<uint64_t>(dim)) {
        return InTensor(Corrupt("a shape of ", FormatList(dims_),
                                " has more bytes than 63 bits can count"));
      }
      bytes *= static_cast<uint64_t>(dim);
    }
    SHARD_RETURN_IF_ERROR(CheckOffsets());
    const auto [begin, end] = offsets_;
    if (end - begin != bytes) {
      return InTensor(Corrupt("data_offsets [", begin, ", ", end, "] are ",
                              end - begin, " bytes, and ",
                              SafetensorsTypeName(tensor_.type), " of shape ",
                              FormatList(dims_), " has ", bytes));
    }
    return KeepTensor();
  }

  // The bytes are what the offsets say.
  Status AddOpaqueTensor() {
    SHARD_RETURN_IF_ERROR(CheckOffsets());
    const auto [begin, end] = offsets_;
    const Status status =
        CheckOpaqueTensor(header_.type_name(tensor_), dims_, end - begin)
            .status();
    if (!status.ok()) {
      return InTensor(
          Corrupt("data_offsets [", begin, ", ", end, "]: ", status.message()));
    }
    return KeepTensor();
  }

  Status CheckOffsets() const {
    if (offsets_[0] <= offsets_[1]) return Status();
    return InTensor(Corrupt("data_offsets [", offsets_[0], ", ", offsets_[1],
                            "] end before they begin"));
  }

  Status KeepTensor() {
    tensor_.begin = offsets_[0];
    tensor_.bytes = offsets_[1] - offsets_[0];
    tensor_.rank = static_cast<uint8_t>(dims_.size());
    const size_t shape_bytes = dims_.size() * sizeof(int64_t);
    if (shape_bytes > 0) {
      std::byte* memory = header_.arena_.Allocate(shape_bytes);
      if (memory == nullptr) return TooLarge();
      std::memcpy(memory, dims_.data(), shape_bytes);
      tensor_.dims = reinterpret_cast<const int64_t*>(memory);
    }
    if (!header_.arena_.Charge(kBytesPerTensor)) return TooLarge();
    header_.tensors_.push_back(tensor_);
    return Status();
  }

  Status CheckMetadata() const {
    std::vector<uint32_t> by_name;
    if (const auto twice =
            SortByKey(&by_name, header_.metadata_.size(),
                      [&](uint32_t i) { return header_.metadata_[i].first; })) {
      return Corrupt("metadata ", QuoteForMessage(*twice), " is there twice");
    }
    return Status();
  }

  Status Copy(std::string_view text, std::string_view* copy) {
    return header_.arena_.Copy(text, copy) ? Status() : TooLarge();
  }

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
  // Padding, of which there may be more than the JSON parser takes.
  json = json.substr(0, json.find_last_not_of(' ') + 1);
  SafetensorsHeader header(json.size() + kSlackBytes);
  Builder builder(&header);
  SHARD_RETURN_IF_ERROR(ReadJson(json, &builder));
  SHARD_RETURN_IF_ERROR(builder.Finish(data_bytes));
  return header;
}

int64_t SafetensorsHeader::Find(std::string_view key) const {
  const auto found = std::lower_bound(
      by_key_.begin(), by_key_.end(), key,
      [&](uint32_t i, std::string_view k) { return tensors_[i].key < k; });
  if (found == by_key_.end() || tensors_[*found].key != key) return -1;
  return *found;
}

}  // namespace shard
