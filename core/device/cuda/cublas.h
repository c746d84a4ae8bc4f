// SPDX-License-Identifier: Apache-2.0
//
// Cublas: the matrix products of cuBLASLt, which is found when it is first
// needed: the copy that the process has, or the newest of the known majors.
//
// It is used instead of cuBLAS's older interface because a product's algorithm
// is chosen once, so that a step chooses nothing; its stream and its workspace
// are arguments, so that no call changes another's; and C and D may differ, so
// that no step copies matrices.
//
// Thread-safe.

#ifndef SHARD_CORE_DEVICE_CUDA_CUBLAS_H_
#define SHARD_CORE_DEVICE_CUDA_CUBLAS_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/status.h"
#include "core/device/cuda/context.h"
#include "core/device/cuda/cublas_api.h"
#include "core/device/cuda/library.h"

namespace shard::cuda {

// A library that has all that is used of it.
struct CublasLibrary {
  Library library;
  CublasApi api;
  std::string version;  // "13.1"
};

// Opens the library, which is closed with the result unless it is kept. Errors:
// kBackendUnavailable, with the reason for each name that was tried, and a
// remedy.
StatusOr<CublasLibrary> OpenCublas();

// A batch of matrices, row-major without gaps.
struct MatrixLayout {
  int64_t rows;
  int64_t cols;
  int64_t stride;  // Elements from one matrix to the next.
};

// D = alpha op(A) op(B) + beta C for a batch; C is laid out as D.
struct ProductShape {
  bool transpose_a = false;
  bool transpose_b = false;
  MatrixLayout a;
  MatrixLayout b;
  MatrixLayout d;
  int32_t count = 1;
  CublasType type = CublasType::kF32;  // Of all matrices. Sums are in fp32.
  CublasCompute compute = CublasCompute::kF32;
};

class Cublas {
 public:
  // Loads the library, for good, and makes a handle in the context.
  static StatusOr<std::shared_ptr<const Cublas>> Open(
      std::shared_ptr<Context> context);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  // Returns "libcublasLt.so.13 13.1".
  const std::string& name() const { return name_; }
  const CublasApi& api() const { return api_; }
  CublasHandle handle() const { return handle_; }
  // Returns whether nothing may be called any more: in a child of fork, and
  // where work is left that may use it.
  bool IsUnusable() const;

  Status ToStatus(CublasResult result, std::string_view call) const;

 private:
  explicit Cublas(std::shared_ptr<Context> context);
  static StatusOr<std::shared_ptr<Cublas>> Start(
      const std::shared_ptr<Context>& context, CublasLibrary opened);

  const std::shared_ptr<Context> context_;
  const pid_t owner_;
  std::string name_;
  CublasApi api_;
  CublasHandle handle_ = nullptr;
};

// A product whose algorithm has been chosen. Immutable; thread-safe.
class Product {
 public:
  // The algorithm needs at most kMaxWorkspace bytes of the GPU's memory.
  // Errors: kBackendUnavailable where the library has none for the shape.
  // REQUIRES, here and for Enqueue: the context is current.
  static constexpr size_t kMaxWorkspace = size_t{32} << 20;
  static StatusOr<Product> Make(std::shared_ptr<const Cublas> cublas,
                                const ProductShape& shape);
  ~Product();
  Product(Product&& other) noexcept;
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  size_t workspace_bytes() const { return workspace_bytes_; }

  // Gives the stream one product of the batch. Matrices and workspace are
  // aligned to kCublasAlignment; neither A nor B overlaps D.
  Status Enqueue(float alpha, const void* a, const void* b, float beta,
                 const void* c, void* d, void* workspace,
                 CuStream stream) const;

 private:
  explicit Product(std::shared_ptr<const Cublas> cublas)
      : cublas_(std::move(cublas)) {}
  Status MakeLayout(const MatrixLayout& matrices, const ProductShape& shape,
                    CublasLayout* layout);
  Status Choose();

  std::shared_ptr<const Cublas> cublas_;  // Null: moved from.
  CublasMatmulDesc desc_ = nullptr;
  CublasLayout a_ = nullptr;
  CublasLayout b_ = nullptr;
  CublasLayout d_ = nullptr;
  CublasAlgorithm algorithm_ = {};
  size_t workspace_bytes_ = 0;
};

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_CUBLAS_H_
