// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/manifest/manifest_structure.h"

#include "core/checkpoint/manifest/flatbuffer_walk.h"

namespace shard {

StatusOr<const schema::Manifest*> ReadManifestBody(
    std::span<const std::byte> body) {
  if (!IsFlatBuffer(body, [](flatbuffers::Verifier& verifier) {
        return schema::VerifyManifestBuffer(verifier);
      })) {
    return Corrupt("the manifest is not a FlatBuffer of its schema, SHRD");
  }
  const schema::Manifest* manifest = schema::GetManifest(body.data());
  FlatBufferWalk walk(body);
  walk.Table(reinterpret_cast<const flatbuffers::Table*>(manifest));
  walk.String(manifest->writer());
  walk.Vector(manifest->slices(), sizeof(schema::Slice),
              alignof(schema::Slice));
  walk.Tables(manifest->files(),
              [&](const schema::File& file) { walk.String(file.name()); });
  walk.Tables(manifest->tensors(), [&](const schema::Tensor& tensor) {
    walk.String(tensor.key());
    walk.Vector(tensor.shape(), sizeof(int64_t), alignof(int64_t));
    walk.String(tensor.opaque_type());
  });
  walk.Tables(manifest->groups(), [&](const schema::Group& group) {
    walk.String(group.optimizer());
  });
  walk.Tables(manifest->scalars(), [&](const schema::Scalar& scalar) {
    walk.String(scalar.name());
  });
  walk.Tables(manifest->blobs(),
              [&](const schema::Blob& blob) { walk.String(blob.name()); });
  if (!walk.ok()) {
    return Corrupt(
        "the manifest has an object that is misaligned, or two that share "
        "bytes");
  }
  return manifest;
}

std::span<const int64_t> ShapeOf(const schema::Tensor& tensor) {
  const auto* shape = tensor.shape();
  // An empty vector need not be aligned.
  if (shape == nullptr || shape->size() == 0) return {};
  return {reinterpret_cast<const int64_t*>(shape->Data()), shape->size()};
}

int64_t NumelOf(const schema::Tensor& tensor) {
  int64_t numel = 1;
  for (const int64_t dim : ShapeOf(tensor)) numel *= dim;
  return numel;
}

int64_t StoredNumel(const schema::Tensor& tensor) {
  return tensor.type() == schema::ElementType::opaque
             ? static_cast<int64_t>(tensor.opaque_bytes())
             : NumelOf(tensor);
}

}  // namespace shard
