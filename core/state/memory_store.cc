// SPDX-License-Identifier: Apache-2.0

#include "core/state/memory_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "core/base/strings.h"
#include "core/model/model.h"

namespace shard {

namespace {

Status CheckKey(std::string_view key) {
  if (key.empty()) return InvalidArgument("a key is empty");
  if (!IsValidUtf8(key)) return InvalidArgument("a key is not UTF-8");
  return Status();
}

StatusOr<int64_t> NumelOf(const MemoryStore::Tensor& tensor) {
  if (tensor.shape.size() > static_cast<size_t>(kMaxDims)) {
    return InvalidArgument("'", tensor.key, "' has ", tensor.shape.size(),
                           " dimensions; allowed: 0 to ", kMaxDims);
  }
  // The bytes must fit into 63 bits, too.
  int64_t most = std::numeric_limits<int64_t>::max() /
                 static_cast<int64_t>(ElementSize(tensor.type));
  int64_t numel = 1;
  for (const int64_t size : tensor.shape) {
    if (size < 0 || __builtin_mul_overflow(numel, size, &numel) ||
        numel > most) {
      return InvalidArgument("'", tensor.key, "' has shape ",
                             FormatList(tensor.shape),
                             ": negative, or too many elements");
    }
  }
  return numel;
}

template <typename T>
void AppendNumber(T value, std::string* out) {
  char bytes[sizeof(value)];
  std::memcpy(bytes, &value, sizeof(value));
  out->append(bytes, sizeof(bytes));
}

void AppendText(std::string_view text, std::string* out) {
  AppendNumber<uint64_t>(text.size(), out);
  out->append(text);
}

// Reads the numbers and texts of a catalog. Past the end everything is 0 or
// empty, and ok() is false from then on.
class CatalogReader {
 public:
  explicit CatalogReader(std::string_view left) : left_(left) {}

  bool ok() const { return ok_; }

