// SPDX-License-Identifier: Apache-2.0
//
// Every formula's header. No include guard: see target.h.
//
// The arithmetic A of a rule may be any type with
//   using V;  V Set(double) const;  V Add, Sub, Mul, Div(V, V) const;
//   V MulAdd(V x, V y, V z) const  (x y + z);  V Sqrt(V) const.

#include "kernels/formula/adamw.h"
#include "kernels/formula/registry.h"
#include "kernels/formula/sgd.h"
