// SPDX-License-Identifier: Apache-2.0
//
// MuonBatch: matrices of one shape that Muon steps together on a GPU, in the
// workspace of the update list. How many they are is decided with the size of
// that workspace (core/optim/workspace.h). Its launches are four kernels
// (kernels/cuda/muon.h) and three products for each step of Newton-Schulz.

#ifndef SHARD_CORE_DEVICE_CUDA_MUON_BATCH_H_
#define SHARD_CORE_DEVICE_CUDA_MUON_BATCH_H_

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/device/cuda/context.h"
#include "core/device/cuda/cublas.h"
#include "core/device/cuda/newton_schulz.h"
#include "core/device/update_list.h"
#include "kernels/cuda/muon.h"
#include "kernels/formula/muon.h"

namespace shard::cuda {

// The slices [first, first + matrices.count) of a range.
struct MatrixRun {
  size_t first;
  EqualMatrices matrices;
};

// Returns the batches of a range: for each shape as few as TensorSlice::batch
// allows, of equal sizes but for one matrix. REQUIRES: a range of Muon.
std::vector<MatrixRun> MatrixRuns(const UpdateList& list,
                                  const UpdateRange& range);

// The products of the batches of a list, which batches of one shape and size
// share.
class MuonProducts {
 public:
  using OfBatch = std::shared_ptr<const NewtonSchulz>;

  MuonProducts(std::shared_ptr<Context> context,
               std::shared_ptr<const Cublas> cublas)
      : context_(std::move(context)), cublas_(std::move(cublas)) {}

  // `precision`: UpdateRange::matmul_precision.
  StatusOr<OfBatch> For(const EqualMatrices& batch, int precision);
  // Returns the bytes that the library needs for the products so far.
  size_t scratch_bytes() const { return scratch_bytes_; }

 private:
  const std::shared_ptr<Context> context_;
  const std::shared_ptr<const Cublas> cublas_;
  // By rows, cols, count and precision.
  std::map<std::array<int64_t, 4>, OfBatch> made_;
  size_t scratch_bytes_ = 0;
};

// The memory of a batch at the beginning of the workspace.
struct MuonMemory {
  MuonMemory(float* workspace, const EqualMatrices& matrices, void* scratch);

  // Directions are made where `x` is normalized, or in `other` where x is bf16.
  std::byte* x;
  std::byte* other;
  std::byte* gram;
  std::byte* poly;
  void* scratch;
};

struct MuonBatch {
  MatrixRun run;
  MuonProducts::OfBatch products;
  MuonMemory memory;

  // Returns the argument of the kernels.
  MuonArgs ArgsFor(const UpdateTensorsArgs& tensors) const;
};

// Returns the row of constants of the matrices that are stepped, or kNotStepped
// for none. Their rows differ in the number of steps alone, which Muon does not
// read.
uint32_t RowOf(const UpdateList& list, const UpdateRange& range,
               const MatrixRun& run, const StepBlock& block);

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_MUON_BATCH_H_
