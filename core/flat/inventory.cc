// SPDX-License-Identifier: Apache-2.0

#include "core/flat/inventory.h"

#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "core/base/element_type.h"
#include "core/flat/owners.h"
#include "core/flat/plan_checks.h"
#include "core/model/walk.h"

namespace shard {

namespace {

// The facts of the records in the fingerprint that are of no parameter. Groups
// are below 2^31, so the facts of a parameter differ from these.
constexpr uint64_t kModuleRecord = uint64_t{2} << 62;  // | depth
constexpr uint64_t kAliasRecord = uint64_t{3} << 62;   // | position

class InventoryTaker {
 public:
  InventoryTaker(const Model& model, const PlanOptions& options,
                 const std::vector<ModuleId>& wrapped, Fingerprint* fingerprint)
      : model_(model),
        options_(options),
        wrapped_(wrapped),
        fingerprint_(fingerprint) {
    inventory_.slots.reserve(model.params().size());
    inventory_.places.reserve(model.params().size());
    // Room for as many as there may be: what is not used is never touched.
    inventory_.buffers.reserve(model.params().size());
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
    records_.Add(kModuleRecord | static_cast<uint32_t>(depth), module.name_hash,
                 0);
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
    // Tied parameters and units are named by position in the walk, because each
    // rank has ids of its own.
    ParamPlace& place = PlaceOf(param);
    if (place.position >= 0) {
      records_.Add(kAliasRecord | static_cast<uint32_t>(place.position),
                   reference.name_hash, 0);
      return;
    }
    place.position = static_cast<int32_t>(inventory_.slots.size());
    place.buffer = BufferOf(info);
    std::vector<BufferInventory>& buffers = inventory_.buffers;
    BufferInventory& buffer = buffers[static_cast<size_t>(place.buffer)];
    Slot slot = {reference.param, 0, info.numel};
    AppendSlot(inventory_.KindOf(buffer).alignment.slot, &buffer.end, &slot);
    inventory_.slots.push_back(slot);
    place.offset = slot.offset;
    ++buffer.count;
    is_sorted_ = is_sorted_ && &buffer == &buffers.back();
    const uint64_t facts = info.shape.size() | uint64_t{info.trainable} << 8 |
                           static_cast<uint64_t>(info.dtype) << 16 |
                           static_cast<uint64_t>(info.group) << 32;
    records_.Add(facts, reference.name_hash, info.shape_hash);
  }

  Inventory Take() {
    inventory_.places.resize(model_.params().size());
    fingerprint_->Add(records_.value());
    fingerprint_->Add(static_cast<uint32_t>(wrapped_positions_.size()));
    for (const int32_t position : wrapped_positions_) {
      fingerprint_->Add(position);
    }
    SortByBuffer();
    return std::move(inventory_);
  }

