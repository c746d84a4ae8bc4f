// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/safetensors/safetensors_builder.h"

#include <cstring>
#include <limits>

#include "core/base/strings.h"
#include "core/checkpoint/store/opaque_type.h"

namespace shard {

namespace {

// The most opaque types of a header. Today's format has seven.
constexpr size_t kMaxOpaqueTypes = 255;

constexpr std::string_view kMetadataKey = "__metadata__";

}  // namespace

Status SafetensorsHeader::Builder::BeginObject() {
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

Status SafetensorsHeader::Builder::EndObject() {
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

Status SafetensorsHeader::Builder::BeginArray() {
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

Status SafetensorsHeader::Builder::EndArray() {
  if (place_ == Place::kOffsets && num_offsets_ != 2) {
    return InTensor(
        Corrupt("data_offsets has ", num_offsets_, " numbers, not 2"));
  }
  place_ = Place::kTensor;
  return Status();
}

Status SafetensorsHeader::Builder::Key(std::string_view key) {
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

Status SafetensorsHeader::Builder::String(std::string_view value) {
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
        kMaxOpaqueType));
  }
  tensor_.type = *type;
  return *type == ElementType::kOpaque ? OpaqueType(value) : Status();
}

Status SafetensorsHeader::Builder::Unsigned(uint64_t value) {
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

Status SafetensorsHeader::Builder::TooLarge() {
  return ResourceExhausted(
      "the header would take more memory than its size and ",
      FormatBytes(kSafetensorsSlack),
      ": it has too many tensors of too many dimensions");
}

Status SafetensorsHeader::Builder::InTensor(const Status& status) const {
  return status.WithContext(StrCat("tensor ", QuoteForMessage(tensor_.key)));
}

Status SafetensorsHeader::Builder::Unexpected(std::string_view what) const {
  switch (place_) {
    case Place::kStart:
      return Corrupt("the header is ", what, ", not an object");
    case Place::kTop:
      return in_metadata_
                 ? Corrupt("'__metadata__' is ", what, ", not an object")
                 : InTensor(Corrupt("it is ", what, ", not an object"));
    case Place::kMetadata:
      return Corrupt("metadata ", QuoteForMessage(metadata_name_), " is ", what,
                     ", not a string");
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

const char* SafetensorsHeader::Builder::FieldName() const {
  if (field_ == Field::kType) return "dtype";
  return field_ == Field::kShape ? "shape" : "data_offsets";
}

// Searches linearly: there are few opaque types.
Status SafetensorsHeader::Builder::OpaqueType(std::string_view name) {
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

Status SafetensorsHeader::Builder::TensorField(std::string_view key) {
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

Status SafetensorsHeader::Builder::AddTensor() {
  for (const Field field : {Field::kType, Field::kShape, Field::kOffsets}) {
    if ((fields_seen_ & static_cast<int>(field)) != 0) continue;
    field_ = field;
    return InTensor(Corrupt("it has no ", FieldName()));
  }
  if (tensor_.type == ElementType::kOpaque) return AddOpaqueTensor();
  // Multiplies left to right, as the format's own library does, so that a
  // product may overflow although a 0 follows.
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

// Adds a tensor whose bytes only the offsets tell.
Status SafetensorsHeader::Builder::AddOpaqueTensor() {
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

Status SafetensorsHeader::Builder::CheckOffsets() const {
  if (offsets_[0] <= offsets_[1]) return Status();
  return InTensor(Corrupt("data_offsets [", offsets_[0], ", ", offsets_[1],
                          "] end before they begin"));
}

Status SafetensorsHeader::Builder::KeepTensor() {
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

Status SafetensorsHeader::Builder::CheckMetadata() const {
  std::vector<uint32_t> by_name;
  if (const auto twice =
          SortByKey(&by_name, header_.metadata_.size(),
                    [&](uint32_t i) { return header_.metadata_[i].first; })) {
    return Corrupt("metadata ", QuoteForMessage(*twice), " is there twice");
  }
  return Status();
}

Status SafetensorsHeader::Builder::Copy(std::string_view text,
                                        std::string_view* copy) {
  return header_.arena_.Copy(text, copy) ? Status() : TooLarge();
}

}  // namespace shard
