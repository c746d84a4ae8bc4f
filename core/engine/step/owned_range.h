// SPDX-License-Identifier: Apache-2.0
//
// OwnedRange: this rank's part of one trainable flat buffer, as the kernels see
// it: the gradients, and the parameters and states that are updated from them.
//
// A range is made once, with the engine, so that memory cannot run out between
// the collectives of a step. The plan and the buffers must outlive it.

#ifndef SHARD_CORE_ENGINE_STEP_OWNED_RANGE_H_
#define SHARD_CORE_ENGINE_STEP_OWNED_RANGE_H_

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

// A parameter, or the part of one, that lies in the range.
struct RangeSlice {
  size_t begin;         // First element, from the range's begin.
  size_t count;         // > 0
  int64_t param_begin;  // The same element, from the parameter's first.
  uint32_t position;    // Its ParamPlace::position.
  const std::vector<int64_t>* shape;
  // Where the parameter's part of each optimizer state begins, in elements from
  // the range's begin.
  std::vector<size_t> state_begins;
};

class OwnedRange {
 public:
  // REQUIRES: a trainable buffer.
  OwnedRange(const Plan& plan, const EngineBuffer& buffer, int rank);

  size_t count() const { return count_; }
  GroupId group() const { return plan_->group; }
  const FlatBufferPlan& plan() const { return *plan_; }
  // Returns the slices by ascending begin. Slices of optimizers of whole
  // parameters are ordered by shape, so that equal shapes are adjacent.
  const std::vector<RangeSlice>& slices() const { return slices_; }

  // Returns the gradients of this rank's range: those of all ranks, where
  // memory is shared and gradients are kept whole; or their sum, where it was
  // reduced before; or, with `reduced` and keeps_sum(), the sum that AddNorm
  // left.
  GradientSources gradients(bool reduced) const;
  // Returns whether AddNorm leaves the sum in place of this rank's own
  // gradients: only fp32 holds it without rounding.
  bool keeps_sum() const { return source_dtype_ == DType::kF32; }
  // Makes gradients() return this range on some ranks, in rank order, instead
  // of the sum, until ReadSum. REQUIRES: a range of fp32 sums.
  void ReadFrom(const std::vector<const void*>& sources) {
    sources_ = sources;
    source_dtype_ = plan_->grad_dtype;
  }
  void ReadSum() {
    sources_ = {own_grads_};
    source_dtype_ = plan_->sum_dtype;
  }

  // Return the address of an element, counted from the range's begin. Null
  // where the range has no such tensor.
  void* param(size_t begin) const;
  float* master(size_t begin) const;
  void* state(size_t s, size_t begin) const;
  // Returns the scale of the block of 256 elements that begins at `begin`.
  // REQUIRES: kQ8.
  float* scale(size_t s, size_t begin) const;
  // Returns the number of optimizer states, masters left out.
  size_t num_states() const { return num_states_; }

  // Adds the elements of the summed gradients to `sum`, which is as in
  // Stream::AddToNorm. The first call reads the ranks' gradients and, with
  // keeps_sum(), stores their sums; calls with `reduced` read the stored sums.
  // Returns the bytes that are moved.
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

#endif  // SHARD_CORE_ENGINE_STEP_OWNED_RANGE_H_
