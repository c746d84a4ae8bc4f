// SPDX-License-Identifier: Apache-2.0
//
// Rejects contents that the file format cannot represent: slices that leave a
// gap, lengths that are not those of their elements. All other checks are left
// to Manifest::Parse, so that every encoded manifest can be read.

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/base/strings.h"
#include "core/checkpoint/manifest/manifest.h"
#include "core/checkpoint/manifest/manifest_checks.h"
#include "core/checkpoint/manifest/manifest_header.h"
#include "core/checkpoint/schema/manifest_generated.h"
#include "core/model/names.h"

namespace shard {

namespace {

using Contents = ManifestContents;

// Returns a lower bound of the bytes of the file, close to their number:
// contents that exceed the limit by it are not built, which would need memory
// and, at 2 GiB, end in FlatBuffers' assertion.
uint64_t AtLeastBytes(const Contents& contents) {
  uint64_t bytes = contents.writer.size() + 20 * contents.files.size() +
                   4 * contents.groups.size() + 20 * contents.scalars.size() +
                   50 * contents.blobs.size();
  for (const auto& file : contents.files) bytes += file.name.size();
  for (const auto& group : contents.groups) bytes += group.size();
  for (const auto& scalar : contents.scalars) bytes += scalar.name.size();
  for (const auto& blob : contents.blobs) bytes += blob.name.size();
  for (const auto& tensor : contents.tensors) {
    bytes += 20 + tensor.key.size() + 8 * tensor.shape.size() +
             sizeof(schema::Slice) * tensor.slices.size();
  }
  return bytes;
}

Status TooLarge(const Contents& contents, uint64_t bytes,
                const ManifestLimits& limits) {
  return Status(
      StatusCode::kResourceExhausted,
      StrCat("the manifest of ", contents.tensors.size(),
             " tensors would have ", bytes, " bytes; at most ", limits.bytes,
             " bytes and ", limits.tensors,
             " tensors are possible: save with larger slices or fewer "
             "tensors"));
}

// Returns the first version whose limits suffice, so that older readers can
// read the file where possible.
uint32_t VersionFor(const Contents& contents, uint64_t bytes) {
  const bool opaque = std::any_of(
      contents.tensors.begin(), contents.tensors.end(),
      [](const auto& tensor) { return tensor.type == ElementType::kOpaque; });
  uint32_t version = 1;
  while (bytes > LimitsOf(version).bytes ||
         contents.tensors.size() > LimitsOf(version).tensors ||
         (opaque && !LimitsOf(version).opaque)) {
    ++version;
  }
  return version;
}

// Returns whether a number fits into the fewer bits that the file has for it.
template <typename To>
bool Fits(int64_t value) {
  return value >= std::numeric_limits<To>::min() &&
         value <= std::numeric_limits<To>::max();
}

Status CheckSlices(const Contents::Tensor& tensor) {
  const auto size = static_cast<uint64_t>(ElementSize(tensor.type));
  int64_t next = 0;
  for (size_t i = 0; i < tensor.slices.size(); ++i) {
    const Slice& slice = tensor.slices[i];
    if (slice.begin != next || slice.numel <= 0) {
      return InvalidArgument("its slice ", i, " is ", slice.numel,
                             " elements from ", slice.begin,
                             "; the slices before it end at ", next);
    }
    if (slice.extent.bytes / size != static_cast<uint64_t>(slice.numel) ||
        slice.extent.bytes % size != 0) {
      return InvalidArgument("its slice ", i, " has ", slice.extent.bytes,
                             " bytes for ", slice.numel, " elements of ", size);
    }
    if (slice.numel > std::numeric_limits<int64_t>::max() - next) {
      return InvalidArgument("its slices have more than 2^63 - 1 elements");
    }
    next += slice.numel;
  }
  // Parse rejects wrong shapes and numbers of bytes.
  int64_t numel = 1;
  if (tensor.type == ElementType::kOpaque) {
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    if (tensor.opaque == nullptr || tensor.opaque->bytes > kMost) return {};
    numel = static_cast<int64_t>(tensor.opaque->bytes);
  } else {
    for (const int64_t dim : tensor.shape) {
      if (__builtin_mul_overflow(numel, dim, &numel)) return {};
    }
  }
  if (!tensor.slices.empty() && next != numel) {
    return InvalidArgument("its slices end at element ", next, " of ", numel);
  }
  return {};
}

Status CheckTensor(const Contents::Tensor& tensor,
                   const ManifestLimits& limits) {
  if (!IsElementType(static_cast<int32_t>(tensor.type)) ||
      (tensor.type == ElementType::kOpaque && !limits.opaque)) {
    return InvalidArgument("there is no element type ",
                           static_cast<int32_t>(tensor.type),
                           " in this version of the format");
  }
  if (!Fits<uint8_t>(static_cast<int32_t>(tensor.role))) {
    return InvalidArgument("there is no role ",
                           static_cast<int32_t>(tensor.role));
  }
  if (!Fits<int32_t>(tensor.alias_of)) {
    return InvalidArgument("it is an alias of tensor ", tensor.alias_of);
  }
  if (!Fits<uint8_t>(tensor.codebook)) {
    return InvalidArgument("there is no code book ", tensor.codebook);
  }
  if (tensor.alias_of != -1 && !tensor.slices.empty()) {
    return InvalidArgument("it is an alias and has slices");
  }
  return CheckSlices(tensor);
}

class Encoder {
 public:
  // `room`: about as many bytes as the body will have, so that it is not copied
  // into ever larger memory.
  Encoder(const Contents& contents, size_t room)
      : contents_(contents), builder_(room) {}

