// SPDX-License-Identifier: Apache-2.0
//
// NewtonSchulz: the products of Muon's iteration (kernels/formula/muon.h) for a
// batch of matrices of one shape, whose algorithms have been chosen. A step is
// three products, whatever the number of matrices:
//   gram = x x^T                   small^2 large FLOPs, twice
//   poly = b gram + c gram gram    small^3, twice
//   to   = a x + poly x            small^2 large, twice
// where small and large are the lesser and the greater of rows and cols, and x
// stands for x^T where rows > cols. By `precision` (Muon::kHighest...) matrices
// are f32, multiplied as they are or in TF32, or bf16; sums are always fp32.
//
// Immutable; thread-safe.

#ifndef SHARD_CORE_DEVICE_CUDA_NEWTON_SCHULZ_H_
#define SHARD_CORE_DEVICE_CUDA_NEWTON_SCHULZ_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/device/cuda/cublas.h"
#include "kernels/cuda/equal_matrices.h"

namespace shard::cuda {

// Where the matrices of a batch lie.
struct NewtonSchulzMemory {
  void* from;
  void* to;
  void* gram;
  void* poly;
  void* scratch;  // workspace_bytes() of the library's.
};

class NewtonSchulz {
 public:
  // REQUIRES, here and for Step: the context is current.
  static StatusOr<NewtonSchulz> Make(
      const std::shared_ptr<const Cublas>& cublas, const EqualMatrices& batch,
      int precision);

  DType dtype() const { return dtype_; }
  size_t workspace_bytes() const;
  // Gives the stream one step.
  Status Step(const NewtonSchulzMemory& memory, CuStream stream) const;

 private:
  NewtonSchulz(bool tall, DType dtype, Product gram, Product poly, Product x)
      : tall_(tall),
        dtype_(dtype),
        gram_(std::move(gram)),
        poly_(std::move(poly)),
        x_(std::move(x)) {}

  bool tall_;
  DType dtype_;
  Product gram_;
  Product poly_;
  Product x_;
};

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_NEWTON_SCHULZ_H_
