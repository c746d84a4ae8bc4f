// SPDX-License-Identifier: Apache-2.0

#include "core/state/manifest_bound.h"

#include <algorithm>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/element_type.h"
#include "core/base/strings.h"
#include "core/checkpoint/data/data_layout.h"
#include "core/checkpoint/manifest/manifest.h"
#include "core/model/model.h"
#include "core/model/names.h"

namespace shard {

namespace {

// Bytes of an object of schema/manifest.fbs beside its texts, shape and slices:
// its table with every field that an engine's tensors have, its place in a
// vector, lengths, zeros and alignment.
constexpr uint64_t kTensorBytes = 88;
constexpr uint64_t kBlobBytes = 88;
constexpr uint64_t kFileBytes = 72;
constexpr uint64_t kSliceBytes = 40;
// Bytes of a group, with the text of an optimizer, all of its numbers in their
// longest form.
constexpr uint64_t kGroupBytes = 1024;
// Bytes of the header, the root, its vectors, scalars and vtables.
constexpr uint64_t kRestBytes = 2048;

class BoundCalculator {
 public:
  explicit BoundCalculator(const Plan& plan)
      : plan_(plan),
        model_(plan.model()),
        longest_(model_.params().size()),
        slice_bytes_(SliceBytes(StateBytes())) {}

  ManifestBound Bound() {
    const auto ranks = static_cast<uint64_t>(plan_.options().world_size);
    bound_.bytes =
        kRestBytes + kFileBytes * ranks + kGroupBytes * model_.groups().size();
    AddNames();
    for (const FlatBufferPlan& buffer : plan_.buffers()) AddBuffer(buffer);
    for (const HostTensorId id : plan_.host_tensors().walk) AddHostTensor(id);
    bound_.bytes += kSliceBytes * bound_.slices;
    return bound_;
  }

 private:
  // Returns the bytes of the buffers' states and of host tensors, with padding.
  uint64_t StateBytes() const {
    uint64_t total = plan_.host_tensors().bytes;
    for (const FlatBufferPlan& buffer : plan_.buffers()) {
      total += DTypeBytes(buffer.dtype, buffer.layout.padded_numel());
      for (size_t s = 0; buffer.trainable && s < buffer.states.size(); ++s) {
        total += DTypeBytes(buffer.states[s].tensor.dtype,
                            buffer.StateLayout(s).padded_numel());
      }
    }
    return total;
  }

  // Adds a tensor or an alias for each name of a parameter. The keys of states
  // may have any of the names.
  void AddNames() {
    for (const Model::Reference& reference : model_.references()) {
      const auto param = static_cast<size_t>(reference.param);
      if (plan_.places()[param].buffer < 0) continue;
      const size_t path =
          model_.modules()[static_cast<size_t>(reference.module)].fqn_bytes;
      const uint64_t fqn = path + 1 + reference.name.size();
      longest_[param] = std::max(longest_[param], fqn);
      AddTensor(fqn, model_.params()[param].shape.size());
    }
  }

  void AddTensor(uint64_t key_bytes, size_t dims) {
    ++bound_.tensors;
    bound_.bytes += kTensorBytes + key_bytes + 8 * dims;
  }

  void AddHostTensor(HostTensorId id) {
    const Model::HostTensor& tensor =
        model_.host_tensors()[static_cast<size_t>(id)];
    if (!tensor.persistent) return;
    const size_t path =
        model_.modules()[static_cast<size_t>(tensor.module)].fqn_bytes;
    AddTensor(path + 1 + tensor.name.size(), tensor.shape.size());
    const auto bytes =
        static_cast<uint64_t>(tensor.numel) * ElementSize(tensor.type);
    if (bytes > 0) bound_.slices += 1 + bytes / slice_bytes_;
  }

  void AddBuffer(const FlatBufferPlan& buffer) {
    AddSlices(buffer.layout, buffer.dtype);
    if (!buffer.trainable) return;
    for (size_t s = 0; s < buffer.states.size(); ++s) {
      const StateTensor& state = buffer.states[s].tensor;
      const FlatLayout& layout = buffer.StateLayout(s);
      const bool has_scales = IsQuantized(state.dtype);
      const uint64_t added = kStatePrefix.size() + 1 + state.name.size();
      for (const Slot& slot : layout.slots()) {
        const auto param = static_cast<size_t>(slot.param);
        const size_t dims = model_.params()[param].shape.size();
        AddTensor(added + longest_[param], dims);
        if (!has_scales) continue;
        AddTensor(added + longest_[param] + kScaleSuffix.size(), 1);
      }
      AddSlices(layout, state.dtype);
      if (has_scales) AddSlices(layout, state.dtype);
    }
  }

  // Adds the slices, which end where ranges do, and at slice_bytes_.
  void AddSlices(const FlatLayout& layout, DType dtype) {
    const int64_t range = layout.shard_numel();
    for (const Slot& slot : layout.slots()) {
      if (slot.numel == 0) continue;
      const int64_t ranges =
          (slot.offset + slot.numel - 1) / range - slot.offset / range + 1;
      bound_.slices += static_cast<uint64_t>(ranges) +
                       DTypeBytes(dtype, slot.numel) / slice_bytes_;
    }
  }

  const Plan& plan_;
  const Model& model_;
  std::vector<uint64_t> longest_;  // By ParamId: bytes of its longest name.
  const uint64_t slice_bytes_;
  ManifestBound bound_;
};

}  // namespace

ManifestBound BoundManifest(const Plan& plan) {
  return BoundCalculator(plan).Bound();
}

Status CheckManifestFits(const Plan& plan) {
  const ManifestBound bound = BoundManifest(plan);
  constexpr uint64_t kMost = kMaxManifestBytes - kBlobManifestBytes;
  if (bound.tensors <= kMaxManifestTensors && bound.bytes <= kMost) return {};
  return ResourceExhausted(
      "no checkpoint could hold what this plan trains: ", bound.tensors,
      " tensors in ", bound.slices, " slices, which need up to ", bound.bytes,
      " bytes of its manifest; possible are ", kMaxManifestTensors,
      " tensors and ", kMost,
      " bytes. Use shorter names, fewer parameters, or fewer slices: larger "
      "buffer_bytes, partition 2 (greedy), or smaller shard groups");
}

uint64_t BlobManifestBytes(std::string_view name, int world_size) {
  return (kBlobBytes + name.size()) * static_cast<uint64_t>(world_size);
}

}  // namespace shard
