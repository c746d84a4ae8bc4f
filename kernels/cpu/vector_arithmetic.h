// SPDX-License-Identifier: Apache-2.0
//
// VectorArithmetic: the arithmetic A over which formulas are written
// (kernels/formula/all.h), on Highway's vectors.
//
// Compiled once per SIMD target, like the .cc that includes it; the include
// guard admits it once per target.

#if defined(SHARD_KERNELS_CPU_VECTOR_ARITHMETIC_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_VECTOR_ARITHMETIC_H_
#undef SHARD_KERNELS_CPU_VECTOR_ARITHMETIC_H_
#else
#define SHARD_KERNELS_CPU_VECTOR_ARITHMETIC_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Arithmetic on vectors of D.
template <class D>
struct VectorArithmetic {
  using V = hn::Vec<D>;

  HWY_INLINE V Set(double x) const {
    return hn::Set(D(), static_cast<float>(x));
  }
  HWY_INLINE V Add(V x, V y) const { return hn::Add(x, y); }
  HWY_INLINE V Sub(V x, V y) const { return hn::Sub(x, y); }
  HWY_INLINE V Mul(V x, V y) const { return hn::Mul(x, y); }
  HWY_INLINE V Div(V x, V y) const { return hn::Div(x, y); }
  HWY_INLINE V MulAdd(V x, V y, V z) const { return hn::MulAdd(x, y, z); }
  HWY_INLINE V Sqrt(V x) const { return hn::Sqrt(x); }
  // Comparisons, which give y where either is NaN: hn::Max and hn::Min may lose
  // a NaN in one of the operands, and the processor decides in which.
  HWY_INLINE V Max(V x, V y) const {
    return KeepNan(x, hn::IfThenElse(hn::Gt(x, y), x, y));
  }
  HWY_INLINE V Min(V x, V y) const {
    return KeepNan(x, hn::IfThenElse(hn::Lt(x, y), x, y));
  }
  HWY_INLINE V IfPositive(V x, V yes, V no) const {
    return hn::IfThenElse(hn::Gt(x, hn::Zero(D())), yes, no);
  }

 private:
  static HWY_INLINE V KeepNan(V x, V otherwise) {
    return hn::IfThenElse(hn::IsNaN(x), x, otherwise);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_VECTOR_ARITHMETIC_H_