  // Returns the body.
  std::span<const std::byte> Encode() {
    const auto files =
        Tables<schema::File>(contents_.files, [&](const Contents::File& file) {
          return schema::CreateFile(builder_, Text(file.name), file.bytes);
        });
    const auto tensors = Tables<schema::Tensor>(
        contents_.tensors,
        [&](const Contents::Tensor& tensor) { return Add(tensor); });
    const auto groups = Tables<schema::Group>(
        contents_.groups, [&](const std::string& optimizer) {
          return schema::CreateGroup(builder_, Text(optimizer));
        });
    const auto scalars = Tables<schema::Scalar>(
        contents_.scalars, [&](const Contents::Scalar& scalar) {
          const auto name = Text(scalar.name);
          // -0 equals the default 0, but must be stored.
          builder_.ForceDefaults(true);
          const auto offset =
              schema::CreateScalar(builder_, name, scalar.value);
          builder_.ForceDefaults(false);
          return offset;
        });
    const auto blobs =
        Tables<schema::Blob>(contents_.blobs, [&](const Contents::Blob& blob) {
          // A blob without bytes has no place: it needs no file.
          const bool empty = blob.extent.bytes == 0;
          const schema::Extent extent(
              empty ? 0 : blob.extent.offset, blob.extent.bytes,
              blob.extent.checksum.low, blob.extent.checksum.high,
              empty ? 0 : blob.extent.file, 0);
          return schema::CreateBlob(builder_, Text(blob.name),
                                    static_cast<schema::BlobRule>(blob.rule),
                                    blob.rank, &extent);
        });
    const auto slices = Slices();
    const auto writer = Text(contents_.writer);
    schema::FinishManifestBuffer(
        builder_, schema::CreateManifest(builder_, writer, contents_.step,
                                         contents_.world_size, files, tensors,
                                         slices, groups, scalars, blobs));
    return std::as_bytes(
        std::span(builder_.GetBufferPointer(), builder_.GetSize()));
  }

 private:
  flatbuffers::Offset<flatbuffers::String> Text(const std::string& text) {
    return builder_.CreateString(text);
  }

