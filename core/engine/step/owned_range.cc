// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/owned_range.h"

#include <algorithm>

#include "core/base/dtype.h"

namespace shard {

OwnedRange::OwnedRange(const Plan& plan, const EngineBuffer& buffer, int rank)
    : plan_(buffer.plan),
      count_(static_cast<size_t>(buffer.plan->layout.shard_numel())),
      num_states_(buffer.plan->states.size() - buffer.plan->has_masters),
      source_dtype_(buffer.sum != nullptr ? buffer.plan->sum_dtype
                                          : buffer.plan->grad_dtype) {
  const FlatLayout& layout = plan_->layout;
  const int range = plan.RangeOf(rank);
  const int64_t begin = range * layout.shard_numel();
  if (buffer.sum != nullptr) {
    own_grads_ = buffer.sum;
    sources_ = {own_grads_};
  } else {
    own_grads_ = buffer.GradAt(rank, begin);
    for (size_t r = 0; r < buffer.grads.size(); ++r) {
      if (buffer.grads[r] == nullptr) continue;
      sources_.push_back(buffer.GradAt(static_cast<int>(r), begin));
    }
  }
  param_ = static_cast<unsigned char*>(buffer.ParamAt(begin));
  for (size_t s = 0; s < num_states_; ++s) {
    states_.push_back(buffer.states[s]);
    state_counts_.push_back(
        static_cast<size_t>(plan_->StateLayout(s).shard_numel()));
  }
  if (plan_->has_masters) {
    master_ = reinterpret_cast<float*>(buffer.states[num_states_]);
  }

  for (const SlotSlice& slice : layout.SlicesOf(range)) {
    const auto param = static_cast<size_t>(slice.param);
    RangeSlice part;
    part.begin = static_cast<size_t>(slice.flat_begin - begin);
    part.count = static_cast<size_t>(slice.numel);
    part.param_begin = slice.param_begin;
    part.position = static_cast<uint32_t>(plan.places()[param].position);
    part.shape = &plan.model().params()[param].shape;
    // Layouts of states list the parameters in the same order.
    const size_t slot = layout.SlotAt(slice.flat_begin);
    for (size_t s = 0; s < num_states_; ++s) {
      const FlatLayout* own = plan_->states[s].own_layout.get();
      part.state_begins.push_back(
          own == nullptr ? part.begin
                         : static_cast<size_t>(own->slots()[slot].offset -
                                               range * own->shard_numel()));
    }
    slices_.push_back(std::move(part));
  }
  if (plan.options().groups[static_cast<size_t>(group())].tensor == nullptr) {
    return;
  }
  std::stable_sort(slices_.begin(), slices_.end(),
                   [](const RangeSlice& a, const RangeSlice& b) {
                     return *a.shape < *b.shape;
                   });
}

GradientSources OwnedRange::gradients(bool reduced) const {
  if (reduced && keeps_sum()) return {&own_grads_, 1, source_dtype_};
  return {sources_.data(), sources_.size(), source_dtype_};
}

void* OwnedRange::param(size_t begin) const {
  return param_ + begin * DTypeSize(plan_->dtype);
}

float* OwnedRange::master(size_t begin) const {
  return master_ == nullptr ? nullptr : master_ + begin;
}

void* OwnedRange::state(size_t s, size_t begin) const {
  return states_[s] + begin * DTypeSize(plan_->states[s].tensor.dtype);
}

float* OwnedRange::scale(size_t s, size_t begin) const {
  return reinterpret_cast<float*>(states_[s] + state_counts_[s]) +
         begin / static_cast<size_t>(kQ8Block);
}

uint64_t OwnedRange::AddNorm(NormType type, double p, double reference,
                             bool reduced, Stream* stream, NormSum* sum) const {
  const GradientSources from = gradients(reduced);
  const bool stores = keeps_sum() && !reduced;
  if (keeps_sum() && from.count == 1) {
    // Needs no sum: the values are summed already.
    stream->AddToNorm(type, p, reference,
                      static_cast<const float*>(from.data[0]), count_, sum);
    return count_ * sizeof(float);
  }
  stream->AddGradientsToNorm(type, p, reference, from, 0, count_,
                             stores ? static_cast<float*>(own_grads_) : nullptr,
                             sum);
  return count_ *
         (from.count * DTypeSize(from.dtype) + (stores ? sizeof(float) : 0));
}

}  // namespace shard
