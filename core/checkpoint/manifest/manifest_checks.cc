// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/manifest/manifest_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/element_type.h"
#include "core/base/strings.h"
#include "core/checkpoint/manifest/manifest.h"
#include "core/checkpoint/manifest/manifest_structure.h"
#include "core/checkpoint/store/opaque_type.h"
#include "core/checkpoint/store/tensor_info.h"
#include "core/model/names.h"

namespace shard {

namespace {

// The values of StateKind.
constexpr int32_t kFirstCodebook = 3;
constexpr int32_t kLastCodebook = 5;

Status CheckName(const flatbuffers::String* text) {
  const std::string_view name = TextOf(text);
  if (name.empty()) return Corrupt("it has no name");
  if (name.size() > kMaxKeyBytes) {
    return Corrupt("its name has ", name.size(), " bytes; at most ",
                   kMaxKeyBytes, " are allowed");
  }
  if (!IsPlainText(name)) {
    return Corrupt("its name is not UTF-8 without control characters");
  }
  return {};
}

// Returns the numbers 0 to count - 1, sorted by `less`.
template <typename Less>
std::vector<uint32_t> Sorted(uint32_t count, Less less) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), less);
  return order;
}

// REQUIRES: every name was checked.
template <typename T>
Status CheckUnique(const flatbuffers::Vector<flatbuffers::Offset<T>>* tables,
                   const char* what) {
  const auto name = [&](uint32_t i) { return TextOf(tables->Get(i)->name()); };
  const std::vector<uint32_t> order =
      Sorted(CountOf(tables),
             [&](uint32_t a, uint32_t b) { return name(a) < name(b); });
  for (size_t i = 1; i < order.size(); ++i) {
    if (name(order[i - 1]) == name(order[i])) {
      return Corrupt("two ", what, "s are called ", QuoteName(name(order[i])));
    }
  }
  return {};
}

// Returns whether the bytes of a tensor fit into 63 bits. The other dimensions
// must fit even beside a dimension of 0.
bool IsShape(std::span<const int64_t> shape, size_t size) {
  if (shape.size() > kMaxTensorDims) return false;
  int64_t left = std::numeric_limits<int64_t>::max();
  left /= static_cast<int64_t>(size);
  for (const int64_t dim : shape) {
    if (dim < 0) return false;
    if (dim > 0) left /= dim;
    if (left == 0) return false;
  }
  return true;
}

Status CheckAlias(const schema::Manifest& manifest,
                  const schema::Tensor& tensor) {
  const int64_t target = tensor.alias_of();
  if (target < 0 || target >= int64_t{CountOf(manifest.tensors())}) {
    return Corrupt("it is an alias of tensor ", target, "; there are ",
                   CountOf(manifest.tensors()));
  }
  const schema::Tensor& other =
      *manifest.tensors()->Get(static_cast<uint32_t>(target));
  if (other.alias_of() != -1) {
    return Corrupt("it is an alias of tensor ", target,
                   ", which is an alias itself");
  }
  if (tensor.type() != other.type() || tensor.role() != other.role() ||
      !std::ranges::equal(ShapeOf(tensor), ShapeOf(other))) {
    return Corrupt("it is an alias of tensor ", target,
                   ", which has another type, role or shape");
  }
  if (tensor.first_slice() != 0 || tensor.num_slices() != 0 ||
      tensor.group() != -1 || tensor.step() != -1 || !tensor.trainable() ||
      tensor.codebook() != 0 || tensor.opaque_type() != nullptr ||
      tensor.opaque_bytes() != 0) {
    return Corrupt("it is an alias and has values of its own");
  }
  return {};
}

