// SPDX-License-Identifier: Apache-2.0
//
// Lists and reads the contents of checkpoints and safetensors files, without an
// engine.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "api/error.h"
#include "api/handles.h"
#include "api/options.h"
#include "api/progress.h"
#include "api/tensor_info.h"
#include "core/base/file_env.h"
#include "core/checkpoint/data/file_store.h"
#include "core/checkpoint/manifest/manifest.h"
#include "core/checkpoint/open_store.h"
#include "core/checkpoint/store/tensor_info.h"
#include "core/checkpoint/store/tensor_store.h"
#include "core/checkpoint/verify.h"

namespace {

using shard::FileStore;
using shard::InvalidArgument;
using shard::Manifest;
using shard::NotFound;
using shard::Status;
using shard::TensorInfo;
using shard::api::Guard;
using shard::api::TextKind;

// Checks that 0 <= number < count. `what` is the noun for messages: "tensor".
Status CheckNumber(const FileStore& store, const char* what, int64_t number,
                   size_t count) {
  if (number >= 0 && static_cast<uint64_t>(number) < count) return Status();
  return InvalidArgument(what, " ", number, " does not exist; ",
                         store.describe(), " has ", count);
}

Status CheckTensor(const FileStore& store, int64_t tensor) {
  return CheckNumber(store, "tensor", tensor, store.num_tensors());
}

// The counts of things that only a checkpoint has.
using ManifestCount = size_t (Manifest::*)() const;
size_t CountOf(const FileStore& store, ManifestCount count) {
  return store.manifest() == nullptr ? 0 : (store.manifest()->*count)();
}

Status CheckBlob(const FileStore& store, int32_t blob) {
  return CheckNumber(store, "blob", blob, CountOf(store, &Manifest::num_blobs));
}

shard_checkpoint_info InfoOf(const FileStore& store) {
  shard_checkpoint_info info = SHARD_CHECKPOINT_INFO_INIT;
  info.format = SHARD_FORMAT_SAFETENSORS;
  info.step = -1;
  if (const Manifest* const manifest = store.manifest()) {
    info.format = SHARD_FORMAT_CHECKPOINT;
    info.version = manifest->version();
    info.step = manifest->step();
    info.world_size = manifest->world_size();
    info.num_groups = static_cast<int32_t>(manifest->num_groups());
    info.num_scalars = static_cast<int32_t>(manifest->num_scalars());
    info.num_blobs = static_cast<int32_t>(manifest->num_blobs());
    info.id_low = manifest->id().low;
    info.id_high = manifest->id().high;
  }
  info.num_files = static_cast<int32_t>(store.num_files());
  info.num_tensors = static_cast<int64_t>(store.num_tensors());
  for (size_t t = 0; t < store.num_tensors(); ++t) {
    const TensorInfo tensor = store.tensor(t);
    if (tensor.alias_of < 0) info.tensor_bytes += TensorBytes(tensor);
  }
  info.file_bytes = store.index_bytes();
  for (size_t f = 0; f < store.num_files(); ++f) {
    info.file_bytes += store.file_bytes(f);
  }
  return info;
}

shard_tensor_info InfoOf(const FileStore& store, size_t index) {
  const TensorInfo tensor = store.tensor(index);
  shard_tensor_info info = shard::api::ToTensorInfo(tensor);
  info.num_slices = static_cast<int32_t>(store.num_slices(index));
  if (tensor.role != shard::TensorRole::kParam) return info;
  const Manifest* const manifest = store.manifest();
  info.trainable = manifest == nullptr || manifest->trainable(index) ? 1 : 0;
  if (manifest == nullptr) return info;
  info.group = manifest->group(index);
  if (info.trainable == 1) info.step = manifest->tensor_step(index);
  return info;
}

shard_tensor_slice ToC(const shard::Slice& slice, bool has_checksum) {
  shard_tensor_slice c = SHARD_TENSOR_SLICE_INIT;
  c.begin = slice.begin;
  c.numel = slice.numel;
  c.offset = slice.extent.offset;
  c.bytes = slice.extent.bytes;
  c.file = static_cast<int32_t>(slice.extent.file);
  c.has_checksum = has_checksum ? 1 : 0;
  c.checksum_low = slice.extent.checksum.low;
  c.checksum_high = slice.extent.checksum.high;
  return c;
}

Status ReadElements(const FileStore& store, const shard::ReadRequest& request,
                    void* buffer, size_t bytes) {
  shard::ReadOptions options;
  options.opaque_as_bytes = true;
  // The size of the elements is checked before they are read.
  SHARD_RETURN_IF_ERROR(CheckRequest(store, request, options));
  const TensorInfo info = store.tensor(request.tensor);
  const size_t size = ElementSize(info.type);
  const uint64_t expected = static_cast<uint64_t>(request.numel) * size;
  if (bytes != expected) {
    return InvalidArgument("bytes is ", bytes, "; ", request.numel,
                           " elements of type ", ElementTypeName(info.type),
                           " have ", expected);
  }
  if (bytes == 0) return Status();
  SHARD_API_REQUIRE_HOSTS(buffer);
  auto* const to = static_cast<std::byte*>(buffer);
  return store.Read(
      {&request, 1}, options,
      [&](size_t, int64_t begin, int64_t numel, const std::byte* data) {
        const auto skip = static_cast<size_t>(begin - request.begin);
        std::memcpy(to + skip * size, data, static_cast<size_t>(numel) * size);
        return Status();
      });
}

}  // namespace