  template <typename T>
  T Number() {
    T value = {};
    const std::string_view bytes = Take(sizeof(value));
    if (ok_) std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
  std::string_view Text() { return Take(Number<uint64_t>()); }

 private:
  std::string_view Take(uint64_t bytes) {
    ok_ = ok_ && bytes <= left_.size();
    if (!ok_) return {};
    const std::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }

  std::string_view left_;
  bool ok_ = true;
};

}  // namespace

Status MemoryStore::Add(Tensor tensor, const void* data, size_t bytes) {
  return AddHeld(std::move(tensor), {0, 0, static_cast<const std::byte*>(data)},
                 true, bytes);
}

Status MemoryStore::AddPart(Tensor tensor, const Part& part) {
  return AddHeld(std::move(tensor), part, false, 0);
}

Status MemoryStore::AddHeld(Tensor tensor, const Part& part, bool whole,
                            size_t bytes) {
  SHARD_RETURN_IF_ERROR(CheckKey(tensor.key));
  if (!IsElementType(static_cast<int32_t>(tensor.type)) ||
      tensor.type == ElementType::kOpaque) {
    return InvalidArgument("'", tensor.key, "': dtype ", tensor.type,
                           " is unknown");
  }
  SHARD_ASSIGN_OR_RETURN(const int64_t numel, NumelOf(tensor));
  const size_t expected = static_cast<size_t>(numel) * ElementSize(tensor.type);
  if (whole && bytes != expected) {
    return InvalidArgument("'", tensor.key, "' has ", expected, " bytes (",
                           numel, " elements of ", ElementTypeName(tensor.type),
                           "), not ", bytes);
  }
  if (index_.count(tensor.key) != 0 || numbers_.count(tensor.key) != 0) {
    return InvalidArgument("'", tensor.key, "' is in the state dict already");
  }
  tensors_.push_back({std::move(tensor), numel, part});
  if (whole) tensors_.back().part.numel = numel;
  try {
    index_.emplace(tensors_.back().tensor.key, tensors_.size() - 1);
  } catch (...) {  // Out of memory: the tensor is not added.
    tensors_.pop_back();
    throw;
  }
  return Status();
}

Status MemoryStore::AddNumber(std::string_view key, double value) {
  SHARD_RETURN_IF_ERROR(CheckKey(key));
  if (!std::isfinite(value)) {
    return InvalidArgument("'", key, "' is ", value, ", not a finite number");
  }
  if (index_.count(key) != 0) {
    return InvalidArgument("'", key, "' is a tensor of the state dict already");
  }
  numbers_.insert_or_assign(std::string(key), value);
  return Status();
}

TensorInfo MemoryStore::tensor(size_t index) const {
  const Held& held = tensors_[index];
  TensorInfo info;
  info.key = held.tensor.key;
  info.type = held.tensor.type;
  info.role = held.tensor.role;
  info.shape = held.tensor.shape;
  info.numel = held.numel;
  info.alias_of = held.tensor.alias_of;
  info.codebook = held.tensor.codebook;
  return info;
}

int64_t MemoryStore::Find(std::string_view key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? -1 : static_cast<int64_t>(found->second);
}

bool MemoryStore::Has(size_t tensor, int64_t begin, int64_t numel) const {
  const Part& part = HeldOf(tensor).part;
  return numel == 0 ||
         (begin >= part.begin && numel <= part.begin + part.numel - begin);
}

const MemoryStore::Held& MemoryStore::HeldOf(size_t tensor) const {
  const int64_t alias_of = tensors_[tensor].tensor.alias_of;
  return tensors_[alias_of < 0 ? tensor : static_cast<size_t>(alias_of)];
}

Status MemoryStore::ReserveRead(size_t tensor) const {
  const Part& part = HeldOf(tensor).part;
  if (!reserve_ || part.numel == 0) return Status();
  return reserve_(part.data);
}

Status MemoryStore::Read(std::span<const ReadRequest> requests,
                         const ReadOptions& options,
                         const PieceSink& sink) const {
  uint64_t total = 0;
  for (const ReadRequest& request : requests) {
    if (request.tensor >= tensors_.size()) {
      return OutOfRange("tensor ", request.tensor,
                        " does not exist; the state dict has ",
                        tensors_.size());
    }
    const Held& held = HeldOf(request.tensor);
    const Part& part = held.part;
    if (request.begin < part.begin || request.numel < 0 ||
        request.numel > part.begin + part.numel - request.begin) {
      return OutOfRange("elements ", request.begin, " and ", request.numel,
                        " following ones of '", held.tensor.key,
                        "': the state dict has ", part.numel, " from ",
                        part.begin, " on here");
    }
    total +=
        static_cast<uint64_t>(request.numel) * ElementSize(held.tensor.type);
  }
  ProgressMeter progress(options.progress, total);
  for (size_t r = 0; r < requests.size(); ++r) {
    const ReadRequest& request = requests[r];
    if (request.numel == 0) continue;
    const Held& held = HeldOf(request.tensor);
    SHARD_RETURN_IF_ERROR(ReadRequested(r, request, held, sink));
    SHARD_RETURN_IF_ERROR(progress.Add(static_cast<uint64_t>(request.numel) *
                                       ElementSize(held.tensor.type)));
  }
  return Status();
}

Status MemoryStore::ReadRequested(size_t index, const ReadRequest& request,
                                  const Held& held,
                                  const PieceSink& sink) const {
  const size_t size = ElementSize(held.tensor.type);
  const auto skipped = static_cast<size_t>(request.begin - held.part.begin);
  const std::byte* const data = held.part.data + skipped * size;
  if (!fetch_) return sink(index, request.begin, request.numel, data);
  const auto most = static_cast<int64_t>(kFetchedBytes / size);
  std::vector<std::byte> piece;
  for (int64_t at = 0; at < request.numel;) {
    const int64_t numel = std::min(most, request.numel - at);
    piece.resize(static_cast<size_t>(numel) * size);
    SHARD_RETURN_IF_ERROR(fetch_(data + static_cast<size_t>(at) * size,
                                 piece.size(), piece.data()));
    SHARD_RETURN_IF_ERROR(sink(index, request.begin + at, numel, piece.data()));
    at += numel;
  }
  return Status();
}

StatusOr<std::vector<std::byte>> MemoryStore::CopyPart(size_t index) const {
  const Held& held = tensors_[index];
  const size_t bytes =
      static_cast<size_t>(held.part.numel) * ElementSize(held.tensor.type);
  const std::byte* const data = held.part.data;
  if (!fetch_) return std::vector<std::byte>(data, data + bytes);
  std::vector<std::byte> copy(bytes);
  if (bytes > 0) SHARD_RETURN_IF_ERROR(fetch_(data, bytes, copy.data()));
  return copy;
}

std::string MemoryStore::EncodeCatalog() const {
  std::string out;
  AppendNumber<uint64_t>(tensors_.size(), &out);
  for (const Held& held : tensors_) {
    const Tensor& tensor = held.tensor;
    AppendText(tensor.key, &out);
    AppendNumber(static_cast<int32_t>(tensor.type), &out);
    AppendNumber(static_cast<int32_t>(tensor.role), &out);
    AppendNumber(tensor.codebook, &out);
    AppendNumber(tensor.alias_of, &out);
    AppendNumber<uint64_t>(tensor.shape.size(), &out);
    for (const int64_t size : tensor.shape) AppendNumber(size, &out);
  }
  AppendNumber<uint64_t>(numbers_.size(), &out);
  for (const auto& [key, value] : numbers_) {
    AppendText(key, &out);
    AppendNumber(value, &out);
  }
  return out;
}

Status MemoryStore::AddCatalog(std::string_view catalog) {
  CatalogReader reader(catalog);
  for (auto left = reader.Number<uint64_t>(); left > 0 && reader.ok(); --left) {
    Tensor tensor;
    tensor.key = reader.Text();
    tensor.type = static_cast<ElementType>(reader.Number<int32_t>());
    tensor.role = static_cast<TensorRole>(reader.Number<int32_t>());
    tensor.codebook = reader.Number<int32_t>();
    tensor.alias_of = reader.Number<int64_t>();
    for (auto dims = reader.Number<uint64_t>(); dims > 0 && reader.ok();
         --dims) {
      tensor.shape.push_back(reader.Number<int64_t>());
    }
    if (reader.ok()) SHARD_RETURN_IF_ERROR(AddPart(std::move(tensor), Part()));
  }
  for (auto left = reader.Number<uint64_t>(); left > 0 && reader.ok(); --left) {
    const std::string_view key = reader.Text();
    const auto value = reader.Number<double>();
    if (reader.ok()) SHARD_RETURN_IF_ERROR(AddNumber(key, value));
  }
  if (reader.ok()) return Status();
  return Internal("rank 0's catalog of its state dict ends too early");
}

}  // namespace shard