// Checks the name and the bytes of an opaque type, which no other type has.
// REQUIRES: the shape is right.
Status CheckOpaque(const schema::Tensor& tensor) {
  if (tensor.type() != schema::ElementType::opaque) {
    if (tensor.opaque_type() == nullptr && tensor.opaque_bytes() == 0) {
      return {};
    }
    return Corrupt("it is not opaque, and has opaque_type ",
                   QuoteName(TextOf(tensor.opaque_type())),
                   " and opaque_bytes ", tensor.opaque_bytes());
  }
  const std::string_view type = TextOf(tensor.opaque_type());
  if (!IsOpaqueType(type)) {
    return Corrupt("its opaque_type ", QuoteName(type), " is not 1 to ",
                   kMaxOpaqueType,
                   " letters, digits and '_', or is a type that is not opaque");
  }
  const Status status =
      CheckOpaqueTensor(type, ShapeOf(tensor), tensor.opaque_bytes()).status();
  return status.ok() ? Status() : Corrupt(status.message());
}

// `next` is the first slice that no tensor before this one has.
Status CheckSlices(const schema::Manifest& manifest,
                   const schema::Tensor& tensor, int64_t numel, uint32_t next) {
  const uint32_t count = tensor.num_slices();
  if (count == 0) {
    if (numel != 0) {
      return Corrupt("it has ", numel, " elements and no slices");
    }
    return tensor.first_slice() == 0
               ? Status()
               : Corrupt("it has no slices, and its first is ",
                         tensor.first_slice());
  }
  if (tensor.first_slice() != next ||
      count > CountOf(manifest.slices()) - next) {
    return Corrupt("its slices are ", count, " from number ",
                   tensor.first_slice(), "; the next of the ",
                   CountOf(manifest.slices()), " that there are is ", next);
  }
  int64_t begin = -1;
  for (uint32_t i = next; i < next + count; ++i) {
    const schema::Slice& slice = *manifest.slices()->Get(i);
    if (i == next ? slice.begin() != 0 : slice.begin() <= begin) {
      return Corrupt("its slice ", i - next, " begins at element ",
                     slice.begin(), "; slices begin at 0 and ascend");
    }
    begin = slice.begin();
  }
  if (begin >= numel) {
    return Corrupt("its last slice begins at element ", begin, " of ", numel);
  }
  return {};
}

Status CheckTensor(const schema::Manifest& manifest,
                   const schema::Tensor& tensor, const ManifestLimits& limits,
                   uint32_t* next_slice) {
  if (!IsElementType(static_cast<int32_t>(tensor.type())) ||
      (tensor.type() == schema::ElementType::opaque && !limits.opaque)) {
    return Corrupt("there is no element type ",
                   static_cast<int32_t>(tensor.type()),
                   " in this version of the format");
  }
  const auto type = static_cast<ElementType>(tensor.type());
  if (tensor.role() < schema::TensorRole::param ||
      tensor.role() > schema::TensorRole::state) {
    return Corrupt("there is no role ", static_cast<int32_t>(tensor.role()));
  }
  const std::span<const int64_t> shape = ShapeOf(tensor);
  if (!IsShape(shape, ElementSize(type))) {
    constexpr size_t kShown = 16;  // There may be millions.
    return Corrupt("shape ",
                   FormatList(shape.first(std::min(kShown, shape.size()))),
                   ": at most ", kMaxTensorDims,
                   " dimensions of at least 0, and at most 2^63 - 1 bytes");
  }
  if (IsQuantized(type) && tensor.role() != schema::TensorRole::state) {
    return Corrupt("only optimizer states have the type q8");
  }
  if (tensor.alias_of() != -1) return CheckAlias(manifest, tensor);
  SHARD_RETURN_IF_ERROR(CheckOpaque(tensor));
  SHARD_RETURN_IF_ERROR(
      CheckSlices(manifest, tensor, StoredNumel(tensor), *next_slice));
  *next_slice += tensor.num_slices();
  if (tensor.group() < -1 ||
      tensor.group() >= int64_t{CountOf(manifest.groups())}) {
    return Corrupt("it is in param group ", tensor.group(), "; there are ",
                   CountOf(manifest.groups()));
  }
  if (tensor.step() < -1) {
    return Corrupt("it has done ", tensor.step(), " steps");
  }
  const int32_t codebook = tensor.codebook();
  if (IsQuantized(type) && codebook < kFirstCodebook) {
    return Unimplemented(
        "its codes are those of code book ", codebook,
        ", of a version before this one; load the checkpoint with that version "
        "into an engine with states=f32 or bf16, and save it from there");
  }
  if (IsQuantized(type) ? codebook > kLastCodebook : codebook != 0) {
    return Corrupt("there is no code book ", codebook, " for ",
                   ElementTypeName(type));
  }
  return {};
}