extern "C" {

shard_error* shard_checkpoint_open(const char* path,
                                   shard_checkpoint** checkpoint) noexcept {
  if (checkpoint != nullptr) *checkpoint = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(path);
    SHARD_API_REQUIRE(checkpoint);
    SHARD_ASSIGN_OR_RETURN(
        shard::OpenedStore opened,
        shard::OpenTensorStore(shard::FileEnv::Posix(), path));
    *checkpoint = new shard_checkpoint{std::move(opened.store)};
    return Status();
  });
}

void shard_checkpoint_free(shard_checkpoint* checkpoint) noexcept {
  delete checkpoint;
}

shard_error* shard_checkpoint_get_info(const shard_checkpoint* checkpoint,
                                       shard_checkpoint_info* info) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(info);
    SHARD_RETURN_IF_ERROR(
        shard::api::ClearResult("shard_checkpoint_info", info));
    SHARD_API_REQUIRE(checkpoint);
    shard::api::WriteResult(InfoOf(*checkpoint->store), info);
    return Status();
  });
}

shard_error* shard_checkpoint_path(const shard_checkpoint* checkpoint,
                                   const char** path) noexcept {
  if (path != nullptr) *path = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(checkpoint);
    SHARD_API_REQUIRE(path);
    *path = checkpoint->store->path().c_str();
    return Status();
  });
}

shard_error* shard_checkpoint_tensor(const shard_checkpoint* checkpoint,
                                     int64_t tensor,
                                     shard_tensor_info* info) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(info);
    SHARD_RETURN_IF_ERROR(shard::api::ClearResult("shard_tensor_info", info));
    SHARD_API_REQUIRE(checkpoint);
    const FileStore& store = *checkpoint->store;
    SHARD_RETURN_IF_ERROR(CheckTensor(store, tensor));
    const auto index = static_cast<size_t>(tensor);
    const TensorInfo found = store.tensor(index);
    if (found.shape.size() > SHARD_MAX_DIMS) {
      return shard::Unimplemented("tensor '", found.key, "' has ",
                                  found.shape.size(), " dimensions; at most ",
                                  SHARD_MAX_DIMS, " are described");
    }
    shard::api::WriteResult(InfoOf(store, index), info);
    return Status();
  });
}

