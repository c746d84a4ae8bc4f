// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/store/read_converted.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/element_type.h"
#include "core/base/strings.h"
#include "core/checkpoint/store/convert.h"
#include "kernels/cpu/q8.h"

namespace shard {

namespace {

// Elements that are converted at once: little memory, but worth a call of the
// sink.
constexpr int64_t kSome = int64_t{1} << 18;
// Scales in memory at a time; how many elements that is.
constexpr int64_t kMostScales = int64_t{1} << 20;
constexpr int64_t kMostDecoded = kMostScales * kQ8Block;

// Elements of q8 that are decoded, and the scales of their blocks.
struct Decoded {
  ReadRequest codes;
  size_t request;
  size_t scales;  // Number of the tensor.
  std::vector<float> values = {};

  int64_t first_block() const { return codes.begin / kQ8Block; }
  int64_t num_blocks() const {
    return (codes.begin + codes.numel - 1) / kQ8Block - first_block() + 1;
  }
};

class Reader {
 public:
  Reader(const TensorStore& store, std::span<const ConvertedRequest> requests,
         const ReadOptions& options, const PieceSink& sink)
      : store_(store),
        requests_(requests),
        options_(options),
        sink_(sink),
        progress_(options.progress, TotalBytes(requests)) {
    options_.progress = nullptr;
  }

  Status Read() {
    std::vector<ReadRequest> plain;
    std::vector<size_t> request_of;
    std::vector<Decoded> decoded;
    for (size_t r = 0; r < requests_.size(); ++r) {
      SHARD_ASSIGN_OR_RETURN(const bool decode, Decodes(r));
      if (decode) {
        SHARD_RETURN_IF_ERROR(AddDecoded(r, &decoded));
        continue;
      }
      plain.push_back(requests_[r].elements);
      request_of.push_back(r);
    }
    const auto pass = [&](size_t i, int64_t begin, int64_t numel,
                          const std::byte* data) {
      return Pass(request_of[i], begin, numel, data);
    };
    if (!plain.empty()) {
      SHARD_RETURN_IF_ERROR(store_.Read(plain, options_, pass));
    }
    std::span<Decoded> left(decoded);
    while (!left.empty()) {
      size_t count = 0;
      for (int64_t blocks = 0; count < left.size(); ++count) {
        blocks += left[count].num_blocks();
        if (count > 0 && blocks > kMostScales) break;
      }
      SHARD_RETURN_IF_ERROR(ReadDecoded(left.first(count)));
      left = left.subspan(count);
    }
    return Status();
  }

 private:
  static uint64_t TotalBytes(std::span<const ConvertedRequest> requests) {
    uint64_t total = 0;
    for (const ConvertedRequest& request : requests) {
      total += static_cast<uint64_t>(request.elements.numel) *
               ElementSize(request.type);
    }
    return total;
  }

  // REQUIRES: the tensor exists.
  ElementType TypeOf(size_t request) const {
    return store_.tensor(requests_[request].elements.tensor).type;
  }

  // Returns whether a request decodes q8 to another type.
  StatusOr<bool> Decodes(size_t request) const {
    const size_t tensor = requests_[request].elements.tensor;
    if (tensor >= store_.num_tensors()) return false;  // Read reports it.
    const ElementType from = TypeOf(request);
    const ElementType to = requests_[request].type;
    if (CanConvert(from, to)) return IsQuantized(from) && from != to;
    return InvalidArgument(
        "tensor '", store_.tensor(tensor).key, "' of type ",
        TypeNameOf(store_.tensor(tensor)), " cannot become ",
        ElementTypeName(to),
        "; f32, bf16, f16, f64 and q8 become f32, bf16, f16 and f64");
  }

  Status AddDecoded(size_t request, std::vector<Decoded>* decoded) const {
    ReadRequest codes = requests_[request].elements;
    SHARD_RETURN_IF_ERROR(CheckRequest(store_, codes, options_));
    const TensorInfo info = store_.tensor(codes.tensor);
    // The scales may have no alias of their own, so they are found by the key
    // of the alias's target.
    const std::string_view key =
        info.alias_of < 0
            ? info.key
            : store_.tensor(static_cast<size_t>(info.alias_of)).key;
    const int64_t scales = store_.Find(StrCat(key, kScaleSuffix));
    if (scales < 0) {
      return Corrupt("tensor '", info.key, "' of ", store_.describe(),
                     " is q8 and has no scales '", key, kScaleSuffix, "'");
    }
    for (const int64_t end = codes.begin + codes.numel; codes.begin < end;
         codes.begin += codes.numel) {
      // Reads to the end of a block.
      const int64_t most =
          (codes.begin / kQ8Block * kQ8Block + kMostDecoded) - codes.begin;
      codes.numel = std::min(most, end - codes.begin);
      decoded->push_back({codes, request, static_cast<size_t>(scales)});
    }
    return Status();
  }

