// SPDX-License-Identifier: Apache-2.0
//
// MemoryStore: named tensors in memory, as a TensorStore: a state dict. The
// store may have only some elements of each tensor, as a rank does. The bytes
// belong to the caller; the store also has numbers that belong to tensors, such
// as step counts.
//
// Parts are memory of the host, unless FetchPartsWith was called: then they are
// memory of a device, which part() returns as it is, and Read and CopyPart
// fetch.
//
// Thread-compatible; const members may run concurrently.

#ifndef SHARD_CORE_STATE_MEMORY_STORE_H_
#define SHARD_CORE_STATE_MEMORY_STORE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/checkpoint/store/tensor_store.h"

namespace shard {

class MemoryStore : public TensorStore {
 public:
  MemoryStore() = default;
  MemoryStore(const MemoryStore&) = delete;
  MemoryStore& operator=(const MemoryStore&) = delete;

  struct Tensor {
    std::string key;
    ElementType type = ElementType::kF32;
    TensorRole role = TensorRole::kParam;
    std::vector<int64_t> shape;
    // As in TensorInfo.
    int64_t alias_of = -1;
    int32_t codebook = 0;
  };

  // Elements [begin, begin + numel) of a tensor, in memory of the caller.
  struct Part {
    int64_t begin = 0;
    int64_t numel = 0;
    const std::byte* data = nullptr;
  };

  // Copies `bytes` bytes of a part, at `from`, to memory of the host. Called
  // from the threads that read the store.
  using FetchPart =
      std::function<Status(const std::byte* from, size_t bytes, void* to)>;
  // Makes what fetches of the part at `from` need.
  using ReservePart = std::function<Status(const std::byte* from)>;
  // Sets how the bytes of parts are read. They are read where they lie
  // otherwise.
  void FetchPartsWith(FetchPart fetch, ReservePart reserve) {
    fetch_ = std::move(fetch);
    reserve_ = std::move(reserve);
  }
  bool fetches_parts() const { return fetch_ != nullptr; }

  // Adds a whole tensor. Errors, with the value: a key that is empty, not UTF-8
  // or there already, an unknown type or role, more than kMaxDims dimensions, a
  // negative one, too many elements, `bytes` that are not the tensor's.
  Status Add(Tensor tensor, const void* data, size_t bytes);
  // Adds a tensor of which only `part` is here. REQUIRES: elements that the
  // tensor has.
  Status AddPart(Tensor tensor, const Part& part);

  // Adds a number by its key: "state.layer.weight.step",
  // "param_groups.layer.weight.lr". A second number of the same key replaces
  // the first; a tensor of that key is an error.
  Status AddNumber(std::string_view key, double value);
  const std::map<std::string, double, std::less<>>& numbers() const {
    return numbers_;
  }

  std::string_view describe() const override { return "the state dict"; }
  size_t num_tensors() const override { return tensors_.size(); }
  TensorInfo tensor(size_t index) const override;
  int64_t Find(std::string_view key) const override;
  bool Has(size_t tensor, int64_t begin, int64_t numel) const override;
  Status ReserveRead(size_t tensor) const override;
  // Reads requests whole: one piece each, or where parts are fetched, one per
  // kFetchedBytes. kOutOfRange also for elements that are not here.
  Status Read(std::span<const ReadRequest> requests, const ReadOptions& options,
              const PieceSink& sink) const override;

  // Returns the part of a tensor that is here; empty for an alias.
  const Part& part(size_t index) const { return tensors_[index].part; }
  // Returns the bytes of that part.
  StatusOr<std::vector<std::byte>> CopyPart(size_t index) const;

  // The bytes that are fetched at once.
  static constexpr size_t kFetchedBytes = size_t{4} << 20;

  // Returns the catalog: everything but the elements, in this machine's byte
  // order. Ranks compare catalogs, and AddCatalog makes a store of one.
  std::string EncodeCatalog() const;
  // Adds the tensors and numbers of a catalog, with no elements here.
  Status AddCatalog(std::string_view catalog);

 private:
  struct Held {
    Tensor tensor;
    int64_t numel;
    Part part;
  };

  // Returns what has the elements of a tensor: of an alias, its target.
  const Held& HeldOf(size_t tensor) const;
  Status AddHeld(Tensor tensor, const Part& part, bool whole, size_t bytes);
  // Reads request number `index`, whose elements `held` has.
  Status ReadRequested(size_t index, const ReadRequest& request,
                       const Held& held, const PieceSink& sink) const;

  std::deque<Held> tensors_;  // Views of keys stay valid.
  // The map is ordered because keys may come from a hostile file, which could
  // have some that collide under a known hash.
  std::map<std::string_view, size_t> index_;
  std::map<std::string, double, std::less<>> numbers_;
  FetchPart fetch_;  // Empty: parts are memory of the host.
  ReservePart reserve_;
};

}  // namespace shard

#endif  // SHARD_CORE_STATE_MEMORY_STORE_H_
