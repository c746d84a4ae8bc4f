// SPDX-License-Identifier: Apache-2.0
//
// LAMB's two passes over a parameter; see tensor_step.h.
//
// Compiled once per SIMD target, like the .cc that includes it; the include
// guard admits it once per target.

#if defined(SHARD_KERNELS_CPU_LAMB_STEP_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_LAMB_STEP_H_
#undef SHARD_KERNELS_CPU_LAMB_STEP_H_
#else
#define SHARD_KERNELS_CPU_LAMB_STEP_H_
#endif

#include <hwy/highway.h>

#include "kernels/cpu/square_sum.h"
#include "kernels/cpu/vector_arithmetic.h"
#include "kernels/formula/all.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

struct LambSquares {
  double param;
  double update;
};

// Updates the moments of elements [begin, count) in whole vectors of D, and
// adds the squares of p and u. Returns the first element not done.
template <class D>
HWY_INLINE size_t LambMoments(D d, const Lamb::Scalars& scalars,
                              const TensorStepArgs& args, size_t begin,
                              size_t count, LambSquares* squares) {
  const VectorArithmetic<D> arithmetic;
  const LambRule<VectorArithmetic<D>> rule(arithmetic, scalars);
  const auto sign = arithmetic.Set(scalars.gradient_sign);
  const size_t lanes = hn::Lanes(d);
  const float* const grad = args.grad;
  const float* const param = args.param;
  float* const m = args.states[0];
  float* const v = args.states[1];
  SquareSum<D> param_squares;
  SquareSum<D> update_squares;
  size_t i = begin;
  for (; i + lanes <= count; i += lanes) {
    const auto g = hn::Mul(hn::LoadU(d, grad + i), sign);
    const auto p = hn::LoadU(d, param + i);
    hn::Vec<D> states[] = {hn::LoadU(d, m + i), hn::LoadU(d, v + i)};
    update_squares.Add(rule.Update(g, p, states));
    param_squares.Add(p);
    hn::StoreU(states[0], d, m + i);
    hn::StoreU(states[1], d, v + i);
  }
  squares->param += param_squares.Total();
  squares->update += update_squares.Total();
  return i;
}

// Updates the parameters [begin, count), in whole vectors of D.
template <class D>
HWY_INLINE void LambApply(D d, const Lamb::Scalars& scalars,
                          const TensorStepArgs& args, size_t begin,
                          size_t count, double step_size) {
  const VectorArithmetic<D> arithmetic;
  const LambRule<VectorArithmetic<D>> rule(arithmetic, scalars);
  const auto step = arithmetic.Set(step_size);
  const size_t lanes = hn::Lanes(d);
  float* const param = args.param;
  const float* const m = args.states[0];
  const float* const v = args.states[1];
  for (size_t i = begin; i + lanes <= count; i += lanes) {
    const auto p = hn::LoadU(d, param + i);
    const hn::Vec<D> states[] = {hn::LoadU(d, m + i), hn::LoadU(d, v + i)};
    hn::StoreU(rule.Apply(p, rule.UpdateAgain(p, states), step), d, param + i);
  }
}

HWY_INLINE void LambStep(const Lamb::Scalars& scalars,
                         const TensorStepArgs& args) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const auto count = static_cast<size_t>(ShapeNumel(args.shape, args.ndim));
  LambSquares squares = {};
  const size_t whole = LambMoments(d, scalars, args, 0, count, &squares);
  LambMoments(one, scalars, args, whole, count, &squares);
  const double step_size =
      Lamb::StepSize(scalars, squares.param, squares.update);
  LambApply(d, scalars, args, 0, whole, step_size);
  LambApply(one, scalars, args, whole, count, step_size);
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_LAMB_STEP_H_