Status CheckTensors(const schema::Manifest& manifest,
                    const ManifestLimits& limits) {
  const uint32_t count = CountOf(manifest.tensors());
  if (count > limits.tensors) {
    return Corrupt("there are ", count, " tensors; at most ", limits.tensors,
                   " are allowed in this version of the format");
  }
  uint32_t next_slice = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const schema::Tensor& tensor = *manifest.tensors()->Get(i);
    if (Status status = CheckName(tensor.key()); !status.ok()) {
      return status.WithContext(StrCat("tensor ", i));
    }
    if (Status status = CheckTensor(manifest, tensor, limits, &next_slice);
        !status.ok()) {
      return status.WithContext(
          StrCat("tensor ", QuoteName(TextOf(tensor.key()))));
    }
  }
  if (next_slice != CountOf(manifest.slices())) {
    return Corrupt("there are ", CountOf(manifest.slices()),
                   " slices, and tensors have ", next_slice);
  }
  return {};
}

Status CheckFiles(const schema::Manifest& manifest) {
  for (uint32_t i = 0; i < CountOf(manifest.files()); ++i) {
    const schema::File& file = *manifest.files()->Get(i);
    if (Status status = CheckName(file.name()); !status.ok()) {
      return status.WithContext(StrCat("file ", i));
    }
    const std::string_view name = TextOf(file.name());
    if (name == "." || name == ".." || name == kManifestName ||
        name.size() > kMaxFileNameBytes ||
        name.find('/') != std::string_view::npos) {
      return Corrupt("file ", i, " is called ", QuoteName(name),
                     ", which is no plain name of a data file");
    }
    if (file.bytes() > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return Corrupt("file ", QuoteName(name), " has ", file.bytes(),
                     " bytes; at most 2^63 - 1 are possible");
    }
    if (file.bytes() % kSliceAlignment != 0) {
      return Corrupt("file ", QuoteName(name), " has ", file.bytes(),
                     " bytes, which is no multiple of ", kSliceAlignment);
    }
  }
  return CheckUnique(manifest.files(), "file");
}

Status CheckGroups(const schema::Manifest& manifest) {
  for (uint32_t i = 0; i < CountOf(manifest.groups()); ++i) {
    if (Status status = CheckName(manifest.groups()->Get(i)->optimizer());
        !status.ok()) {
      return status.WithContext(StrCat("optimizer of param group ", i));
    }
  }
  return {};
}

Status CheckScalars(const schema::Manifest& manifest) {
  for (uint32_t i = 0; i < CountOf(manifest.scalars()); ++i) {
    const schema::Scalar& scalar = *manifest.scalars()->Get(i);
    if (Status status = CheckName(scalar.name()); !status.ok()) {
      return status.WithContext(StrCat("scalar ", i));
    }
    if (!std::isfinite(scalar.value())) {
      return Corrupt("scalar ", QuoteName(TextOf(scalar.name())),
                     " is not finite");
    }
  }
  return CheckUnique(manifest.scalars(), "scalar");
}

Status CheckBlob(const schema::Manifest& manifest, const schema::Blob& blob) {
  const uint64_t bytes = blob.extent()->bytes();
  switch (blob.rule()) {
    case schema::BlobRule::per_rank:
      break;
    case schema::BlobRule::replicated:
      if (blob.rank() == 0) break;
      return Corrupt("it is replicated, and of rank ", blob.rank(),
                     " instead of 0");
    case schema::BlobRule::summed:
      if (bytes % sizeof(int64_t) == 0) break;
      return Corrupt("it is summed, and its ", bytes,
                     " bytes are no multiple of 8");
    default:
      return Corrupt("there is no rule ", static_cast<int32_t>(blob.rule()));
  }
  if (blob.rank() < 0 || blob.rank() >= manifest.world_size()) {
    return Corrupt("it is of rank ", blob.rank(), " of ",
                   manifest.world_size());
  }
  return {};
}