shard_error* shard_checkpoint_tensor_key(const shard_checkpoint* checkpoint,
                                         int64_t tensor,
                                         const char** key) noexcept {
  if (key != nullptr) *key = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(checkpoint);
    SHARD_API_REQUIRE(key);
    const FileStore& store = *checkpoint->store;
    SHARD_RETURN_IF_ERROR(CheckTensor(store, tensor));
    // There may be millions: no copies.
    *key = store.tensor(static_cast<size_t>(tensor)).key.data();
    return Status();
  });
}

shard_error* shard_checkpoint_tensor_type(const shard_checkpoint* checkpoint,
                                          int64_t tensor,
                                          const char** type) noexcept {
  if (type != nullptr) *type = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(checkpoint);
    SHARD_API_REQUIRE(type);
    const FileStore& store = *checkpoint->store;
    SHARD_RETURN_IF_ERROR(CheckTensor(store, tensor));
    *type = TypeNameOf(store.tensor(static_cast<size_t>(tensor))).data();
    return Status();
  });
}

shard_error* shard_checkpoint_find(const shard_checkpoint* checkpoint,
                                   const char* key, int64_t* tensor) noexcept {
  if (tensor != nullptr) *tensor = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(checkpoint);
    SHARD_API_REQUIRE(key);
    SHARD_API_REQUIRE(tensor);
    const FileStore& store = *checkpoint->store;
    const int64_t found = store.Find(key);
    if (found < 0) {
      return NotFound(store.describe(), " has no tensor '", key, "'");
    }
    *tensor = found;
    return Status();
  });
}

shard_error* shard_checkpoint_slice(const shard_checkpoint* checkpoint,
                                    int64_t tensor, int32_t index,
                                    shard_tensor_slice* slice) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(slice);
    SHARD_RETURN_IF_ERROR(shard::api::ClearResult("shard_tensor_slice", slice));
    SHARD_API_REQUIRE(checkpoint);
    const FileStore& store = *checkpoint->store;
    SHARD_RETURN_IF_ERROR(CheckTensor(store, tensor));
    const auto number = static_cast<size_t>(tensor);
    const size_t count = store.num_slices(number);
    if (index < 0 || static_cast<size_t>(index) >= count) {
      return InvalidArgument("tensor '", store.tensor(number).key,
                             "' has no slice ", index, "; it has ", count);
    }
    shard::api::WriteResult(ToC(store.slice(number, static_cast<size_t>(index)),
                                store.manifest() != nullptr),
                            slice);
    return Status();
  });
}

shard_error* shard_checkpoint_file(const shard_checkpoint* checkpoint,
                                   int32_t file, const char** name,
                                   uint64_t* bytes) noexcept {
  if (name != nullptr) *name = nullptr;
  if (bytes != nullptr) *bytes = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(checkpoint);
    const FileStore& store = *checkpoint->store;
    SHARD_RETURN_IF_ERROR(CheckNumber(store, "file", file, store.num_files()));
    const auto index = static_cast<size_t>(file);
    if (name != nullptr) {
      *name = checkpoint->texts.Get(TextKind::kFileName, file,
                                    [&] { return store.file_name(index); });
    }
    if (bytes != nullptr) *bytes = store.file_bytes(index);
    return Status();
  });
}

shard_error* shard_checkpoint_group(const shard_checkpoint* checkpoint,
                                    int32_t group,
                                    const char** optimizer) noexcept {
  if (optimizer != nullptr) *optimizer = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(checkpoint);
    SHARD_API_REQUIRE(optimizer);
    const FileStore& store = *checkpoint->store;
    SHARD_RETURN_IF_ERROR(CheckNumber(store, "group", group,
                                      CountOf(store, &Manifest::num_groups)));
    *optimizer = checkpoint->texts.Get(TextKind::kGroup, group, [&] {
      return store.manifest()->group_optimizer(static_cast<size_t>(group));
    });
    return Status();
  });
}

