// SPDX-License-Identifier: Apache-2.0
//
// The headers of all formulas. No include guard: see target.h.
//
// The arithmetic A of a rule may be any type with
//   using V;  V Set(double) const;  V Add, Sub, Mul, Div(V, V) const;
//   V MulAdd(V x, V y, V z) const  (x y + z);  V Sqrt(V) const;
//   V Max, Min(V, V) const  (NaN where either is, as torch.maximum);
//   V IfPositive(V x, V yes, V no) const  (x > 0 ? yes : no, per element).
// Other operations are written with these: |x| is Max(x, 0 - x), and sign(x)
// takes two IfPositive. IfPositive takes the `no` branch for NaN: a rule whose
// last branch is a constant hides a NaN; a rule whose last branch is x itself,
// 0 or NaN there, does not.

#include "kernels/formula/adadelta.h"
#include "kernels/formula/adafactor.h"
#include "kernels/formula/adagrad.h"
#include "kernels/formula/adam.h"
#include "kernels/formula/adam_apex.h"
#include "kernels/formula/adam_deepspeed_cpu.h"
#include "kernels/formula/adamax.h"
#include "kernels/formula/adamw.h"
#include "kernels/formula/adamw_ggml.h"
#include "kernels/formula/adamw_llmc.h"
#include "kernels/formula/adamw_llmc_cpu.h"
#include "kernels/formula/lamb.h"
#include "kernels/formula/lion.h"
#include "kernels/formula/muon.h"
#include "kernels/formula/registry.h"
#include "kernels/formula/rmsprop.h"
#include "kernels/formula/rprop.h"
#include "kernels/formula/sgd.h"

// Checked each time this header is included, which costs nothing.
#define SHARD_FORMULA_FITS(Name)                              \
  static_assert(shard::Name::kNumStates <= shard::kMaxStates, \
                #Name " keeps more states: raise kMaxStates in registry.h");
SHARD_FORMULAS(SHARD_FORMULA_FITS)
#undef SHARD_FORMULA_FITS
