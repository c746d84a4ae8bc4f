// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/muon_batch.h"

#include <algorithm>
#include <span>

#include "core/base/dtype.h"
#include "core/base/strings.h"

namespace shard::cuda {

std::vector<MatrixRun> MatrixRuns(const UpdateList& list,
                                  const UpdateRange& range) {
  const auto tensor_of = [&](size_t i) -> const TensorSlice& {
    return list.tensors[range.first_tensor + i];
  };
  const auto shape_of = [&](size_t i) { return list.ShapeOf(tensor_of(i)); };
  std::vector<MatrixRun> runs;
  size_t end = 0;
  for (size_t begin = 0; begin < range.num_slices; begin = end) {
    const std::span<const int64_t> shape = shape_of(begin);
    for (end = begin + 1; end < range.num_slices; ++end) {
      const std::span<const int64_t> own = shape_of(end);
      if (!std::equal(own.begin(), own.end(), shape.begin())) break;
    }
    const size_t all = end - begin;
    const size_t most = tensor_of(begin).batch;
    const size_t batches = (all + most - 1) / most;
    for (size_t b = 0; b < batches; ++b) {
      const size_t first = begin + all * b / batches;
      const size_t next = begin + all * (b + 1) / batches;
      runs.push_back({first, {shape[0], shape[1], next - first}});
    }
  }
  return runs;
}

StatusOr<MuonProducts::OfBatch> MuonProducts::For(const EqualMatrices& batch,
                                                  int precision) {
  if (cublas_ == nullptr) {
    return FailedPrecondition(
        "muon's products need cuBLAS, which was not loaded");
  }
  OfBatch& found = made_[{batch.rows, batch.cols,
                          static_cast<int64_t>(batch.count), precision}];
  if (found != nullptr) return found;
  SHARD_RETURN_IF_ERROR(
      context_
          ->Run([&]() -> Status {
            SHARD_ASSIGN_OR_RETURN(
                NewtonSchulz made,
                NewtonSchulz::Make(cublas_, batch, precision));
            found = std::make_shared<const NewtonSchulz>(std::move(made));
            return Status();
          })
          .WithContext(
              StrCat("muon's products of ", batch.count,
                     batch.count == 1 ? " matrix of " : " matrices of ",
                     batch.rows, " x ", batch.cols,
                     ", matmul_precision=", Muon::kPrecisions[precision])));
  scratch_bytes_ = std::max(scratch_bytes_, found->workspace_bytes());
  return found;
}

MuonMemory::MuonMemory(float* workspace, const EqualMatrices& matrices,
                       void* scratch)
    : x(reinterpret_cast<std::byte*>(workspace)),
      other(x + matrices.count * matrices.stride()),
      gram(other + matrices.count * matrices.stride()),
      poly(gram + matrices.count * matrices.small_stride()),
      scratch(scratch) {}

MuonArgs MuonBatch::ArgsFor(const UpdateTensorsArgs& tensors) const {
  MuonArgs args = {};
  args.tensors = tensors;
  args.x = memory.x;
  args.x_dtype = products->dtype();
  // An x of the same bytes takes the place of its direction, so that what is
  // still in the L2 cache is written back to memory once.
  args.directions = reinterpret_cast<float*>(
      args.x_dtype == DType::kF32 ? memory.x : memory.other);
  args.stride = run.matrices.stride();
  for (int i = 0; i < Muon::kNumAdjustments; ++i) {
    args.adjustments[i] =
        Muon::AdjustmentOf(i, run.matrices.rows, run.matrices.cols);
  }
  return args;
}

uint32_t RowOf(const UpdateList& list, const UpdateRange& range,
               const MatrixRun& run, const StepBlock& block) {
  for (const UpdateSlice& slice :
       list.SlicesOf(range).subspan(run.first, run.matrices.count)) {
    const uint32_t row = block.RowOf(range.group, slice.position);
    if (row != kNotStepped) return row;
  }
  return kNotStepped;
}

}  // namespace shard::cuda
