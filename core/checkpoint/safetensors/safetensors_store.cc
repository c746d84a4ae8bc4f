// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/safetensors/safetensors_store.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <utility>

#include "core/base/strings.h"
#include "core/checkpoint/safetensors/json_events.h"
#include "core/checkpoint/store/piece_reader.h"

namespace shard {

namespace {

// The most keys that a message names.
constexpr size_t kNamed = 5;

// Opens a File or PooledFile.
template <typename FileType>
StatusOr<FileType> OpenFollowing(FileEnv* env, const std::string& path) {
  // Neither class follows links, so links are resolved before.
  const std::unique_ptr<char, decltype(&std::free)> resolved(
      ::realpath(path.c_str(), nullptr), &std::free);
  if (resolved == nullptr) {
    return ErrnoStatus(StrCat("opening '", path, "'"), errno);
  }
  return FileType::Open(env, resolved.get(), File::Mode::kRead);
}

// Keys for a message.
class KeyList {
 public:
  void Add(std::string_view key) {
    if (++count_ > kNamed) return;
    StrAppend(&text_, count_ == 1 ? "" : ", ", QuoteForMessage(key));
  }
  size_t count() const { return count_; }
  std::string text() const {
    return count_ <= kNamed ? text_
                            : StrCat(text_, " and ", count_ - kNamed, " more");
  }

 private:
  size_t count_ = 0;
  std::string text_;
};

}  // namespace

StatusOr<SafetensorsStore::Part> SafetensorsStore::OpenPart(
    FileEnv* env, const std::string& path) {
  SHARD_ASSIGN_OR_RETURN(PooledFile file, OpenFollowing<PooledFile>(env, path));
  uint64_t size = 0;
  uint64_t data_begin = 0;
  const auto read = [&]() -> StatusOr<SafetensorsHeader> {
    SHARD_ASSIGN_OR_RETURN(size, file.Size());
    if (size < kSafetensorsPrefixBytes) {
      return Corrupt("it has only ", size, " bytes: it is cut off");
    }
    std::array<std::byte, kSafetensorsPrefixBytes> prefix;
    SHARD_RETURN_IF_ERROR(file.ReadExactly(0, prefix));
    SHARD_ASSIGN_OR_RETURN(const uint64_t bytes,
                           SafetensorsHeaderBytes(prefix, size));
    std::string json(bytes, '\0');
    SHARD_RETURN_IF_ERROR(file.ReadExactly(
        kSafetensorsPrefixBytes, std::as_writable_bytes(std::span(json))));
    data_begin = kSafetensorsPrefixBytes + bytes;
    return SafetensorsHeader::Parse(json, size - data_begin);
  };
  StatusOr<SafetensorsHeader> header = read();
  if (!header.ok()) {
    return header.status().WithContext(StrCat("'", path, "'"));
  }
  return Part{.name = path.substr(path.rfind('/') + 1),
              .bytes = size,
              .file = std::move(file),
              .data_begin = data_begin,
              .header = *std::move(header)};
}

StatusOr<std::unique_ptr<SafetensorsStore>> SafetensorsStore::Open(
    FileEnv* env, const std::string& path) {
  std::unique_ptr<SafetensorsStore> store(new SafetensorsStore);
  store->path_ = path;
  store->description_ = StrCat("safetensors file '", path, "'");
  std::vector<std::string> files = {path};
  if (path.ends_with(".json")) {
    store->description_ = StrCat("safetensors index '", path, "'");
    SHARD_ASSIGN_OR_RETURN(const File file, OpenFollowing<File>(env, path));
    SHARD_ASSIGN_OR_RETURN(const uint64_t size, file.Size());
    if (size > kMaxSafetensorsIndex) {
      return Corrupt("'", path, "': the index has ", size, " bytes; at most ",
                     kMaxSafetensorsIndex, " are read");
    }
    std::string json(size, '\0');
    SHARD_RETURN_IF_ERROR(
        file.ReadExactly(0, std::as_writable_bytes(std::span(json))));
    StatusOr<SafetensorsIndex> index = SafetensorsIndex::Parse(json);
    if (!index.ok()) {
      return index.status().WithContext(StrCat("'", path, "'"));
    }
    store->index_.emplace(*std::move(index));
    store->index_bytes_ = size;
    files.clear();
    const std::string folder = path.substr(0, path.rfind('/') + 1);
    for (const std::string_view name : store->index_->files()) {
      files.push_back(StrCat(folder, name));
    }
  }
  store->first_.push_back(0);
  for (const std::string& file : files) {
    StatusOr<Part> part = OpenPart(env, file);
    if (!part.ok()) {
      return store->index_.has_value()
                 ? part.status().WithContext(StrCat("'", path, "'"))
                 : part.status();
    }
    store->parts_.push_back(*std::move(part));
    store->first_.push_back(store->first_.back() +
                            store->parts_.back().header.num_tensors());
  }
  if (store->index_.has_value()) {
    SHARD_RETURN_IF_ERROR(
        store->CheckIndex().WithContext(StrCat("'", path, "'")));
  }
  return store;
}

Status SafetensorsStore::CheckIndex() const {
  KeyList missing;
  for (const SafetensorsIndex::Entry& entry : index_->entries()) {
    if (parts_[entry.file].header.Find(entry.key) < 0) missing.Add(entry.key);
  }
  if (missing.count() > 0) {
    return Corrupt(missing.count(),
                   " tensors are not in the files where the index has them: ",
                   missing.text());
  }
  if (index_->entries().size() == num_tensors()) return Status();
  KeyList unlisted;
  for (size_t i = 0; i < num_tensors(); ++i) {
    const Place place = PlaceOf(i);
    // The index names another file for the key, or none.
    if (Find(place.tensor->key) != static_cast<int64_t>(i)) {
      unlisted.Add(place.tensor->key);
    }
  }
  return Corrupt(
      unlisted.count(),
      " tensors are in files that the index does not name for them: ",
      unlisted.text());
}

SafetensorsStore::Place SafetensorsStore::PlaceOf(size_t index) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), index);
  const auto part = static_cast<size_t>(after - first_.begin()) - 1;
  return {&parts_[part], &parts_[part].header.tensor(index - first_[part])};
}

