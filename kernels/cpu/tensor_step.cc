// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/tensor_step.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/tensor_step.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/cpu/adafactor_step.h"
#include "kernels/cpu/lamb_step.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

void TensorStep(Formula formula, const void* scalars,
                const TensorStepArgs& args) {
  switch (formula) {
    case Formula::kAdafactor:
      AdafactorStep(*static_cast<const Adafactor::Scalars*>(scalars), args);
      return;
    case Formula::kLamb:
      LambStep(*static_cast<const Lamb::Scalars*>(scalars), args);
      return;
    default:
      return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard {

HWY_EXPORT(TensorStep);

uint64_t TensorStepBytes(Formula formula, const int64_t* shape, int ndim) {
  const auto numel = static_cast<uint64_t>(ShapeNumel(shape, ndim));
  if (formula == Formula::kLamb) return numel * (24 + 16);
  return numel * (ndim >= 2 ? 4 + 8 + 12 : 16 + 16);
}

size_t TensorScratchElements(Formula formula, const int64_t* shape, int ndim) {
  if (formula != Formula::kAdafactor) return 0;
  // One scale for each row and each column.
  return static_cast<size_t>(
      Adafactor::StateNumel(Adafactor::kRowVar, shape, ndim) +
      Adafactor::StateNumel(Adafactor::kColVar, shape, ndim));
}

void TensorStep(Formula formula, const void* scalars,
                const TensorStepArgs& args) {
  HWY_DYNAMIC_DISPATCH(TensorStep)(formula, scalars, args);
}

}  // namespace shard
#endif  // HWY_ONCE
