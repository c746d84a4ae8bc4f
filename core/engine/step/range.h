// SPDX-License-Identifier: Apache-2.0
//
// Range: this rank's part of one trainable flat buffer, as the kernels see it:
// where its gradients are, and what is updated from them.
//
// Made once, when the engine is, so that memory cannot run out between the
// collectives of a step. The plan and the buffers outlive it.

#ifndef SHARD_CORE_ENGINE_STEP_RANGE_H_
#define SHARD_CORE_ENGINE_STEP_RANGE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/dtype.h"
#include "core/device/device.h"
#include "core/engine/memory/buffers.h"
#include "core/flat/plan.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cpu/norm.h"

namespace shard {

// A whole or part of a parameter in the range.
struct RangeSlice {
  size_t begin;         // First element, from the range's begin.
  size_t count;         // > 0
  int64_t param_begin;  // The same element, from the parameter's first.
  uint32_t position;    // The parameter's number: Plan::positions().
  const std::vector<int64_t>* shape;
  // By state of the optimizer: where the parameter's part of it lies, in
  // elements from the range's begin.
  std::vector<size_t> state_begins;
};

class Range {
 public:
  // REQUIRES: a trainable buffer.
  Range(const Plan& plan, const EngineBuffer& buffer, int rank);

  size_t count() const { return count_; }
  GroupId group() const { return plan_->group; }
  const FlatBufferPlan& plan() const { return *plan_; }
  // By ascending begin; those of optimizers of whole parameters by shape, so
  // that equal ones stand together.
  const std::vector<RangeSlice>& slices() const { return slices_; }

  // The gradients of this rank's range: those of all ranks, where memory is
  // shared and they are kept whole; or their sum, where that was made before;
  // or, `reduced` and with keeps_sum(), the sum that AddNorm left.
  GradientSources gradients(bool reduced) const;
  // Whether AddNorm leaves the sum where this rank's own gradients were: only
  // fp32 holds it without rounding.
  bool keeps_sum() const { return source_dtype_ == DType::kF32; }
  // Instead of the sum, this range of the gradients on some ranks, in rank
  // order, until ReadSum. REQUIRES: a range of fp32 sums.
  void ReadFrom(const std::vector<const void*>& sources) {
    sources_ = sources;
    source_dtype_ = plan_->grad_dtype;
  }
  void ReadSum() {
    sources_ = {own_grads_};
    source_dtype_ = plan_->sum_dtype;
  }

  // From the range's begin. Null where there is none.
  void* param(size_t begin) const;
  float* master(size_t begin) const;
  void* state(size_t s, size_t begin) const;
  // The scale of the block of 256 that begins at `begin`. REQUIRES: kQ8.
  float* scale(size_t s, size_t begin) const;
  // Of the optimizer, masters left out.
  size_t num_states() const { return num_states_; }

  // Adds the elements of the summed gradients to `sum`. The first time over the
  // ranks' gradients, and with keeps_sum() the sums are kept; `reduced` then
  // reads those. Returns the bytes it moves. `sum` as in
  // Stream::AddToNorm.
  uint64_t AddNorm(NormType type, double p, double reference, bool reduced,
                   Stream* stream, NormSum* sum) const;

 private:
  const FlatBufferPlan* plan_;
  size_t count_;
  size_t num_states_;
  DType source_dtype_;
  std::vector<const void*> sources_;  // In rank order.
  void* own_grads_;
  unsigned char* param_;
  float* master_ = nullptr;
  std::vector<unsigned char*> states_;
  std::vector<size_t> state_counts_;  // Elements of this rank's part.
  std::vector<RangeSlice> slices_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_RANGE_H_
