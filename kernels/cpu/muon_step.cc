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

void MuonMomentum(const double* hypers, float* gradient, float* momentum_buffer,
                  size_t count) {
  const Muon::MomentumScalars scalars = Muon::PrepareMomentum(hypers);
  const size_t done = MomentumVectors(hn::ScalableTag<float>(), scalars,
                                      gradient, momentum_buffer, 0, count);
  MomentumVectors(hn::CappedTag<float, 1>(), scalars, gradient, momentum_buffer,
                  done, count);
}

void MuonApply(const double* hypers, int64_t rows, int64_t cols,
               const float* direction, float* param, size_t count) {
  const Muon::ApplyScalars scalars = Muon::PrepareApply(hypers, rows, cols);
  const size_t done = ApplyVectors(hn::ScalableTag<float>(), scalars, direction,
                                   param, 0, count);
  ApplyVectors(hn::CappedTag<float, 1>(), scalars, direction, param, done,
               count);
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard {

HWY_EXPORT(MuonMomentum);
HWY_EXPORT(MuonApply);

void MuonMomentum(const double* hypers, float* gradient, float* momentum_buffer,
                  size_t count) {
  HWY_DYNAMIC_DISPATCH(MuonMomentum)
  (hypers, gradient, momentum_buffer, count);
}

void MuonApply(const double* hypers, int64_t rows, int64_t cols,
               const float* direction, float* param, size_t count) {
  HWY_DYNAMIC_DISPATCH(MuonApply)
  (hypers, rows, cols, direction, param, count);
}

}  // namespace shard
#endif  // HWY_ONCE