Status CheckBlobs(const schema::Manifest& manifest) {
  const auto* blobs = manifest.blobs();
  for (uint32_t i = 0; i < CountOf(blobs); ++i) {
    const schema::Blob& blob = *blobs->Get(i);
    if (Status status = CheckName(blob.name()); !status.ok()) {
      return status.WithContext(StrCat("blob ", i));
    }
    if (Status status = CheckBlob(manifest, blob); !status.ok()) {
      return status.WithContext(
          StrCat("blob ", QuoteName(TextOf(blob.name()))));
    }
  }
  const auto before = [&](uint32_t a, uint32_t b) {
    const int order =
        TextOf(blobs->Get(a)->name()).compare(TextOf(blobs->Get(b)->name()));
    return order != 0 ? order < 0
                      : blobs->Get(a)->rank() < blobs->Get(b)->rank();
  };
  const std::vector<uint32_t> order = Sorted(CountOf(blobs), before);
  for (size_t i = 1; i < order.size(); ++i) {
    const schema::Blob& a = *blobs->Get(order[i - 1]);
    const schema::Blob& b = *blobs->Get(order[i]);
    if (TextOf(a.name()) != TextOf(b.name())) continue;
    if (a.rank() == b.rank()) {
      return Corrupt("rank ", a.rank(), " has two blobs called ",
                     QuoteName(TextOf(a.name())));
    }
    if (a.rule() != b.rule()) {
      return Corrupt("the blobs called ", QuoteName(TextOf(a.name())),
                     " have different rules");
    }
    if (a.rule() == schema::BlobRule::summed &&
        a.extent()->bytes() != b.extent()->bytes()) {
      return Corrupt("the blobs called ", QuoteName(TextOf(a.name())),
                     " are summed, and their sizes differ");
    }
  }
  return {};
}

}  // namespace

Status CheckManifest(const schema::Manifest& manifest,
                     const ManifestLimits& limits) {
  if (!IsPlainText(TextOf(manifest.writer()))) {
    return Corrupt("its writer is not UTF-8 without control characters");
  }
  if (manifest.step() < 0) {
    return Corrupt("it is of step ", manifest.step());
  }
  if (manifest.world_size() < 1) {
    return Corrupt("it was saved by ", manifest.world_size(), " ranks");
  }
  SHARD_RETURN_IF_ERROR(CheckFiles(manifest));
  SHARD_RETURN_IF_ERROR(CheckGroups(manifest));
  SHARD_RETURN_IF_ERROR(CheckScalars(manifest));
  SHARD_RETURN_IF_ERROR(CheckTensors(manifest, limits));
  SHARD_RETURN_IF_ERROR(CheckBlobs(manifest));
  return CheckExtents(manifest);
}

Status CheckScales(const Manifest& manifest) {
  std::string key;
  for (size_t i = 0; i < manifest.num_tensors(); ++i) {
    const TensorInfo codes = manifest.tensor(i);
    if (!IsQuantized(codes.type)) continue;
    key.assign(codes.key).append(kScaleSuffix);
    const int64_t found = manifest.Find(key);
    if (found < 0) {
      return Corrupt("tensor ", QuoteName(codes.key), " is q8 and has no ",
                     kScaleSuffix);
    }
    const TensorInfo scales = manifest.tensor(static_cast<size_t>(found));
    // No sum that could overflow.
    const int64_t blocks =
        codes.numel / kQ8Block + (codes.numel % kQ8Block != 0);
    if (scales.type != ElementType::kF32 || scales.role != TensorRole::kState ||
        scales.shape.size() != 1 || scales.shape[0] != blocks) {
      return Corrupt("tensor ", QuoteName(key), " is not ", blocks,
                     " scales: an f32 state of that one dimension");
    }
  }
  return {};
}

}  // namespace shard
