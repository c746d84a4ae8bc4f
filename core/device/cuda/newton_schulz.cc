// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/newton_schulz.h"

#include <algorithm>

#include "kernels/formula/muon.h"

namespace shard::cuda {

static_assert(kMatrixAlignment % kCublasAlignment == 0);

StatusOr<NewtonSchulz> NewtonSchulz::Make(
    const std::shared_ptr<const Cublas>& cublas, const EqualMatrices& batch,
    int precision) {
  const bool half = precision == Muon::kMedium;
  const size_t element = half ? 2 : sizeof(float);
  const bool tall = batch.rows > batch.cols;
  const int64_t small = std::min(batch.rows, batch.cols);
  const MatrixLayout whole = {batch.rows, batch.cols,
                              static_cast<int64_t>(batch.stride() / element)};
  const MatrixLayout square = {
      small, small, static_cast<int64_t>(batch.small_stride() / element)};
  ProductShape shape;
  shape.count = static_cast<int32_t>(batch.count);
  shape.type = half ? CublasType::kBF16 : CublasType::kF32;
  shape.compute =
      precision == Muon::kHigh ? CublasCompute::kTF32 : CublasCompute::kF32;
  shape.a = shape.b = whole;
  shape.transpose_a = tall;
  shape.transpose_b = !tall;
  shape.d = square;
  SHARD_ASSIGN_OR_RETURN(Product gram, Product::Make(cublas, shape));
  shape.transpose_a = shape.transpose_b = false;
  shape.a = shape.b = square;
  SHARD_ASSIGN_OR_RETURN(Product poly, Product::Make(cublas, shape));
  (tall ? shape.a : shape.b) = whole;
  shape.d = whole;
  SHARD_ASSIGN_OR_RETURN(Product x, Product::Make(cublas, shape));
  return NewtonSchulz(tall, half ? DType::kBF16 : DType::kF32, std::move(gram),
                      std::move(poly), std::move(x));
}

size_t NewtonSchulz::workspace_bytes() const {
  return std::max(
      {gram_.workspace_bytes(), poly_.workspace_bytes(), x_.workspace_bytes()});
}

Status NewtonSchulz::Step(const NewtonSchulzMemory& memory,
                          CuStream stream) const {
  constexpr auto kLinear = static_cast<float>(Muon::kLinear);
  constexpr auto kCubic = static_cast<float>(Muon::kCubic);
  constexpr auto kQuintic = static_cast<float>(Muon::kQuintic);
  const void* const x = memory.from;
  const void* const gram = memory.gram;
  SHARD_RETURN_IF_ERROR(gram_.Enqueue(1, x, x, 0, memory.gram, memory.gram,
                                      memory.scratch, stream));
  SHARD_RETURN_IF_ERROR(poly_.Enqueue(kQuintic, gram, gram, kCubic, gram,
                                      memory.poly, memory.scratch, stream));
  return x_.Enqueue(1, tall_ ? x : memory.poly, tall_ ? memory.poly : x,
                    kLinear, x, memory.to, memory.scratch, stream);
}

}  // namespace shard::cuda
