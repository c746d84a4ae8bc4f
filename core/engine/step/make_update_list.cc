// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/make_update_list.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/optim/optimizer.h"
#include "core/optim/workspace.h"
#include "kernels/formula/muon.h"

namespace shard {

namespace {

using Shape = std::vector<int64_t>;

class ListBuilder {
 public:
  ListBuilder(const Plan& plan, Processor stepper, int rank, UpdateList* list)
      : plan_(plan),
        stepper_(stepper),
        rank_(rank),
        range_(plan.RangeOf(rank)),
        list_(*list) {}

  void Add(const EngineBuffer& buffer, const Optimizer& optimizer) {
    const FlatBufferPlan& planned = *buffer.plan;
    const FlatLayout& layout = planned.layout;
    UpdateRange& added = list_.ranges.emplace_back();
    added.formula = optimizer.formula();
    if (added.formula == Formula::kMuon) {
      added.matmul_precision =
          static_cast<int>(optimizer.hypers()[Muon::kMatmulPrecision]);
    }
    added.group = planned.group;
    added.count = static_cast<size_t>(layout.shard_numel());
    added.param_dtype = planned.dtype;
    added.param = buffer.ParamAt(range_ * layout.shard_numel());
    added.stochastic_rounding =
        planned.dtype == DType::kBF16 &&
        plan_.options().masters == Masters::kNoneStochastic;
    AddSources(buffer, &added);
    PlaceStates(buffer, &added);
    AddSlices(planned, &added);
  }

 private:
  void AddSources(const EngineBuffer& buffer, UpdateRange* range) {
    const FlatBufferPlan& planned = *buffer.plan;
    range->first_source = list_.sources.size();
    if (buffer.sum != nullptr) {
      range->own_grads = buffer.sum;
      range->source_dtype = planned.sum_dtype;
      list_.sources.push_back(buffer.sum);
    } else {
      const int64_t begin = range_ * planned.layout.shard_numel();
      range->own_grads = buffer.GradAt(rank_, begin);
      range->source_dtype = planned.grad_dtype;
      for (size_t r = 0; r < buffer.grads.size(); ++r) {
        if (buffer.grads[r] == nullptr) continue;
        list_.sources.push_back(buffer.GradAt(static_cast<int>(r), begin));
      }
    }
    range->num_sources = list_.sources.size() - range->first_source;
    range->keeps_sum = range->source_dtype == DType::kF32;
  }

  static void PlaceStates(const EngineBuffer& buffer, UpdateRange* range) {
    const FlatBufferPlan& planned = *buffer.plan;
    range->num_states = planned.states.size() - planned.has_masters;
    range->state_dtype =
        range->num_states == 0 ? DType::kF32 : planned.states[0].tensor.dtype;
    for (size_t s = 0; s < range->num_states; ++s) {
      range->states[s] = buffer.states[s];
      if (!IsQuantized(range->state_dtype)) continue;
      range->scales[s] = reinterpret_cast<float*>(
          buffer.states[s] + planned.StateLayout(s).shard_numel());
    }
    if (planned.has_masters) {
      range->master =
          reinterpret_cast<float*>(buffer.states[range->num_states]);
    }
  }

  const Shape& ShapeAt(const SlotSlice& slice) const {
    return plan_.model().params()[static_cast<size_t>(slice.param)].shape;
  }

  void AddSlices(const FlatBufferPlan& planned, UpdateRange* range) {
    range->is_tensor =
        plan_.options().groups[static_cast<size_t>(range->group)].tensor !=
        nullptr;
    std::vector<SlotSlice> slices = planned.layout.SlicesOf(range_);
    if (range->is_tensor) {
      std::stable_sort(slices.begin(), slices.end(),
                       [this](const SlotSlice& a, const SlotSlice& b) {
                         return ShapeAt(a) < ShapeAt(b);
                       });
    }
    range->first_slice = list_.slices.size();
    range->num_slices = slices.size();
    range->first_tensor = list_.tensors.size();
    const int64_t begin = range_ * planned.layout.shard_numel();
    for (const SlotSlice& slice : slices) {
      UpdateSlice& added = list_.slices.emplace_back();
      added.begin = static_cast<size_t>(slice.flat_begin - begin);
      added.count = static_cast<size_t>(slice.numel);
      added.param_begin = slice.param_begin;
      added.position = static_cast<uint32_t>(plan_.place(slice.param).position);
      if (range->is_tensor) AddTensor(planned, *range, slice, added.begin);
    }
    if (range->formula == Formula::kMuon) SetBatches(*range);
  }

  void AddTensor(const FlatBufferPlan& planned, const UpdateRange& range,
                 const SlotSlice& slice, size_t begin) {
    const Shape& shape = ShapeAt(slice);
    const auto ndim = static_cast<int>(shape.size());
    TensorSlice& added = list_.tensors.emplace_back();
    added.shape = list_.sizes.size();
    added.ndim = ndim;
    list_.sizes.insert(list_.sizes.end(), shape.begin(), shape.end());
    added.batch = 1;
    added.stride = static_cast<size_t>(AlignWorkspace(slice.numel));
    added.copy =
        static_cast<size_t>(WorkspaceNumel(range.formula, shape.data(), ndim));
    // Layouts of states list the parameters in the same order.
    const size_t slot = planned.layout.SlotAt(slice.flat_begin);
    for (size_t s = 0; s < range.num_states; ++s) {
      const FlatLayout* own = planned.states[s].own_layout.get();
      added.state_begins[s] =
          own == nullptr ? begin
                         : static_cast<size_t>(own->slots()[slot].offset -
                                               range_ * own->shard_numel());
    }
  }

  // Sets how many matrices of a range are stepped together.
  void SetBatches(const UpdateRange& range) {
    const auto end = list_.tensors.end();
    for (auto first = list_.tensors.end() -
                      static_cast<std::ptrdiff_t>(range.num_slices);
         first != end;) {
      const std::span<const int64_t> shape = list_.ShapeOf(*first);
      const auto next = std::find_if(first, end, [&](const TensorSlice& other) {
        return !std::ranges::equal(list_.ShapeOf(other), shape);
      });
      const int64_t batch = stepper_ == Processor::kGpu
                                ? GpuMuonBatch(shape[0], shape[1], next - first)
                                : MuonBatch(shape[0], shape[1]);
      for (; first != next; ++first) first->batch = static_cast<size_t>(batch);
    }
  }

  const Plan& plan_;
  const Processor stepper_;
  const int rank_;
  const int range_;
  UpdateList& list_;
};

}  // namespace

StatusOr<UpdateList> MakeUpdateList(const Plan& plan,
                                    const EngineMemory& memory, int rank,
                                    float* workspace) {
  std::vector<Optimizer> optimizers;
  for (const GroupOptions& group : plan.options().groups) {
    SHARD_ASSIGN_OR_RETURN(Optimizer optimizer,
                           Optimizer::Parse(group.optimizer));
    optimizers.push_back(std::move(optimizer));
  }
  UpdateList list;
  list.workspace = workspace;
  list.staging = memory.staging();
  list.staging_layout = memory.staging_layout();
  ListBuilder builder(plan, memory.stepper(), rank, &list);
  for (const EngineBuffer& buffer : memory.buffers()) {
    if (!buffer.plan->trainable) continue;
    builder.Add(buffer, optimizers[static_cast<size_t>(buffer.plan->group)]);
  }
  return list;
}

}  // namespace shard
