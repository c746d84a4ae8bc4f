// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/muon_step.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/muon_step.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/cpu/vector_arithmetic.h"
#include "kernels/formula/muon.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Both functions process elements [begin, count) in whole vectors of D and
// return the first element not done.

template <class D>
HWY_INLINE size_t MomentumVectors(D d, const Muon::MomentumScalars& scalars,
                                  float* gradient, float* momentum_buffer,
                                  size_t begin, size_t count) {
  const VectorArithmetic<D> arithmetic;
  const MuonMomentumRule<VectorArithmetic<D>> rule(arithmetic, scalars);
  const size_t lanes = hn::Lanes(d);
  size_t i = begin;
  for (; i + lanes <= count; i += lanes) {
    auto buffer = hn::LoadU(d, momentum_buffer + i);
    const auto direction = rule.Direction(hn::LoadU(d, gradient + i), buffer);
    hn::StoreU(buffer, d, momentum_buffer + i);
    hn::StoreU(direction, d, gradient + i);
  }
  return i;
}

template <class D>
HWY_INLINE size_t ApplyVectors(D d, const Muon::ApplyScalars& scalars,
                               const float* direction, float* param,
                               size_t begin, size_t count) {
  const VectorArithmetic<D> arithmetic;
  const MuonApplyRule<VectorArithmetic<D>> rule(arithmetic, scalars);
  const size_t lanes = hn::Lanes(d);
  size_t i = begin;
  for (; i + lanes <= count; i += lanes) {
    auto p = hn::LoadU(d, param + i);
    rule.Update(hn::LoadU(d, direction + i), p);
    hn::StoreU(p, d, param + i);
  }
  return i;
}

void MuonMomentum(const void* scalars, float* gradient, float* momentum_buffer,
                  size_t count) {
  const Muon::MomentumScalars momentum =
      static_cast<const Muon::Scalars*>(scalars)->momentum;
  const size_t done = MomentumVectors(hn::ScalableTag<float>(), momentum,
                                      gradient, momentum_buffer, 0, count);
  MomentumVectors(hn::CappedTag<float, 1>(), momentum, gradient,
                  momentum_buffer, done, count);
}

void MuonApply(const void* scalars, int64_t rows, int64_t cols,
               const float* direction, float* param, size_t count) {
  const Muon::ApplyScalars apply =
      Muon::ApplyTo(*static_cast<const Muon::Scalars*>(scalars), rows, cols);
  const size_t done =
      ApplyVectors(hn::ScalableTag<float>(), apply, direction, param, 0, count);
  ApplyVectors(hn::CappedTag<float, 1>(), apply, direction, param, done, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard {

HWY_EXPORT(MuonMomentum);
HWY_EXPORT(MuonApply);

void MuonMomentum(const void* scalars, float* gradient, float* momentum_buffer,
                  size_t count) {
  HWY_DYNAMIC_DISPATCH(MuonMomentum)
  (scalars, gradient, momentum_buffer, count);
}

void MuonApply(const void* scalars, int64_t rows, int64_t cols,
               const float* direction, float* param, size_t count) {
  HWY_DYNAMIC_DISPATCH(MuonApply)
  (scalars, rows, cols, direction, param, count);
}

}  // namespace shard
#endif  // HWY_ONCE
