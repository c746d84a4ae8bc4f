// SPDX-License-Identifier: Apache-2.0

#include "core/flat/inventory.h"

#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "core/flat/owners.h"
#include "core/flat/plan_checks.h"
#include "core/model/walk.h"

namespace shard {

namespace {

// The first word of a record in the fingerprint. A name is shorter than 2^31,
// so no length equals one of these.
constexpr uint32_t kModuleRecord = uint32_t{1} << 31;  // | depth
constexpr uint32_t kAliasRecord = uint32_t{1} << 30;

class InventoryTaker {
 public:
  InventoryTaker(const Model& model, const PlanOptions& options,
                 const std::vector<ModuleId>& wrapped, Fingerprint* fingerprint)
      : model_(model),
        options_(options),
        wrapped_(wrapped),
        fingerprint_(fingerprint) {
    const size_t count = model.params().size();
    inventory_.walk.reserve(count);
    inventory_.numels.reserve(count);
    inventory_.buffer_of.assign(count, -1);
    inventory_.units.reserve(1 + wrapped.size());
    frozen_.fill(-1);
    trainable_.resize(model.groups().size());
    for (auto& row : trainable_) row.fill(-1);
    OpenUnit(kRootModule, 0);
  }

  bool Enter(ModuleId id, int depth) {
    const Model::Module& module = model_.modules()[static_cast<size_t>(id)];
    if (module.ignored) return false;
    if (KeysMayCollide(module.name)) inventory_.keys_may_collide = true;
    fingerprint_->Add(kModuleRecord | static_cast<uint32_t>(depth));
    fingerprint_->AddString(module.name);
    // The root is never closed.
    while (depth > 0 && open_units_.back().depth >= depth) {
      open_units_.pop_back();
    }
    if (next_wrapped_ < wrapped_.size() && wrapped_[next_wrapped_] == id) {
      ++next_wrapped_;
      OpenUnit(id, depth);
      wrapped_positions_.push_back(position_);
    }
    ++position_;
    return true;
  }

  void Visit(int32_t index) {
    const Model::Reference& reference =
        model_.references()[static_cast<size_t>(index)];
    const auto param = static_cast<size_t>(reference.param);
    const Model::Param& info = model_.params()[param];
    if (info.ignored) return;
    PrefetchShapeAfter(static_cast<size_t>(index));
    const auto name_size = static_cast<uint32_t>(reference.name.size());
    const std::string_view name = reference.name;
    if (inventory_.buffer_of[param] >= 0) {
      fingerprint_->AddAll(name_size, name, kAliasRecord,
                           PositionOf(reference.param));
      return;
    }
    const int32_t buffer = BufferOf(info);
    inventory_.buffer_of[param] = buffer;
    inventory_.walk.push_back(reference.param);
    inventory_.numels.push_back(info.numel);
    ++At(buffer).count;
    const uint32_t kind = static_cast<uint32_t>(info.dtype) |
                          uint32_t{info.trainable} << 8 |
                          static_cast<uint32_t>(info.shape.size()) << 16;
    const std::string_view shape(
        reinterpret_cast<const char*>(info.shape.data()),
        info.shape.size() * sizeof(info.shape[0]));
    fingerprint_->AddAll(name_size, name, kind, info.group, shape);
  }

  Inventory Take() {
    // Named by position in the walk, because each rank has ids of its own.
    fingerprint_->Add(static_cast<uint32_t>(wrapped_positions_.size()));
    for (const int32_t position : wrapped_positions_) {
      fingerprint_->Add(position);
    }
    inventory_.SortByBuffer();
    return std::move(inventory_);
  }

 private:
  // Prefetches a shape: shapes are the only data here that may be anywhere in
  // memory. Names are mostly in the order of the walk, so the next shapes are
  // known early.
  void PrefetchShapeAfter(size_t index) const {
    constexpr size_t kAhead = 8;
    const auto& references = model_.references();
    if (index + kAhead >= references.size()) return;
    const ParamId param = references[index + kAhead].param;
    __builtin_prefetch(
        model_.params()[static_cast<size_t>(param)].shape.data());
  }

  // A unit in which the walk is.
  struct OpenedUnit {
    int32_t unit;
    int depth;  // The depth of its module.
  };

  void OpenUnit(ModuleId module, int depth) {
    const auto unit = static_cast<int32_t>(inventory_.units.size());
    const int32_t parent = open_units_.empty() ? -1 : open_units_.back().unit;
    inventory_.units.push_back(
        {module, parent, static_cast<int32_t>(open_units_.size())});
    open_units_.push_back({unit, depth});
  }

