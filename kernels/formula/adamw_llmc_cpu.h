// SPDX-License-Identifier: Apache-2.0
//
// AdamW in the order of llm.c's program for CPUs (train_gpt2.c, gpt2_update):
//
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + ((1 - beta2) g) g
//   u = (m / c1) / (sqrt(v / c2) + eps)
//   p = p - lr (u + wd p)
//
// Constants are floats, 1 - beta included. c = 1 - beta^t in float, as is the
// power. This is apex's order (adam_apex.h) with the corrections of llm.c's
// CUDA kernel (adamw_llmc.h).
//
// gcc 12 and clang 14 with -O3 -march=native fuse four products, on processors
// that can: beta1 m, beta2 v, wd p, and lr times the sum, the last two into the
// sum and into p. This formula fuses the same four. (1 - beta1) g and ((1 -
// beta2) g) g are rounded before they are added. llm.c's Makefile has -Ofast,
// with which a compiler may use another order.
//
// Bytes per element as AdamW's (adamw.h).

#include "kernels/formula/adam_apex.h"

#ifndef SHARD_KERNELS_FORMULA_ADAMW_LLMC_CPU_H_
#define SHARD_KERNELS_FORMULA_ADAMW_LLMC_CPU_H_

#include <cmath>
#include <cstdint>

namespace shard {

struct AdamWLlmcCpu : AdamWDeclaration, WithoutAmsgrad<AdamMoments::kLlmcCpu> {
  using Scalars = ApexScalars;

  static Scalars Prepare(const double* h, int64_t t) {
    Scalars s = AdamWApex::Prepare(h, t);
    const auto power = static_cast<float>(t);
    s.correction1 = 1.0f - std::pow(static_cast<float>(h[kBeta1]), power);
    s.correction2 = 1.0f - std::pow(static_cast<float>(h[kBeta2]), power);
    return s;
  }
};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_ADAMW_LLMC_CPU_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_ADAMW_LLMC_CPU_RULE) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_ADAMW_LLMC_CPU_RULE
#undef SHARD_KERNELS_FORMULA_ADAMW_LLMC_CPU_RULE
#else
#define SHARD_KERNELS_FORMULA_ADAMW_LLMC_CPU_RULE
#endif

SHARD_FORMULA_BEGIN

template <class A>
using AdamWLlmcCpuRule = ApexRuleOf<A, true>;

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_ADAMW_LLMC_CPU_RULE
