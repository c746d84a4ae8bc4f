// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/update_table.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "core/device/cuda/element_range.h"
#include "core/device/cuda/matrix_slices.h"
#include "core/device/cuda/tile_groups.h"
#include "kernels/cuda/tile.h"

namespace shard::cuda {

namespace {

Status CheckRange(const UpdateRange& range) {
  if (range.formula == Formula::kMuon) {
    return Unimplemented(
        "the optimizer muon has no CUDA kernels yet; use another one, or the "
        "device \"cpu\"");
  }
  if (range.count / kTile + range.num_slices >=
      std::numeric_limits<uint32_t>::max()) {
    return InvalidArgument("a rank's part of a flat buffer has ", range.count,
                           " elements, more than a kernel counts; plan more "
                           "units or ranks");
  }
  return Status();
}

}  // namespace

StatusOr<std::shared_ptr<const UpdateTable>> UpdateTable::Make(
    const Memory& memory, const UpdateList& list) {
  auto table = std::make_shared<UpdateTable>();
  std::vector<std::vector<ElementSlice>> made;
  std::vector<std::vector<ElementSlice>> of_tensors;
  std::vector<ElementSlice> all;
  for (const UpdateRange& range : list.ranges) {
    SHARD_RETURN_IF_ERROR(CheckRange(range));
    made.push_back(ElementSlices(list, range));
    all.insert(all.end(), made.back().begin(), made.back().end());
    of_tensors.emplace_back();
    if (range.is_tensor) of_tensors.back() = made.back();
  }
  SHARD_RETURN_IF_ERROR(table->AddSquares(memory, of_tensors));
  SHARD_RETURN_IF_ERROR(table->AddMatrices(memory, list));
  SHARD_ASSIGN_OR_RETURN(table->slices_,
                         memory.Upload(all.data(), all.size() * sizeof(all[0]),
                                       "the table of updates"));
  SHARD_ASSIGN_OR_RETURN(
      table->sources_,
      memory.Upload(list.sources.data(),
                    list.sources.size() * sizeof(list.sources[0]),
                    "the table of gradients"));
  const auto* slices =
      reinterpret_cast<const ElementSlice*>(table->slices_.data());
  const auto* const sources =
      reinterpret_cast<const void* const*>(table->sources_.data());
  for (size_t r = 0; r < list.ranges.size(); ++r) {
    const UpdateRange& range = list.ranges[r];
    table->ranges_.push_back(
        ElementRangeOf(list, range, made[r], slices, sources));
    slices += made[r].size();
    AddToNormArgs norm = {};
    norm.sources =
        SourcesOf(list.sources.data() + range.first_source, range.num_sources,
                  range.source_dtype, sources + range.first_source);
    norm.kept =
        range.keeps_sum ? static_cast<float*>(range.own_grads) : nullptr;
    norm.count = range.count;
    table->norms_.push_back(norm);
  }
  return std::shared_ptr<const UpdateTable>(std::move(table));
}

Status UpdateTable::AddSquares(
    const Memory& memory,
    const std::vector<std::vector<ElementSlice>>& slices) {
  std::vector<TileGroups> groups;
  std::vector<uint32_t> firsts;
  size_t most_sums = 0;
  for (const std::vector<ElementSlice>& one : slices) {
    groups.push_back(GroupTiles(one));
    const std::vector<uint32_t>& first = groups.back().first;
    firsts.insert(firsts.end(), first.begin(), first.end());
    most_sums = std::max(most_sums, groups.back().num_sums());
  }
  SHARD_ASSIGN_OR_RETURN(
      first_groups_,
      memory.Upload(firsts.data(), firsts.size() * sizeof(firsts[0]),
                    "the table of sums of squares"));
  SHARD_ASSIGN_OR_RETURN(
      square_sums_,
      memory.Allocate(most_sums * sizeof(SquareSums), "sums of squares"));
  const auto* first = reinterpret_cast<const uint32_t*>(first_groups_.data());
  auto* const sums = reinterpret_cast<SquareSums*>(square_sums_.data());
  for (const TileGroups& one : groups) {
    squares_.push_back(SquareTableOf(one, first, sums));
    first += one.first.size();
  }
  return Status();
}

Status UpdateTable::AddMatrices(const Memory& memory, const UpdateList& list) {
  std::vector<MatrixSlices> made;
  std::vector<MatrixSlice> all;
  uint64_t most_sums = 0;
  uint64_t most_scales = 0;
  for (const UpdateRange& range : list.ranges) {
    made.emplace_back();
    if (range.formula != Formula::kAdafactor) continue;
    SHARD_ASSIGN_OR_RETURN(made.back(), MatrixSlicesOf(list, range));
    const MatrixSlices& last = made.back();
    all.insert(all.end(), last.slices.begin(), last.slices.end());
    most_sums = std::max(most_sums, last.num_sums);
    most_scales = std::max(most_scales, last.num_scales);
  }
  SHARD_ASSIGN_OR_RETURN(matrix_slices_,
                         memory.Upload(all.data(), all.size() * sizeof(all[0]),
                                       "the table of matrices"));
  SHARD_ASSIGN_OR_RETURN(
      matrix_sums_,
      memory.Allocate(most_sums * sizeof(double), "sums of rows and columns"));
  SHARD_ASSIGN_OR_RETURN(matrix_scales_,
                         memory.Allocate(most_scales * sizeof(float),
                                         "scales of rows and columns"));
  const auto* slices =
      reinterpret_cast<const MatrixSlice*>(matrix_slices_.data());
  for (size_t r = 0; r < list.ranges.size(); ++r) {
    matrices_.push_back(
        MatrixTableOf(list.ranges[r], made[r], slices,
                      reinterpret_cast<double*>(matrix_sums_.data()),
                      reinterpret_cast<float*>(matrix_scales_.data())));
    slices += made[r].slices.size();
  }
  return Status();
}

ElementRange UpdateTable::RangeOf(size_t range,
                                  const GradientSources* gradients) const {
  ElementRange given = ranges_[range];
  // The list of the host's pointers is not uploaded.
  if (gradients != nullptr) ReadGradients(*gradients, gradients->data, &given);
  return given;
}

}  // namespace shard::cuda
