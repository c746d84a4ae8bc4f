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

#include <algorithm>

#include "kernels/cpu/square_sum.h"
#include "kernels/cpu/vector_arithmetic.h"
#include "kernels/formula/all.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

// The work of the passes on elements [begin, end), in whole vectors of D.
// Methods return the first element not done.
template <class D>
class LambRange {
 public:
  using V = hn::Vec<D>;

  HWY_INLINE LambRange(const Lamb::Scalars& scalars, const TensorStepArgs& args)
      : args_(args),
        rule_(arithmetic_, scalars),
        sign_(arithmetic_.Set(scalars.gradient_sign)) {}

  // Updates the moments, and stores u of these elements in `updates`.
  HWY_INLINE size_t Moments(size_t begin, size_t end, float* updates) const {
    float* const m = args_.states[0];
    float* const v = args_.states[1];
    size_t i = begin;
    for (; i + lanes_ <= end; i += lanes_, updates += lanes_) {
      const V g = hn::Mul(hn::LoadU(d_, args_.grad + i), sign_);
      V states[] = {hn::LoadU(d_, m + i), hn::LoadU(d_, v + i)};
      const V u = rule_.Update(g, hn::LoadU(d_, args_.param + i), states);
      hn::StoreU(u, d_, updates);
      hn::StoreU(states[0], d_, m + i);
      hn::StoreU(states[1], d_, v + i);
    }
    return i;
  }

  HWY_INLINE size_t Apply(size_t begin, size_t end, double step_size) const {
    const V step = arithmetic_.Set(step_size);
    const float* const m = args_.states[0];
    const float* const v = args_.states[1];
    size_t i = begin;
    for (; i + lanes_ <= end; i += lanes_) {
      const V p = hn::LoadU(d_, args_.param + i);
      const V states[] = {hn::LoadU(d_, m + i), hn::LoadU(d_, v + i)};
      hn::StoreU(rule_.Apply(p, rule_.UpdateAgain(p, states), step), d_,
                 args_.param + i);
    }
    return i;
  }

 private:
  const TensorStepArgs& args_;
  D d_;
  size_t lanes_ = hn::Lanes(D());
  VectorArithmetic<D> arithmetic_;
  LambRule<VectorArithmetic<D>> rule_;
  V sign_;
};

static HWY_NOINLINE void LambStep(const Lamb::Scalars& scalars,
                                  const TensorStepArgs& args) {
  const LambRange<hn::ScalableTag<float>> vectors(scalars, args);
  const LambRange<hn::CappedTag<float, 1>> rest(scalars, args);
  const auto count = static_cast<size_t>(ShapeNumel(args.shape, args.ndim));
  TileSum param_squares;
  TileSum update_squares;
  float updates[kSquareTile];
  for (size_t begin = 0; begin < count; begin += kSquareTile) {
    const size_t end = std::min(begin + kSquareTile, count);
    const size_t done = vectors.Moments(begin, end, updates);
    rest.Moments(done, end, updates + (done - begin));
    param_squares.Add(SumSquares(args.param + begin, end - begin));
    update_squares.Add(SumSquares(updates, end - begin));
  }
  const double step_size =
      Lamb::StepSize(scalars, param_squares.Take(), update_squares.Take());
  const size_t done = vectors.Apply(0, count, step_size);
  rest.Apply(done, count, step_size);
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_LAMB_STEP_H_