TensorInfo SafetensorsStore::tensor(size_t index) const {
  const auto [part, found] = PlaceOf(index);
  const SafetensorsHeader::Tensor& tensor = *found;
  TensorInfo info = {.key = tensor.key,
                     .type = tensor.type,
                     .role = TensorRole::kParam,
                     .shape = tensor.shape(),
                     .numel = tensor.numel()};
  if (tensor.type == ElementType::kOpaque) {
    info.opaque_type = part->header.type_name(tensor);
    info.opaque_bytes = tensor.bytes;
  }
  return info;
}

int64_t SafetensorsStore::Find(std::string_view key) const {
  size_t part = 0;
  if (index_.has_value()) {
    const auto& entries = index_->entries();
    const auto found =
        std::lower_bound(entries.begin(), entries.end(), key,
                         [](const SafetensorsIndex::Entry& entry,
                            std::string_view k) { return entry.key < k; });
    if (found == entries.end() || found->key != key) return -1;
    part = found->file;
  }
  const int64_t in_part = parts_[part].header.Find(key);
  if (in_part < 0) return -1;
  return static_cast<int64_t>(first_[part]) + in_part;
}

Status SafetensorsStore::Read(std::span<const ReadRequest> requests,
                              const ReadOptions& options,
                              const PieceSink& sink) const {
  std::vector<PieceReader::Range> ranges;
  ranges.reserve(requests.size());
  for (const ReadRequest& request : requests) {
    SHARD_RETURN_IF_ERROR(CheckRequest(*this, request, options));
    const ElementType type = PlaceOf(request.tensor).tensor->type;
    ranges.push_back({request.begin, request.numel, ElementSize(type)});
  }
  const auto read = [&](size_t request, int64_t begin,
                        std::span<std::byte> to) {
    const auto [part, tensor] = PlaceOf(requests[request].tensor);
    const uint64_t offset =
        part->data_begin + tensor->begin +
        static_cast<uint64_t>(begin) * ElementSize(tensor->type);
    const Status status = part->file.ReadExactly(offset, to);
    if (status.ok()) return status;
    return status.WithContext(StrCat("tensor ", QuoteForMessage(tensor->key)));
  };
  return PieceReader(ranges, read).Run(options, sink);
}

size_t SafetensorsStore::num_slices(size_t tensor) const {
  return PlaceOf(tensor).tensor->bytes > 0 ? 1 : 0;
}

Slice SafetensorsStore::slice(size_t index, size_t /*slice*/) const {
  const auto [part, tensor] = PlaceOf(index);
  Slice slice;
  slice.numel = static_cast<int64_t>(tensor->bytes / ElementSize(tensor->type));
  slice.extent.file = static_cast<uint32_t>(part - parts_.data());
  slice.extent.offset = part->data_begin + tensor->begin;
  slice.extent.bytes = tensor->bytes;
  return slice;
}

Status SafetensorsStore::StreamBlob(size_t index,
                                    const BlobSink& /*sink*/) const {
  return OutOfRange("blob ", index, " does not exist; ", description_,
                    " has none");
}

Status SafetensorsStore::Verify(const ReadOptions& options,
                                std::vector<std::string>* problems) const {
  std::vector<ReadRequest> requests;
  requests.reserve(num_tensors());
  for (size_t t = 0; t < num_tensors(); ++t) {
    requests.push_back({t, 0, StoredNumel(tensor(t))});
  }
  ReadOptions read = options;
  read.opaque_as_bytes = true;
  const auto look = [](size_t, int64_t, int64_t, const std::byte*) {
    return Status();
  };
  const Status status = Read(requests, read, look);
  // The file was truncated after it was opened.
  if (status.code() != StatusCode::kCorrupt) return status;
  problems->push_back(status.message());
  return Status();
}

}  // namespace shard
