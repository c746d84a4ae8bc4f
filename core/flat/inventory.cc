// SPDX-License-Identifier: Apache-2.0

#include "core/flat/inventory.h"

#include <algorithm>
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
    inventory_.numels_by_buffer.reserve(count);
    inventory_.positions.assign(count, -1);
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
    fingerprint_->AddAll(kModuleRecord | static_cast<uint32_t>(depth),
                         static_cast<uint32_t>(module.name.size()),
                         std::string_view(module.name));
    // The root is never closed.
    while (depth > 0 && open_units_.back().depth >= depth) {
      open_units_.pop_back();
    }
    if (next_wrapped_ < wrapped_.size() && wrapped_[next_wrapped_] == id) {
      ++next_wrapped_;
      OpenUnit(id, depth);
      wrapped_positions_.push_back(entered_);
    }
    ++entered_;
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
    // Tied parameters and units are named by position in the walk, because each
    // rank has ids of its own.
    int32_t& position = inventory_.positions[param];
    if (position >= 0) {
      fingerprint_->AddAll(name_size, name, kAliasRecord, position);
      return;
    }
    position = static_cast<int32_t>(inventory_.walk.size());
    inventory_.walk.push_back(reference.param);
    inventory_.numels_by_buffer.push_back(info.numel);
    const int32_t buffer = BufferOf(info);
    if (runs_.empty() || runs_.back().buffer != buffer) {
      runs_.push_back({buffer, 0});
    }
    ++runs_.back().count;
    const uint32_t facts = static_cast<uint32_t>(info.dtype) |
                           uint32_t{info.trainable} << 8 |
                           static_cast<uint32_t>(info.shape.size()) << 16;
    const std::string_view shape(
        reinterpret_cast<const char*>(info.shape.data()),
        info.shape.size() * sizeof(info.shape[0]));
    fingerprint_->AddAll(name_size, name, facts, info.group, shape);
  }

  Inventory Take() {
    fingerprint_->Add(static_cast<uint32_t>(wrapped_positions_.size()));
    for (const int32_t position : wrapped_positions_) {
      fingerprint_->Add(position);
    }
    SortByBuffer();
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

  // A buffer that takes further parameters.
  struct OpenBuffer {
    int32_t buffer = -1;  // Index into Inventory::buffers.
    int32_t unit = -1;
    // Bytes of gradients or frozen parameters, without padding.
    int64_t bytes = 0;
  };

  // Returns the buffer that takes a parameter such as `info` in the current
  // unit.
  int32_t BufferOf(const Model::Param& info) {
    const int32_t kind = KindOf(info);
    OpenBuffer& open = last_[static_cast<size_t>(kind)];
    const int32_t unit = open_units_.back().unit;
    // The last buffer may belong to another unit: one inside this, which is
    // closed, or one around this, to which the walk returns.
    if (open.unit != unit) {
      if (open.unit >= 0 && IsOpen(open.unit)) outer_[{open.unit, kind}] = open;
      const auto outer = outer_.find({unit, kind});
      open = outer == outer_.end() ? OpenBuffer() : outer->second;
    }
    if (open.buffer >= 0 && Fits(info.numel, kind, &open)) return open.buffer;
    open = {static_cast<int32_t>(inventory_.buffers.size()), unit};
    Fits(info.numel, kind, &open);
    inventory_.buffers.push_back({unit, kind});
    return open.buffer;
  }

  int32_t KindOf(const Model::Param& info) {
    const GroupId group = info.trainable ? info.group : kDefaultGroup;
    ByDType& row =
        info.trainable ? trainable_[static_cast<size_t>(group)] : frozen_;
    int32_t& kind = row[static_cast<size_t>(info.dtype)];
    if (kind >= 0) return kind;
    kind = static_cast<int32_t>(inventory_.kinds.size());
    const DType grad_dtype = options_.f32_grads && info.dtype != DType::kF64
                                 ? DType::kF32
                                 : info.dtype;
    inventory_.kinds.push_back({info.dtype, info.trainable, group, grad_dtype,
                                IsOwnedWhole(options_, info.trainable, group)});
    element_bytes_.push_back(static_cast<int64_t>(
        DTypeSize(info.trainable ? grad_dtype : info.dtype)));
    last_.emplace_back();
    return kind;
  }

  bool IsOpen(int32_t unit) const {
    const auto depth =
        static_cast<size_t>(inventory_.units[static_cast<size_t>(unit)].depth);
    return depth < open_units_.size() && open_units_[depth].unit == unit;
  }

  // Counts the bytes of `numel` elements, unless they would make the buffer
  // longer than allowed.
  bool Fits(int64_t numel, int32_t kind, OpenBuffer* open) const {
    const auto k = static_cast<size_t>(kind);
    if (inventory_.kinds[k].owned_whole) return true;
    int64_t bytes = 0;
    // A parameter beyond int64 is alone in its buffer.
    if (__builtin_mul_overflow(numel, element_bytes_[k], &bytes)) {
      bytes = std::numeric_limits<int64_t>::max();
    }
    const bool fits = bytes <= options_.buffer_bytes - open->bytes;
    // A parameter without elements fits anywhere.
    if (!fits && open->bytes > 0 && bytes > 0) return false;
    open->bytes += bytes;  // No overflow: they fit, or one of the two is 0.
    return true;
  }

  // Groups the parameters by buffer.
  void SortByBuffer() {
    std::vector<BufferInventory>& buffers = inventory_.buffers;
    for (const Run& run : runs_) {
      buffers[static_cast<size_t>(run.buffer)].count += run.count;
    }
    uint32_t next = 0;
    for (BufferInventory& buffer : buffers) {
      buffer.first = next;
      next += buffer.count;
    }
    if (runs_.size() == buffers.size()) return;  // The walk is sorted.
    std::vector<uint32_t> cursors;
    cursors.reserve(buffers.size());
    for (const BufferInventory& buffer : buffers) {
      cursors.push_back(buffer.first);
    }
    const std::vector<int64_t> numels = std::move(inventory_.numels_by_buffer);
    inventory_.numels_by_buffer.resize(numels.size());
    inventory_.params_by_buffer.resize(numels.size());
    size_t from = 0;
    for (const Run& run : runs_) {
      uint32_t& to = cursors[static_cast<size_t>(run.buffer)];
      std::copy_n(&inventory_.walk[from], run.count,
                  &inventory_.params_by_buffer[to]);
      std::copy_n(&numels[from], run.count, &inventory_.numels_by_buffer[to]);
      from += run.count;
      to += run.count;
    }
  }

  // A unit and a kind.
  struct OpenKey {
    int32_t unit;
    int32_t kind;
    friend auto operator<=>(const OpenKey&, const OpenKey&) = default;
  };

  // Parameters of one buffer that are adjacent in the walk.
  struct Run {
    int32_t buffer;
    uint32_t count;
  };

  const Model& model_;
  const PlanOptions& options_;
  const std::vector<ModuleId>& wrapped_;
  Fingerprint* fingerprint_;
  Inventory inventory_;

  std::vector<OpenedUnit> open_units_;  // From the root on.
  size_t next_wrapped_ = 0;
  int32_t entered_ = 0;  // The number of modules that the walk has entered.
  std::vector<int32_t> wrapped_positions_;

  using ByDType = std::array<int32_t, 5>;
  // The kinds of buffers, as indices into Inventory::kinds, or -1.
  ByDType frozen_;
  std::vector<ByDType> trainable_;      // By group.
  std::vector<int64_t> element_bytes_;  // By kind: the bytes that Fits counts.
  std::vector<OpenBuffer> last_;        // By kind: the buffer used last.
  // The buffers of open units that were used before those.
  std::map<OpenKey, OpenBuffer> outer_;
  std::vector<Run> runs_;  // The whole walk.
};

}  // namespace

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