  Status ReadDecoded(std::span<Decoded> batch) {
    std::vector<ReadRequest> scales;
    std::vector<ReadRequest> codes;
    for (Decoded& decoded : batch) {
      decoded.values.resize(static_cast<size_t>(decoded.num_blocks()));
      scales.push_back(
          {decoded.scales, decoded.first_block(), decoded.num_blocks()});
      codes.push_back(decoded.codes);
    }
    SHARD_RETURN_IF_ERROR(store_.Read(
        scales, options_,
        [&](size_t i, int64_t begin, int64_t numel, const std::byte* data) {
          std::memcpy(batch[i].values.data() + (begin - scales[i].begin), data,
                      static_cast<size_t>(numel) * sizeof(float));
          return Status();
        }));
    SHARD_RETURN_IF_ERROR(store_.Read(
        codes, options_,
        [&](size_t i, int64_t begin, int64_t numel, const std::byte* data) {
          return Decode(batch[i], begin, numel, data);
        }));
    for (Decoded& decoded : batch) decoded.values = {};
    return Status();
  }

  // Passes elements to the sink, as they are or converted.
  Status Pass(size_t request, int64_t begin, int64_t numel,
              const std::byte* data) {
    const ElementType from = TypeOf(request);
    const ElementType to = requests_[request].type;
    if (from == to) return Deliver(request, begin, numel, data);
    std::vector<std::byte> converted(
        static_cast<size_t>(std::min(kSome, numel)) * ElementSize(to));
    while (numel > 0) {
      const int64_t some = std::min(kSome, numel);
      const auto count = static_cast<size_t>(some);
      ConvertElements(from, data, static_cast<DType>(to), converted.data(),
                      count);
      SHARD_RETURN_IF_ERROR(Deliver(request, begin, some, converted.data()));
      data += count * ElementSize(from);
      begin += some;
      numel -= some;
    }
    return Status();
  }

  Status Decode(const Decoded& decoded, int64_t begin, int64_t numel,
                const std::byte* data) {
    const ElementType to = requests_[decoded.request].type;
    const auto kind =
        static_cast<StateKind>(store_.tensor(decoded.codes.tensor).codebook);
    const auto most = static_cast<size_t>(std::min(kSome, numel));
    std::vector<float> values(most);
    std::vector<std::byte> converted(
        to == ElementType::kF32 ? 0 : most * ElementSize(to));
    while (numel > 0) {
      // A piece may begin within a block; the next one then begins with one.
      const int64_t skip = begin % kQ8Block;
      const int64_t some = std::min(skip > 0 ? kQ8Block - skip : kSome, numel);
      const auto count = static_cast<size_t>(some);
      const float* const scales =
          decoded.values.data() + (begin / kQ8Block - decoded.first_block());
      DecodeQ8(kind, reinterpret_cast<const uint8_t*>(data), scales,
               values.data(), count);
      const auto* out = reinterpret_cast<const std::byte*>(values.data());
      if (to != ElementType::kF32) {
        ConvertElements(ElementType::kF32, out, static_cast<DType>(to),
                        converted.data(), count);
        out = converted.data();
      }
      SHARD_RETURN_IF_ERROR(Deliver(decoded.request, begin, some, out));
      data += count;
      begin += some;
      numel -= some;
    }
    return Status();
  }

  Status Deliver(size_t request, int64_t begin, int64_t numel,
                 const std::byte* data) {
    SHARD_RETURN_IF_ERROR(sink_(request, begin, numel, data));
    return progress_.Add(static_cast<uint64_t>(numel) *
                         ElementSize(requests_[request].type));
  }

  const TensorStore& store_;
  const std::span<const ConvertedRequest> requests_;
  ReadOptions options_;
  const PieceSink& sink_;
  ProgressMeter progress_;
};

}  // namespace

bool CanConvert(ElementType from, ElementType to) {
  return from == to || (IsConvertibleFloat(to) &&
                        (IsConvertibleFloat(from) || IsQuantized(from)));
}

Status ReadConverted(const TensorStore& store,
                     std::span<const ConvertedRequest> requests,
                     const ReadOptions& options, const PieceSink& sink) {
  return Reader(store, requests, options, sink).Read();
}

}  // namespace shard
