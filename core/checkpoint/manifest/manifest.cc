// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/manifest/manifest.h"

#include <algorithm>
#include <utility>

#include "core/checkpoint/manifest/key_index.h"
#include "core/checkpoint/manifest/manifest_checks.h"
#include "core/checkpoint/manifest/manifest_header.h"
#include "core/checkpoint/manifest/manifest_structure.h"

namespace shard {

namespace {

// REQUIRES: i < CountOf(vector).
template <typename T>
const T& At(const flatbuffers::Vector<flatbuffers::Offset<T>>* vector,
            size_t i) {
  return *vector->Get(static_cast<flatbuffers::uoffset_t>(i));
}

// Returns the first slice of a tensor. REQUIRES: it has slices.
const schema::Slice* SlicesOf(const schema::Manifest& manifest,
                              const schema::Tensor& tensor) {
  return manifest.slices()->Get(tensor.first_slice());
}

}  // namespace

std::shared_ptr<const ManifestContents::Opaque> OpaqueOf(
    const TensorInfo& info) {
  if (info.type != ElementType::kOpaque) return nullptr;
  return std::make_shared<ManifestContents::Opaque>(ManifestContents::Opaque{
      std::string(info.opaque_type), info.opaque_bytes});
}

Manifest::Manifest() : index_(new KeyIndex) {}
Manifest::~Manifest() = default;

StatusOr<std::shared_ptr<const Manifest>> Manifest::Parse(
    std::vector<std::byte> bytes) {
  std::shared_ptr<Manifest> manifest(new Manifest);
  manifest->bytes_ = std::move(bytes);
  SHARD_RETURN_IF_ERROR(manifest->Read(manifest->bytes_));
  return std::shared_ptr<const Manifest>(std::move(manifest));
}

Status Manifest::Verify(std::span<const std::byte> bytes) {
  return Manifest().Read(bytes);
}

Status Manifest::Read(std::span<const std::byte> file) {
  SHARD_ASSIGN_OR_RETURN(const FileHeader header, ReadManifestHeader(file));
  SHARD_ASSIGN_OR_RETURN(root_, ReadManifestBody(header.body));
  version_ = header.version;
  id_ = ChecksumOf(file.data(), file.size());
  Status status = CheckManifest(*root_, LimitsOf(version_));
  if (status.ok()) {
    status = index_->Build(num_tensors(), id_.low, [&](size_t i) {
      return TextOf(At(root_->tensors(), i).key());
    });
  }
  if (status.ok()) status = CheckScales(*this);
  if (status.code() != StatusCode::kCorrupt) return status;
  return status.WithContext("the manifest is wrong");
}

ManifestContents Manifest::Contents() const {
  ManifestContents contents;
  contents.writer = writer();
  contents.step = step();
  contents.world_size = world_size();
  for (size_t g = 0; g < num_groups(); ++g) {
    contents.groups.emplace_back(group_optimizer(g));
  }
  for (size_t s = 0; s < num_scalars(); ++s) {
    const ScalarInfo info = scalar(s);
    contents.scalars.push_back({std::string(info.name), info.value});
  }
  for (size_t b = 0; b < num_blobs(); ++b) {
    const BlobInfo info = blob(b);
    Extent extent;  // Without the place.
    extent.bytes = info.extent.bytes;
    extent.checksum = info.extent.checksum;
    contents.blobs.push_back(
        {std::string(info.name), info.rule, info.rank, extent});
  }
  return contents;
}

ManifestContents::Tensor Manifest::TensorContents(size_t index) const {
  const TensorInfo info = tensor(index);
  ManifestContents::Tensor contents;
  contents.key = info.key;
  contents.type = info.type;
  contents.role = info.role;
  contents.shape.assign(info.shape.begin(), info.shape.end());
  contents.alias_of = info.alias_of;
  contents.trainable = trainable(index);
  contents.group = group(index);
  contents.step = At(root_->tensors(), Target(index)).step();
  contents.codebook = info.codebook;
  contents.opaque = OpaqueOf(info);
  return contents;
}

std::string_view Manifest::writer() const { return TextOf(root_->writer()); }

int64_t Manifest::step() const { return root_->step(); }

int32_t Manifest::world_size() const { return root_->world_size(); }

size_t Manifest::num_files() const { return CountOf(root_->files()); }

std::string_view Manifest::file_name(size_t file) const {
  return TextOf(At(root_->files(), file).name());
}

uint64_t Manifest::file_bytes(size_t file) const {
  return At(root_->files(), file).bytes();
}

size_t Manifest::num_tensors() const { return CountOf(root_->tensors()); }

TensorInfo Manifest::tensor(size_t index) const {
  const schema::Tensor& tensor = At(root_->tensors(), index);
  const schema::Tensor& values = At(root_->tensors(), Target(index));
  return {
      .key = TextOf(tensor.key()),
      .type = static_cast<ElementType>(tensor.type()),
      .role = static_cast<TensorRole>(tensor.role()),
      .shape = ShapeOf(tensor),
      .numel = NumelOf(tensor),
      .alias_of = tensor.alias_of(),
      .codebook = values.codebook(),
      .opaque_type = TextOf(values.opaque_type()),
      .opaque_bytes = values.opaque_bytes(),
  };
}

int64_t Manifest::Find(std::string_view key) const {
  return index_->Find(
      key, [this](size_t i) { return TextOf(At(root_->tensors(), i).key()); });
}

size_t Manifest::Target(size_t tensor) const {
  const int32_t target = At(root_->tensors(), tensor).alias_of();
  return target < 0 ? tensor : static_cast<size_t>(target);
}

size_t Manifest::num_slices(size_t tensor) const {
  return At(root_->tensors(), Target(tensor)).num_slices();
}

Slice Manifest::slice(size_t tensor, size_t index) const {
  const schema::Tensor& owner = At(root_->tensors(), Target(tensor));
  const schema::Slice* slice = SlicesOf(*root_, owner) + index;
  const int64_t end =
      index + 1 < owner.num_slices() ? slice[1].begin() : StoredNumel(owner);
  const int64_t numel = end - slice->begin();
  return {
      .begin = slice->begin(),
      .numel = numel,
      .extent = {.file = slice->file(),
                 .offset = slice->offset(),
                 .bytes = static_cast<uint64_t>(numel) *
                          ElementSize(static_cast<ElementType>(owner.type())),
                 .checksum = {slice->checksum_low(), slice->checksum_high()}},
  };
}

size_t Manifest::SliceAt(size_t tensor, int64_t element) const {
  const schema::Tensor& owner = At(root_->tensors(), Target(tensor));
  const schema::Slice* first = SlicesOf(*root_, owner);
  const schema::Slice* after =
      std::upper_bound(first, first + owner.num_slices(), element,
                       [](int64_t value, const schema::Slice& slice) {
                         return value < slice.begin();
                       });
  return static_cast<size_t>(after - first) - 1;
}

bool Manifest::trainable(size_t tensor) const {
  return At(root_->tensors(), Target(tensor)).trainable();
}

int32_t Manifest::group(size_t tensor) const {
  return At(root_->tensors(), Target(tensor)).group();
}

int64_t Manifest::tensor_step(size_t tensor) const {
  const int64_t step = At(root_->tensors(), Target(tensor)).step();
  return step < 0 ? root_->step() : step;
}

size_t Manifest::num_groups() const { return CountOf(root_->groups()); }

std::string_view Manifest::group_optimizer(size_t group) const {
  return TextOf(At(root_->groups(), group).optimizer());
}

size_t Manifest::num_scalars() const { return CountOf(root_->scalars()); }

ScalarInfo Manifest::scalar(size_t index) const {
  const schema::Scalar& scalar = At(root_->scalars(), index);
  return {TextOf(scalar.name()), scalar.value()};
}

size_t Manifest::num_blobs() const { return CountOf(root_->blobs()); }

BlobInfo Manifest::blob(size_t index) const {
  const schema::Blob& blob = At(root_->blobs(), index);
  const schema::Extent& extent = *blob.extent();
  return {
      .name = TextOf(blob.name()),
      .rule = static_cast<BlobRule>(blob.rule()),
      .rank = blob.rank(),
      .extent = {.file = extent.file(),
                 .offset = extent.offset(),
                 .bytes = extent.bytes(),
                 .checksum = {extent.checksum_low(), extent.checksum_high()}},
  };
}

}  // namespace shard