  // Returns the buffer that takes a parameter such as `info` in the current
  // unit.
  int32_t BufferOf(const Model::Param& info) {
    const int32_t unit = open_units_.back().unit;
    const GroupId group = info.trainable ? info.group : kDefaultGroup;
    ByDType& row =
        info.trainable ? trainable_[static_cast<size_t>(group)] : frozen_;
    int32_t& buffer = row[static_cast<size_t>(info.dtype)];
    // The last buffer may belong to another unit: one inside this, which is
    // closed, or one around this, to which the walk returns.
    if (buffer >= 0 && At(buffer).unit != unit) {
      if (IsOpen(At(buffer).unit)) open_[{At(buffer).unit, &buffer}] = buffer;
      const auto open = open_.find({unit, &buffer});
      buffer = open == open_.end() ? -1 : open->second;
    }
    if (buffer >= 0 && Fits(info, &At(buffer))) return buffer;
    buffer = static_cast<int32_t>(inventory_.buffers.size());
    const DType grad_dtype = options_.f32_grads && info.dtype != DType::kF64
                                 ? DType::kF32
                                 : info.dtype;
    inventory_.buffers.push_back(
        {unit, info.dtype, info.trainable, group, grad_dtype,
         IsOwnedWhole(options_, info.trainable, group)});
    Fits(info, &inventory_.buffers.back());
    return buffer;
  }

  bool IsOpen(int32_t unit) const {
    const auto depth =
        static_cast<size_t>(inventory_.units[static_cast<size_t>(unit)].depth);
    return depth < open_units_.size() && open_units_[depth].unit == unit;
  }

  // Counts the parameter's bytes, unless they would make the buffer longer than
  // allowed.
  bool Fits(const Model::Param& info, BufferInventory* buffer) const {
    if (buffer->owned_whole) return true;
    const DType dtype = buffer->trainable ? buffer->grad_dtype : buffer->dtype;
    int64_t bytes = 0;
    // A sum beyond int64 is too long for any buffer, and a parameter beyond
    // int64 is alone in its buffer.
    if (__builtin_mul_overflow(
            info.numel, static_cast<int64_t>(DTypeSize(dtype)), &bytes)) {
      bytes = std::numeric_limits<int64_t>::max();
    }
    int64_t sum = 0;
    const bool overflow = __builtin_add_overflow(buffer->bytes, bytes, &sum);
    const bool fits = !overflow && sum <= options_.buffer_bytes;
    // A parameter without elements fits anywhere.
    if (!fits && buffer->bytes > 0 && bytes > 0) return false;
    buffer->bytes = sum;
    return true;
  }

  BufferInventory& At(int32_t buffer) {
    return inventory_.buffers[static_cast<size_t>(buffer)];
  }

  // Returns a parameter's position in the walk. Ids are of no use here, because
  // they depend on the order of adding, which may differ between ranks. Only
  // models with ties pay for the table.
  int32_t PositionOf(ParamId param) {
    if (positions_.empty()) positions_.assign(model_.params().size(), -1);
    for (; positioned_ < inventory_.walk.size(); ++positioned_) {
      positions_[static_cast<size_t>(inventory_.walk[positioned_])] =
          static_cast<int32_t>(positioned_);
    }
    return positions_[static_cast<size_t>(param)];
  }

  // A unit and an entry of frozen_ or trainable_.
  struct OpenKey {
    int32_t unit;
    const int32_t* entry;
    friend auto operator<=>(const OpenKey&, const OpenKey&) = default;
  };

  const Model& model_;
  const PlanOptions& options_;
  const std::vector<ModuleId>& wrapped_;
  Fingerprint* fingerprint_;
  Inventory inventory_;

  std::vector<OpenedUnit> open_units_;  // From the root on.
  size_t next_wrapped_ = 0;
  int32_t position_ = 0;  // The position of the current module in the walk.
  std::vector<int32_t> wrapped_positions_;

  using ByDType = std::array<int32_t, 5>;
  // The buffers used last, as indices into Inventory::buffers, or -1.
  ByDType frozen_;
  std::vector<ByDType> trainable_;  // By group.
  // The buffers of open units that were used before those.
  std::map<OpenKey, int32_t> open_;

  std::vector<int32_t> positions_;
  size_t positioned_ = 0;  // The length of the walk that is in positions_.
};

}  // namespace

void Inventory::SortByBuffer() {
  size_t next = 0;
  for (BufferInventory& buffer : buffers) {
    buffer.first = next;
    next += buffer.count;
  }
  const auto buffer_at = [this](size_t i) {
    return buffer_of[static_cast<size_t>(walk[i])];
  };
  bool sorted = buffers.size() < 2;
  if (!sorted) {
    size_t i = 1;
    while (i < walk.size() && buffer_at(i - 1) <= buffer_at(i)) ++i;
    sorted = i >= walk.size();
  }
  if (sorted) return;
  std::vector<size_t> cursors;
  cursors.reserve(buffers.size());
  for (const BufferInventory& buffer : buffers) cursors.push_back(buffer.first);
  params_by_buffer_.resize(walk.size());
  numels_by_buffer_.resize(walk.size());
  for (size_t i = 0; i < walk.size(); ++i) {
    const size_t at = cursors[static_cast<size_t>(buffer_at(i))]++;
    params_by_buffer_[at] = walk[i];
    numels_by_buffer_[at] = numels[i];
  }
}

Inventory TakeInventory(const Model& model, const PlanOptions& options,
                        const std::vector<ModuleId>& wrapped,
                        Fingerprint* fingerprint) {
  InventoryTaker taker(model, options, wrapped, fingerprint);
  WalkModel(
      model,
      [&taker](ModuleId id, int depth) { return taker.Enter(id, depth); },
      [&taker](int32_t reference) { taker.Visit(reference); });
  return taker.Take();
}

}  // namespace shard
