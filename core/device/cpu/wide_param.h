// SPDX-License-Identifier: Apache-2.0
//
// WideParam: a whole parameter in fp32 while an optimizer steps it: the master
// copy, the parameter itself where its dtype is fp32, or else a temporary copy.

#ifndef SHARD_CORE_DEVICE_CPU_WIDE_PARAM_H_
#define SHARD_CORE_DEVICE_CPU_WIDE_PARAM_H_

#include "core/base/dtype.h"
#include "core/device/cpu/update.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/random.h"

namespace shard::cpu {

class WideParam {
 public:
  // `copy`: room for the parameter's elements, written only where the parameter
  // has no fp32 form of its own.
  WideParam(const UpdateRange& range, const UpdateSlice& slice, float* copy)
      : range_(range),
        slice_(slice),
        param_(static_cast<unsigned char*>(range.param) +
               slice.begin * DTypeSize(range.param_dtype)) {
    if (range.master != nullptr) {
      wide_ = range.master + slice.begin;
    } else if (range.param_dtype == DType::kF32) {
      wide_ = reinterpret_cast<float*>(param_);
    } else {
      wide_ = copy;
      Widen(range.param_dtype, param_, wide_, slice.count);
    }
  }

  float* data() const { return wide_; }

  // Rounds data() to the parameter's dtype and stores it in the parameter.
  void Publish(const StepBlock& block) const {
    if (range_.param_dtype == DType::kF32) return;
    const RandomStream random = {block.seed, block.random_step, slice_.position,
                                 slice_.param_begin};
    Narrow(range_.param_dtype, wide_, param_, slice_.count,
           range_.stochastic_rounding ? &random : nullptr);
  }

 private:
  const UpdateRange& range_;
  const UpdateSlice& slice_;
  unsigned char* const param_;
  float* wide_;
};

}  // namespace shard::cpu

#endif  // SHARD_CORE_DEVICE_CPU_WIDE_PARAM_H_
