// SPDX-License-Identifier: Apache-2.0
//
// FakeStore: a TensorStore in memory, of any tensors that a test adds.

#ifndef SHARD_TESTS_CORE_STATE_FAKE_STORE_H_
#define SHARD_TESTS_CORE_STATE_FAKE_STORE_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/checkpoint/store/tensor_store.h"

namespace shard {

class FakeStore : public TensorStore {
 public:
  // Adds a tensor and returns its index. A key with the prefix of states is a
  // state.
  int64_t Add(const std::string& key, std::vector<int64_t> shape,
              ElementType type = ElementType::kF32) {
    Tensor tensor{
        key, type,
        key.rfind("state.", 0) == 0 ? TensorRole::kState : TensorRole::kParam,
        std::move(shape), -1};
    tensors_.push_back(std::move(tensor));
    const auto index = static_cast<int64_t>(tensors_.size()) - 1;
    index_[key] = index;
    return index;
  }
  int64_t AddAlias(const std::string& key, int64_t of) {
    const Tensor target = tensors_[static_cast<size_t>(of)];
    const int64_t index = Add(key, target.shape, target.type);
    tensors_.back().alias_of = of;
    return index;
  }
  void SetRole(int64_t index, TensorRole role) {
    tensors_[static_cast<size_t>(index)].role = role;
  }
  // Removes a tensor; those added after it get other indices.
  void Remove(const std::string& key) {
    const auto at = index_.at(key);
    tensors_.erase(tensors_.begin() + at);
    index_.erase(key);
    for (auto& [other, index] : index_) index -= index > at ? 1 : 0;
  }

  std::string_view describe() const override { return "the fake store"; }
  size_t num_tensors() const override { return tensors_.size(); }
  TensorInfo tensor(size_t index) const override {
    const Tensor& tensor = tensors_[index];
    TensorInfo info;
    info.key = tensor.key;
    info.type = tensor.type;
    info.role = tensor.role;
    info.shape = tensor.shape;
    info.numel = 1;
    for (const int64_t dim : tensor.shape) info.numel *= dim;
    info.alias_of = tensor.alias_of;
    if (info.type == ElementType::kOpaque) info.opaque_type = "F8_E8M0";
    return info;
  }
  int64_t Find(std::string_view key) const override {
    const auto found = index_.find(key);
    return found == index_.end() ? -1 : found->second;
  }
  Status Read(std::span<const ReadRequest>, const ReadOptions&,
              const PieceSink&) const override {
    return Unimplemented("it has no elements");
  }

 private:
  struct Tensor {
    std::string key;
    ElementType type;
    TensorRole role;
    std::vector<int64_t> shape;
    int64_t alias_of;
  };
  std::vector<Tensor> tensors_;
  std::map<std::string, int64_t, std::less<>> index_;
};

}  // namespace shard

#endif  // SHARD_TESTS_CORE_STATE_FAKE_STORE_H_
