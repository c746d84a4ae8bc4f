// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/fused_step.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fused_step.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/cpu/vector_arithmetic.h"
#include "kernels/formula/all.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE hn::Vec<D> SumSources(D d, const float* const* sources,
                                 size_t num_sources, size_t i) {
  auto sum = hn::LoadU(d, sources[0] + i);
  for (size_t w = 1; w < num_sources; ++w) {
    sum = hn::Add(sum, hn::LoadU(d, sources[w] + i));
  }
  return sum;
}

// Elements [begin, end) in whole vectors of D; returns where it stopped.
template <class D, class F, template <class> class Rule>
HWY_INLINE size_t StepVectors(D d, const typename F::Scalars& scalars,
                              const FusedStepArgs& args, size_t begin) {
  using V = hn::Vec<D>;
  const VectorArithmetic<D> arithmetic;
  const Rule<VectorArithmetic<D>> rule(arithmetic, scalars);
  const V scale = arithmetic.Set(args.gradient_scale * scalars.gradient_sign);
  const size_t lanes = hn::Lanes(d);
  const size_t count = args.count;
  const float* const* const sources = args.sources;
  const size_t num_sources = args.num_sources;
  float* const param = args.param;
  // Local copies: the compiler cannot know that the stores below leave the
  // caller's arrays alone.
  float* states[kMaxStates] = {};
  for (int s = 0; s < F::kNumStates; ++s) states[s] = args.states[s];

  size_t i = begin;
  for (; i + lanes <= count; i += lanes) {
    const V g = hn::Mul(SumSources(d, sources, num_sources, i), scale);
    V p = hn::LoadU(d, param + i);
    V state[kMaxStates];
    for (int s = 0; s < F::kNumStates; ++s) {
      state[s] = hn::LoadU(d, states[s] + i);
    }
    rule.Update(g, p, state);
    hn::StoreU(p, d, param + i);
    for (int s = 0; s < F::kNumStates; ++s) {
      hn::StoreU(state[s], d, states[s] + i);
    }
  }
  return i;
}

template <class F, template <class> class Rule>
HWY_INLINE void Step(const double* hypers, int64_t step,
                     const FusedStepArgs& args) {
  const typename F::Scalars scalars = F::Prepare(hypers, step);
  const size_t done = StepVectors<hn::ScalableTag<float>, F, Rule>(
      hn::ScalableTag<float>(), scalars, args, 0);
  StepVectors<hn::CappedTag<float, 1>, F, Rule>(hn::CappedTag<float, 1>(),
                                                scalars, args, done);
}

void FusedStep(Formula formula, const double* hypers, int64_t step,
               const FusedStepArgs& args) {
  switch (formula) {
#define SHARD_STEP_CASE(Name)                   \
  case Formula::k##Name:                        \
    Step<Name, Name##Rule>(hypers, step, args); \
    return;
    SHARD_ELEMENT_FORMULAS(SHARD_STEP_CASE)
#undef SHARD_STEP_CASE
    default:
      return;
  }
}

double ReduceSquares(const float* const* sources, size_t num_sources,
                     float* sum, size_t count) {
  double squares = 0;
  size_t i = 0;
  // The scalar target has no halves; the loop below serves it alone.
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> d;
  const hn::Repartition<double, decltype(d)> wide;
  const hn::Half<decltype(d)> half;
  const size_t lanes = hn::Lanes(d);
  auto low_squares = hn::Zero(wide);
  auto high_squares = hn::Zero(wide);
  for (; i + lanes <= count; i += lanes) {
    const auto g = SumSources(d, sources, num_sources, i);
    hn::StoreU(g, d, sum + i);
    const auto low = hn::PromoteTo(wide, hn::LowerHalf(half, g));
    const auto high = hn::PromoteTo(wide, hn::UpperHalf(half, g));
    low_squares = hn::MulAdd(low, low, low_squares);
    high_squares = hn::MulAdd(high, high, high_squares);
  }
  squares =
      hn::GetLane(hn::SumOfLanes(wide, hn::Add(low_squares, high_squares)));
#endif
  const hn::CappedTag<float, 1> one;
  for (; i < count; ++i) {
    const auto g = SumSources(one, sources, num_sources, i);
    hn::StoreU(g, one, sum + i);
    const auto value = static_cast<double>(hn::GetLane(g));
    squares += value * value;
  }
  return squares;
}

const char* KernelTargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard {

HWY_EXPORT(FusedStep);
HWY_EXPORT(ReduceSquares);
HWY_EXPORT(KernelTargetName);

void FusedStep(Formula formula, const double* hypers, int64_t step,
               const FusedStepArgs& args) {
  HWY_DYNAMIC_DISPATCH(FusedStep)(formula, hypers, step, args);
}

double ReduceSquares(const float* const* sources, size_t num_sources,
                     float* sum, size_t count) {
  return HWY_DYNAMIC_DISPATCH(ReduceSquares)(sources, num_sources, sum, count);
}

const char* KernelTargetName() {
  return HWY_DYNAMIC_DISPATCH(KernelTargetName)();
}

}  // namespace shard
#endif  // HWY_ONCE
