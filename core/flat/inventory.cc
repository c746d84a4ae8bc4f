// SPDX-License-Identifier: Apache-2.0

#include "core/flat/inventory.h"

#include <array>
#include <cstddef>
#include <utility>

#include "core/model/walk.h"

namespace shard {

namespace {

// What a record in the fingerprint begins with. A name is shorter than 2^31, so
// no length is taken for one of these.
constexpr uint32_t kModuleRecord = uint32_t{1} << 31;  // | depth
constexpr uint32_t kAliasRecord = uint32_t{1} << 30;

class InventoryTaker {
 public:
  InventoryTaker(const Model& model, Fingerprint* fingerprint)
      : model_(model), fingerprint_(fingerprint) {
    const size_t count = model.params().size();
    inventory_.walk.reserve(count);
    inventory_.buffer_of.assign(count, -1);
    frozen_.fill(-1);
    trainable_.resize(model.groups().size());
    for (auto& row : trainable_) row.fill(-1);
  }

  bool Enter(ModuleId id, int depth) {
    const Model::Module& module = model_.modules()[static_cast<size_t>(id)];
    if (module.ignored) return false;
    fingerprint_->Add(kModuleRecord | static_cast<uint32_t>(depth));
    fingerprint_->AddString(module.name);
    return true;
  }

  void Visit(int32_t index) {
    const Model::Reference& reference =
        model_.references()[static_cast<size_t>(index)];
    const auto param = static_cast<size_t>(reference.param);
    const Model::Param& info = model_.params()[param];
    if (info.ignored) return;
    fingerprint_->AddString(reference.name);
    if (inventory_.buffer_of[param] >= 0) {
      fingerprint_->Add(kAliasRecord);
      fingerprint_->Add(PositionOf(reference.param));
      return;
    }
    const int32_t buffer = BufferOf(info);
    inventory_.buffer_of[param] = buffer;
    inventory_.walk.push_back(reference.param);
    BufferInventory& owner = inventory_.buffers[static_cast<size_t>(buffer)];
    owner.params.push_back(reference.param);
    owner.numels.push_back(info.numel);
    fingerprint_->Add(static_cast<uint32_t>(info.dtype) |
                      uint32_t{info.trainable} << 8 |
                      static_cast<uint32_t>(info.shape.size()) << 16);
    fingerprint_->Add(info.group);
    fingerprint_->AddBytes(info.shape.data(),
                           info.shape.size() * sizeof(info.shape[0]));
  }

  Inventory Take() { return std::move(inventory_); }

 private:
  int32_t BufferOf(const Model::Param& info) {
    const GroupId group = info.trainable ? info.group : kDefaultGroup;
    ByDType& row =
        info.trainable ? trainable_[static_cast<size_t>(group)] : frozen_;
    int32_t& buffer = row[static_cast<size_t>(info.dtype)];
    if (buffer < 0) {
      buffer = static_cast<int32_t>(inventory_.buffers.size());
      inventory_.buffers.push_back({info.dtype, info.trainable, group, {}, {}});
      // Untouched memory costs nothing; growing would copy. With many groups
      // the addresses alone would be too many.
      if (model_.groups().size() == 1) {
        inventory_.buffers.back().params.reserve(model_.params().size());
        inventory_.buffers.back().numels.reserve(model_.params().size());
      }
    }
    return buffer;
  }

  // Where a parameter stands in the walk: ids depend on the order of adding,
  // which two ranks need not share. Only models with ties pay for the table.
  int32_t PositionOf(ParamId param) {
    if (positions_.empty()) positions_.assign(model_.params().size(), -1);
    for (; positioned_ < inventory_.walk.size(); ++positioned_) {
      positions_[static_cast<size_t>(inventory_.walk[positioned_])] =
          static_cast<int32_t>(positioned_);
    }
    return positions_[static_cast<size_t>(param)];
  }

  const Model& model_;
  Fingerprint* fingerprint_;
  Inventory inventory_;
  using ByDType = std::array<int32_t, 5>;
  // Indices into Inventory::buffers, or -1.
  ByDType frozen_;
  std::vector<ByDType> trainable_;  // By group.
  std::vector<int32_t> positions_;
  size_t positioned_ = 0;  // How much of the walk is in positions_.
};

}  // namespace

Inventory TakeInventory(const Model& model, Fingerprint* fingerprint) {
  InventoryTaker taker(model, fingerprint);
  WalkModel(
      model,
      [&taker](ModuleId id, int depth) { return taker.Enter(id, depth); },
      [&taker](int32_t reference) { taker.Visit(reference); });
  return taker.Take();
}

}  // namespace shard
