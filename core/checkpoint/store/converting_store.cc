// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/store/converting_store.h"

#include "core/base/element_type.h"
#include "core/base/strings.h"
#include "core/checkpoint/store/read_converted.h"

namespace shard {

namespace {

ElementType TypeFor(ElementType from, const ConversionOptions& options) {
  if (options.dtype) {
    const ElementType to = ElementTypeOf(*options.dtype);
    return CanConvert(from, to) ? to : from;
  }
  const bool decode = options.decode_q8 && IsQuantized(from);
  return decode ? ElementType::kF32 : from;
}

// Returns whether `key` is the scales of a tensor that is decoded.
bool IsScales(const TensorStore& from, std::string_view key) {
  if (!key.ends_with(kScaleSuffix)) return false;
  key.remove_suffix(kScaleSuffix.size());
  const int64_t codes = from.Find(key);
  return codes >= 0 &&
         IsQuantized(from.tensor(static_cast<size_t>(codes)).type);
}

}  // namespace

ConvertingStore::ConvertingStore(const TensorStore& from,
                                 const ConversionOptions& options)
    : from_(from), index_of_(from.num_tensors(), -1) {
  const bool decodes = options.dtype.has_value() || options.decode_q8;
  for (size_t t = 0; t < from.num_tensors(); ++t) {
    const TensorInfo info = from.tensor(t);
    const bool state = info.role == TensorRole::kState;
    if (state ? !options.states : !options.model) continue;
    if (decodes && IsScales(from, info.key)) continue;
    index_of_[t] = static_cast<int64_t>(tensors_.size());
    tensors_.push_back({t, TypeFor(info.type, options), info.alias_of});
  }
  // An alias has the role and type of its tensor, so both are selected or
  // neither.
  for (Tensor& tensor : tensors_) {
    if (tensor.alias_of < 0) continue;
    tensor.alias_of = index_of_[static_cast<size_t>(tensor.alias_of)];
  }
}

TensorInfo ConvertingStore::tensor(size_t index) const {
  const Tensor& tensor = tensors_[index];
  TensorInfo info = from_.tensor(tensor.source);
  if (tensor.type != info.type) info.codebook = 0;
  info.type = tensor.type;
  info.alias_of = tensor.alias_of;
  return info;
}

int64_t ConvertingStore::Find(std::string_view key) const {
  const int64_t found = from_.Find(key);
  return found < 0 ? -1 : index_of_[static_cast<size_t>(found)];
}

Status ConvertingStore::Read(std::span<const ReadRequest> requests,
                             const ReadOptions& options,
                             const PieceSink& sink) const {
  std::vector<ConvertedRequest> converted;
  converted.reserve(requests.size());
  for (const ReadRequest& request : requests) {
    if (request.tensor >= tensors_.size()) {
      return OutOfRange("tensor ", request.tensor, " does not exist; of ",
                        describe(), " there are ", tensors_.size());
    }
    const Tensor& tensor = tensors_[request.tensor];
    converted.push_back(
        {{tensor.source, request.begin, request.numel}, tensor.type});
  }
  return ReadConverted(from_, converted, options, sink);
}

}  // namespace shard