shard_error* shard_checkpoint_scalar(const shard_checkpoint* checkpoint,
                                     int32_t scalar, const char** name,
                                     double* value) noexcept {
  if (name != nullptr) *name = nullptr;
  if (value != nullptr) *value = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(checkpoint);
    const FileStore& store = *checkpoint->store;
    SHARD_RETURN_IF_ERROR(CheckNumber(store, "scalar", scalar,
                                      CountOf(store, &Manifest::num_scalars)));
    const shard::ScalarInfo info =
        store.manifest()->scalar(static_cast<size_t>(scalar));
    if (name != nullptr) {
      *name = checkpoint->texts.Get(TextKind::kScalarName, scalar,
                                    [&] { return info.name; });
    }
    if (value != nullptr) *value = info.value;
    return Status();
  });
}

shard_error* shard_checkpoint_blob_info(const shard_checkpoint* checkpoint,
                                        int32_t blob, const char** name,
                                        int32_t* rule, int32_t* rank) noexcept {
  if (name != nullptr) *name = nullptr;
  if (rule != nullptr) *rule = 0;
  if (rank != nullptr) *rank = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(checkpoint);
    const FileStore& store = *checkpoint->store;
    SHARD_RETURN_IF_ERROR(CheckBlob(store, blob));
    const shard::BlobInfo info =
        store.manifest()->blob(static_cast<size_t>(blob));
    if (name != nullptr) {
      *name = checkpoint->texts.Get(TextKind::kBlobName, blob,
                                    [&] { return info.name; });
    }
    if (rule != nullptr) *rule = static_cast<int32_t>(info.rule);
    if (rank != nullptr) *rank = info.rank;
    return Status();
  });
}

shard_error* shard_checkpoint_blob(const shard_checkpoint* checkpoint,
                                   int32_t blob, void* buffer, size_t capacity,
                                   size_t* length) noexcept {
  if (length != nullptr) *length = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(checkpoint);
    SHARD_API_REQUIRE(length);
    if (capacity > 0) SHARD_API_REQUIRE_HOSTS(buffer);
    const FileStore& store = *checkpoint->store;
    SHARD_RETURN_IF_ERROR(CheckBlob(store, blob));
    const auto index = static_cast<size_t>(blob);
    const uint64_t bytes = store.manifest()->blob(index).extent.bytes;
    if (capacity > 0) {
      auto* const to = static_cast<std::byte*>(buffer);
      const auto copy = [&](uint64_t offset, std::span<const std::byte> piece) {
        if (offset >= capacity) return Status();
        const auto room = static_cast<size_t>(capacity - offset);
        std::copy_n(piece.data(), std::min(room, piece.size()), to + offset);
        return Status();
      };
      SHARD_RETURN_IF_ERROR(store.StreamBlob(index, copy));
    }
    *length = bytes;
    return Status();
  });
}

shard_error* shard_checkpoint_read(const shard_checkpoint* checkpoint,
                                   int64_t tensor, int64_t begin, int64_t numel,
                                   void* buffer, size_t bytes) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(checkpoint);
    const FileStore& store = *checkpoint->store;
    SHARD_RETURN_IF_ERROR(CheckTensor(store, tensor));
    return ReadElements(store, {static_cast<size_t>(tensor), begin, numel},
                        buffer, bytes);
  });
}

shard_error* shard_checkpoint_verify(
    const shard_checkpoint* checkpoint,
    const shard_verify_options* options) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(checkpoint);
    shard_verify_options read;
    SHARD_RETURN_IF_ERROR(
        shard::api::ReadOptions("shard_verify_options", options, &read));
    SHARD_RETURN_IF_ERROR(
        shard::api::CheckReserved("shard_verify_options", read.reserved));
    shard::ReadOptions verify;
    SHARD_ASSIGN_OR_RETURN(verify.threads,
                           shard::api::ReadThreads(read.threads));
    verify.progress =
        shard::api::ToProgress(read.progress, read.progress_user_data);
    return shard::VerifyStore(*checkpoint->store, verify);
  });
}

}  // extern "C"
