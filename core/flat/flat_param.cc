// SPDX-License-Identifier: Apache-2.0

#include "core/flat/flat_param.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "core/base/strings.h"

namespace shard {

namespace {

StatusOr<int64_t> NumelOf(const FlatParamSource& source) {
  int64_t numel = 1;
  bool overflow = false;
  bool empty = false;
  for (const int64_t size : source.shape) {
    if (size < 0) {
      return InvalidArgument("parameter '", source.name, "' has shape ",
                             FormatList(source.shape),
                             " with the negative dimension ", size);
    }
    empty = empty || size == 0;
    overflow = overflow || __builtin_mul_overflow(numel, size, &numel);
  }
  if (empty) return int64_t{0};
  if (overflow) {
    return InvalidArgument("parameter '", source.name, "' of shape ",
                           FormatList(source.shape),
                           " has more than 2^63-1 elements");
  }
  return numel;
}

const char* TrainableName(bool trainable) {
  return trainable ? "trainable" : "frozen";
}

Status CheckSources(const std::vector<FlatParamSource>& sources) {
  if (sources.empty()) {
    return InvalidArgument("a flat parameter needs at least one parameter");
  }
  const FlatParamSource& first = sources.front();
  std::unordered_set<std::string_view> names;
  for (const FlatParamSource& source : sources) {
    if (source.flattened) {
      return InvalidArgument("parameter '", source.name,
                             "' is a flat parameter already");
    }
    if (!names.insert(source.name).second) {
      return InvalidArgument("parameter '", source.name, "' stands twice");
    }
    if (source.dtype != first.dtype) {
      return InvalidArgument("parameter '", source.name, "' is ",
                             DTypeName(source.dtype), ", but '", first.name,
                             "' is ", DTypeName(first.dtype),
                             "; a flat parameter has one dtype");
    }
    if (source.trainable != first.trainable) {
      return InvalidArgument(
          "parameter '", source.name, "' is ", TrainableName(source.trainable),
          ", but '", first.name, "' is ", TrainableName(first.trainable),
          "; a flat parameter is one or the other");
    }
  }
  return Status();
}

}  // namespace

StatusOr<FlatParam> FlatParam::Create(std::vector<FlatParamSource> sources) {
  SHARD_RETURN_IF_ERROR(CheckSources(sources));
  FlatParam flat;
  for (const FlatParamSource& source : sources) {
    SHARD_ASSIGN_OR_RETURN(const int64_t numel, NumelOf(source));
    const int64_t begin = flat.full_numel_;
    if (__builtin_add_overflow(begin, numel, &flat.full_numel_)) {
      return InvalidArgument("the ", sources.size(), " parameters up to '",
                             source.name,
                             "' have more than 2^63-1 elements together");
    }
    flat.numels_.push_back(numel);
    flat.offsets_.push_back({begin, flat.full_numel_ - 1});
    flat.shard_offsets_.push_back({0, numel - 1});
  }
  flat.in_shard_ = {0, static_cast<int64_t>(sources.size()) - 1};
  flat.sources_ = std::move(sources);
  return flat;
}

Status FlatParam::ShardByOffsets(int64_t start, int64_t end,
                                 int64_t num_padded) {
  if (start < 0 || end < start) {
    return InvalidArgument("[", start, ", ", end,
                           "] is not a range of elements of a flat parameter");
  }
  // end - start + 1 may not fit; a padding that large does not either.
  if (num_padded < 0 || num_padded - 1 > end - start) {
    return InvalidArgument("a shard of elements [", start, ", ", end,
                           "] cannot hold ", num_padded,
                           " elements of padding");
  }
  num_padded_ = num_padded;
  in_shard_.reset();
  shard_offsets_.clear();
  for (size_t i = 0; i < offsets_.size(); ++i) {
    const ElementRange& range = offsets_[i];
    if (start > range.last || end < range.first) continue;
    const auto index = static_cast<int64_t>(i);
    if (!in_shard_) in_shard_ = {index, index};
    in_shard_->last = index;
    shard_offsets_.push_back({std::max(start, range.first) - range.first,
                              std::min(end, range.last) - range.first});
  }
  return Status();
}

FlatParamMetadata FlatParam::Metadata() const {
  FlatParamMetadata metadata;
  for (const FlatParamSource& source : sources_) {
    metadata.names.push_back(source.name);
    metadata.shapes.push_back(source.shape);
  }
  metadata.numels = numels_;
  metadata.offsets = offsets_;
  return metadata;
}

FlatParamMetadata FlatParam::ShardMetadata() const {
  FlatParamMetadata metadata;
  if (!in_shard_) return metadata;
  for (int64_t i = in_shard_->first; i <= in_shard_->last; ++i) {
    const auto index = static_cast<size_t>(i);
    metadata.names.push_back(sources_[index].name);
    metadata.shapes.push_back(sources_[index].shape);
    metadata.numels.push_back(numels_[index]);
  }
  metadata.offsets = shard_offsets_;
  return metadata;
}

StatusOr<std::vector<FlatParamView>> FlatParam::Views(void* data,
                                                      int64_t numel) const {
  if (numel != full_numel_) {
    return InvalidArgument("the supplied storage has ", numel,
                           " elements; the flat parameter has ", full_numel_);
  }
  const size_t size = DTypeSize(dtype());
  std::vector<FlatParamView> views;
  views.reserve(sources_.size());
  for (size_t i = 0; i < sources_.size(); ++i) {
    const size_t offset = static_cast<size_t>(offsets_[i].first) * size;
    views.push_back(
        {static_cast<char*>(data) + offset, &sources_[i].shape, numels_[i]});
  }
  return views;
}

}  // namespace shard