 private:
  // Returns the place of a parameter. Makes it where it is the first to be
  // asked for: places of a million parameters that were made before the walk
  // would have left the cache.
  ParamPlace& PlaceOf(size_t param) {
    while (inventory_.places.size() <= param) inventory_.places.emplace_back();
    return inventory_.places[param];
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

  // A kind of buffers, and the buffer of that kind that was used last.
  struct OpenKind {
    OpenBuffer last;
    // 0 where parameters are kept whole, which are in one buffer, however long.
    int64_t element_bytes;
  };

  // Returns the buffer that takes a parameter such as `info` in the current
  // unit.
  int32_t BufferOf(const Model::Param& info) {
    const int32_t kind = KindOf(info);
    OpenKind& open = open_kinds_[static_cast<size_t>(kind)];
    const int32_t unit = open_units_.back().unit;
    // The last buffer may belong to another unit: one inside this, which is
    // closed, or one around this, to which the walk returns.
    if (open.last.unit != unit) {
      if (open.last.unit >= 0 && IsOpen(open.last.unit)) {
        outer_[{open.last.unit, kind}] = open.last;
      }
      const auto outer = outer_.find({unit, kind});
      open.last = outer == outer_.end() ? OpenBuffer() : outer->second;
    }
    if (open.last.buffer >= 0 && Fits(info.numel, &open)) {
      return open.last.buffer;
    }
    open.last = {static_cast<int32_t>(inventory_.buffers.size()), unit};
    Fits(info.numel, &open);
    inventory_.buffers.push_back({unit, kind});
    ++inventory_.units[static_cast<size_t>(unit)].num_buffers;
    return open.last.buffer;
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
    const bool owned_whole = IsOwnedWhole(options_, info.trainable, group);
    inventory_.kinds.push_back({info.dtype, info.trainable, group, grad_dtype,
                                owned_whole, AlignmentOf(info)});
    const size_t element = DTypeSize(info.trainable ? grad_dtype : info.dtype);
    open_kinds_.push_back(
        {{}, owned_whole ? 0 : static_cast<int64_t>(element)});
    return kind;
  }

  FlatLayout::Alignment AlignmentOf(const Model::Param& info) const {
    FlatLayout::Alignment alignment;
    // The least number of elements whose bytes are a multiple of
    // alignment_bytes.
    alignment.shard = options_.alignment_bytes /
                      std::gcd(options_.alignment_bytes,
                               static_cast<int64_t>(DTypeSize(info.dtype)));
    if (!info.trainable) return alignment;
    for (const StateTensor& state :
         options_.groups[static_cast<size_t>(info.group)].states) {
      // Blocks that begin with their parameter hold the same elements in every
      // layout.
      if (IsQuantized(state.dtype)) {
        alignment.slot = InfoOf(state.dtype).block;
      }
    }
    return alignment;
  }

  bool IsOpen(int32_t unit) const {
    const auto depth =
        static_cast<size_t>(inventory_.units[static_cast<size_t>(unit)].depth);
    return depth < open_units_.size() && open_units_[depth].unit == unit;
  }

  // Counts the bytes of `numel` elements in the last buffer of a kind, unless
  // they would make it longer than allowed.
  bool Fits(int64_t numel, OpenKind* kind) const {
    int64_t bytes = 0;
    // A parameter beyond int64 is alone in its buffer.
    if (__builtin_mul_overflow(numel, kind->element_bytes, &bytes)) {
      bytes = std::numeric_limits<int64_t>::max();
    }
    int64_t& used = kind->last.bytes;
    const bool fits = bytes <= options_.buffer_bytes - used;
    // A parameter without elements fits anywhere.
    if (!fits && used > 0 && bytes > 0) return false;
    used += bytes;  // No overflow: they fit, or one of the two is 0.
    return true;
  }

  // Groups the parameters by buffer.
  void SortByBuffer() {
    uint32_t next = 0;
    for (BufferInventory& buffer : inventory_.buffers) {
      buffer.first = next;
      next += buffer.count;
    }
    if (is_sorted_) return;
    std::vector<uint32_t> cursors;
    cursors.reserve(inventory_.buffers.size());
    for (const BufferInventory& buffer : inventory_.buffers) {
      cursors.push_back(buffer.first);
    }
    const std::vector<Slot> walk = inventory_.slots;
    for (const Slot& slot : walk) {
      const int32_t buffer =
          inventory_.places[static_cast<size_t>(slot.param)].buffer;
      inventory_.slots[cursors[static_cast<size_t>(buffer)]++] = slot;
    }
  }

  // A unit and a kind.
  struct OpenKey {
    int32_t unit;
    int32_t kind;
    friend auto operator<=>(const OpenKey&, const OpenKey&) = default;
  };

  const Model& model_;
  const PlanOptions& options_;
  const std::vector<ModuleId>& wrapped_;
  Fingerprint* fingerprint_;
  RecordHash records_;
  Inventory inventory_;

  std::vector<OpenedUnit> open_units_;  // From the root on.
  size_t next_wrapped_ = 0;
  int32_t entered_ = 0;  // The number of modules that the walk has entered.
  std::vector<int32_t> wrapped_positions_;

  using ByDType = std::array<int32_t, 5>;
  // The kinds of buffers, as indices into Inventory::kinds, or -1.
  ByDType frozen_;
  std::vector<ByDType> trainable_;  // By group.
  std::vector<OpenKind> open_kinds_;
  // The buffers of open units that were used before those.
  std::map<OpenKey, OpenBuffer> outer_;
  // Whether every parameter so far belongs to the buffer that was last at its
  // time: then the walk goes through one buffer after the other.
  bool is_sorted_ = true;
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
