// SPDX-License-Identifier: Apache-2.0
//
// All kernels: a driver takes one image of a fatbin, so one file has them.

#include "kernels/cuda/adafactor.cu"
#include "kernels/cuda/casts.cu"
#include "kernels/cuda/count.cu"
#include "kernels/cuda/fill.cu"
#include "kernels/cuda/lamb.cu"
#include "kernels/cuda/muon.cu"
#include "kernels/cuda/norm.cu"
#include "kernels/cuda/sum_squares.cu"
#include "kernels/cuda/update_elements.cu"