  template <typename T, typename From, typename Create>
  flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<T>>> Tables(
      const std::vector<From>& from, Create create) {
    std::vector<flatbuffers::Offset<T>> offsets;
    offsets.reserve(from.size());
    for (const From& each : from) offsets.push_back(create(each));
    return builder_.CreateVector(offsets);
  }

  flatbuffers::Offset<schema::Tensor> Add(const Contents::Tensor& tensor) {
    const auto key = Text(tensor.key);
    const auto shape =
        tensor.shape.empty() ? 0 : builder_.CreateVector(tensor.shape);
    const bool alias = tensor.alias_of != -1;
    const bool opaque = !alias && tensor.opaque != nullptr;
    const auto opaque_type = opaque ? Text(tensor.opaque->type) : 0;
    const auto count = static_cast<uint32_t>(tensor.slices.size());
    const uint32_t first = count == 0 ? 0 : num_slices_;
    num_slices_ += count;
    return schema::CreateTensor(
        builder_, key, shape, static_cast<schema::ElementType>(tensor.type),
        static_cast<schema::TensorRole>(tensor.role), first, count,
        static_cast<int32_t>(tensor.alias_of), alias || tensor.trainable,
        alias ? -1 : tensor.group, alias ? -1 : tensor.step,
        alias ? uint8_t{0} : static_cast<uint8_t>(tensor.codebook), opaque_type,
        opaque ? tensor.opaque->bytes : 0);
  }

  flatbuffers::Offset<flatbuffers::Vector<const schema::Slice*>> Slices() {
    // Not CreateUninitializedVectorOfStructs, which aligns to sizeof(Slice).
    auto tensor = contents_.tensors.begin();
    size_t next = 0;  // Next slice of the tensor.
    return builder_.CreateVectorOfStructs<schema::Slice>(
        num_slices_, [&](size_t, schema::Slice* to) {
          for (; next == tensor->slices.size(); ++tensor) next = 0;
          const Slice& slice = tensor->slices[next++];
          *to = schema::Slice(slice.begin, slice.extent.offset,
                              slice.extent.checksum.low,
                              slice.extent.checksum.high, slice.extent.file, 0);
        });
  }

  const Contents& contents_;
  flatbuffers::FlatBufferBuilder builder_;
  uint32_t num_slices_ = 0;
};

}  // namespace

StatusOr<std::vector<std::byte>> EncodeManifest(
    const ManifestContents& contents, uint32_t newest) {
  const ManifestLimits limits = LimitsOf(newest);
  const uint64_t least = AtLeastBytes(contents);
  if (least > limits.bytes || contents.tensors.size() > limits.tensors) {
    return TooLarge(contents, least, limits);
  }
  for (const Contents::Tensor& tensor : contents.tensors) {
    if (Status status = CheckTensor(tensor, limits); !status.ok()) {
      return status.WithContext(
          StrCat("the manifest is wrong: tensor ", QuoteName(tensor.key)));
    }
  }
  for (const Contents::Blob& blob : contents.blobs) {
    if (!Fits<uint8_t>(static_cast<int32_t>(blob.rule))) {
      return InvalidArgument("the manifest is wrong: blob ",
                             QuoteName(blob.name), ": there is no rule ",
                             static_cast<int32_t>(blob.rule));
    }
  }
  std::vector<std::byte> file;
  {
    // Tables and alignment take the bytes beyond `least`.
    Encoder encoder(contents, least + 64 * contents.tensors.size() + 1024);
    const std::span<const std::byte> body = encoder.Encode();
    const uint64_t size = kManifestHeaderBytes + body.size();
    if (size > limits.bytes) return TooLarge(contents, size, limits);
    file.resize(size);
    WriteManifestHeader(body, VersionFor(contents, size), file.data());
    std::memcpy(file.data() + kManifestHeaderBytes, body.data(), body.size());
  }
  if (const Status status = Manifest::Verify(file); !status.ok()) {
    return InvalidArgument(status.message());
  }
  return file;
}

}  // namespace shard
