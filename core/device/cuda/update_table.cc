// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/update_table.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>

#include "core/device/cuda/element_range.h"
#include "core/device/cuda/matrix_slices.h"
#include "core/device/cuda/tile_groups.h"
#include "kernels/cuda/tile.h"

namespace shard::cuda {

// The slices of a part.
struct UpdateTable::Slices {
  size_t range;
  std::vector<ElementSlice> slices;
  MatrixRun run;  // Of Muon.
};

namespace {

Status CheckRange(const UpdateRange& range) {
  if (range.count / kTile + range.num_slices >=
      std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("a rank's part of a flat buffer has ", range.count,
                           " elements, more than a kernel counts; plan more "
                           "units or ranks");
  }
  return Status();
}

// Returns the slices of a batch, whose tiles are counted from 0.
std::vector<ElementSlice> SlicesOf(const std::vector<ElementSlice>& all,
                                   const MatrixRun& run) {
  const auto begin = all.begin() + static_cast<ptrdiff_t>(run.first);
  std::vector<ElementSlice> slices(
      begin, begin + static_cast<ptrdiff_t>(run.matrices.count));
  const uint32_t first_tile = slices.front().first_tile;
  for (ElementSlice& slice : slices) slice.first_tile -= first_tile;
  return slices;
}

}  // namespace

StatusOr<std::shared_ptr<const UpdateTable>> UpdateTable::Make(
    const std::shared_ptr<Context>& context, const Memory& memory,
    std::shared_ptr<const Cublas> cublas, const UpdateList& list) {
  auto table = std::make_shared<UpdateTable>();
  std::vector<Slices> made;
  for (size_t r = 0; r < list.ranges.size(); ++r) {
    const UpdateRange& range = list.ranges[r];
    SHARD_RETURN_IF_ERROR(CheckRange(range));
    table->first_parts_.push_back(made.size());
    std::vector<ElementSlice> all = ElementSlices(list, range);
    if (range.formula != Formula::kMuon) {
      made.push_back({r, std::move(all), {}});
      continue;
    }
    for (const MatrixRun& run : MatrixRuns(list, range)) {
      made.push_back({r, SlicesOf(all, run), run});
    }
  }
  table->first_parts_.push_back(made.size());
  std::vector<ElementSlice> all;
  for (const Slices& one : made) {
    all.insert(all.end(), one.slices.begin(), one.slices.end());
  }
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
  for (const Slices& one : made) {
    table->parts_.push_back({ElementRangeOf(list, list.ranges[one.range],
                                            one.slices, slices, sources),
                             {},
                             {},
                             std::nullopt});
    slices += one.slices.size();
  }
  for (const UpdateRange& range : list.ranges) {
    AddToNormArgs norm = {};
    norm.sources =
        SourcesOf(list.sources.data() + range.first_source, range.num_sources,
                  range.source_dtype, sources + range.first_source);
    norm.kept =
        range.keeps_sum ? static_cast<float*>(range.own_grads) : nullptr;
    norm.count = range.count;
    table->norms_.push_back(norm);
  }
  if (list.peers) SHARD_RETURN_IF_ERROR(table->AddPeers(memory, list));
  SHARD_RETURN_IF_ERROR(table->AddStep(memory, list));
  SHARD_RETURN_IF_ERROR(table->AddSquares(memory, list, made));
  SHARD_RETURN_IF_ERROR(table->AddMatrices(memory, list));
  MuonProducts products(context, std::move(cublas));
  SHARD_RETURN_IF_ERROR(table->AddProducts(memory, &products, list, made));
  return std::shared_ptr<const UpdateTable>(std::move(table));
}

Status UpdateTable::AddPeers(const Memory& memory, const UpdateList& list) {
  const UpdatePeers& peers = *list.peers;
  std::vector<void*> all;
  for (const auto& one : peers.params) {
    all.insert(all.end(), one.begin(), one.end());
  }
  SHARD_ASSIGN_OR_RETURN(peer_params_,
                         memory.Upload(all.data(), all.size() * sizeof(all[0]),
                                       "the table of other ranks' parameters"));
  SHARD_ASSIGN_OR_RETURN(
      peer_flags_, memory.Upload(peers.flags.data(),
                                 peers.flags.size() * sizeof(peers.flags[0]),
                                 "the table of flags"));
  PeerMeetings meetings = {};
  meetings.ranks = static_cast<uint32_t>(peers.flags.size());
  meetings.rank = static_cast<uint32_t>(peers.rank);
  meetings.flags = reinterpret_cast<uint64_t* const*>(peer_flags_.data());
  meetings.waits = peers.waits;
  SHARD_ASSIGN_OR_RETURN(
      meetings_, memory.Upload(&meetings, sizeof(meetings), "meetings"));
  auto* const* copies = reinterpret_cast<void* const*>(peer_params_.data());
  for (size_t r = 0; r < list.ranges.size(); ++r) {
    ElementRange& range = parts_[first_parts_[r]].range;
    range.peer_params = copies;
    range.num_peers = static_cast<uint32_t>(peers.params[r].size());
    copies += range.num_peers;
  }
  return Status();
}

Status UpdateTable::AddStep(const Memory& memory, const UpdateList& list) {
  // The parts of each launch, by kernel.
  std::map<std::pair<Formula, bool>, std::vector<const ElementRange*>> kernels;
  for (size_t r = 0; r < list.ranges.size(); ++r) {
    if (list.ranges[r].is_tensor) continue;
    const ElementRange& range = PartsOf(r).front().range;
    kernels[{list.ranges[r].formula, range.needs_random}].push_back(&range);
  }
  std::vector<ElementRange> more;
  for (const auto& [kernel, ranges] : kernels) {
    StepLaunch launch = {kernel.first, *ranges.front(), nullptr, 0, 0};
    launch.num_more = static_cast<uint32_t>(ranges.size() - 1);
    for (const ElementRange* range : ranges) {
      launch.num_tiles += TilesOf(*range);
      if (range != ranges.front()) more.push_back(*range);
    }
    step_.push_back(launch);
  }
  SHARD_ASSIGN_OR_RETURN(
      ranges_, memory.Upload(more.data(), more.size() * sizeof(more[0]),
                             "the table of ranges"));
  const auto* next = reinterpret_cast<const ElementRange*>(ranges_.data());
  for (StepLaunch& launch : step_) {
    launch.more = next;
    next += launch.num_more;
  }
  return Status();
}

Status UpdateTable::AddSquares(const Memory& memory, const UpdateList& list,
                               const std::vector<Slices>& slices) {
  std::vector<TileGroups> groups;
  std::vector<uint32_t> firsts;
  size_t most_sums = 0;
  for (const Slices& one : slices) {
    groups.emplace_back();
    if (!list.ranges[one.range].is_tensor) continue;
    groups.back() = GroupTiles(one.slices);
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
  for (size_t i = 0; i < groups.size(); ++i) {
    parts_[i].squares = SquareTableOf(groups[i], first, sums);
    first += groups[i].first.size();
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
    if (list.ranges[r].formula != Formula::kAdafactor) continue;
    parts_[first_parts_[r]].matrices =
        MatrixTableOf(list.ranges[r], made[r], slices,
                      reinterpret_cast<double*>(matrix_sums_.data()),
                      reinterpret_cast<float*>(matrix_scales_.data()));
    slices += made[r].slices.size();
  }
  return Status();
}

Status UpdateTable::AddProducts(const Memory& memory, MuonProducts* products,
                                const UpdateList& list,
                                const std::vector<Slices>& slices) {
  std::vector<MuonProducts::OfBatch> of_parts(slices.size());
  for (size_t i = 0; i < slices.size(); ++i) {
    const UpdateRange& range = list.ranges[slices[i].range];
    if (range.formula != Formula::kMuon) continue;
    SHARD_ASSIGN_OR_RETURN(of_parts[i], products->For(slices[i].run.matrices,
                                                      range.matmul_precision));
  }
  SHARD_ASSIGN_OR_RETURN(
      product_scratch_,
      memory.Allocate(products->scratch_bytes(), "the workspace of cuBLAS"));
  for (size_t i = 0; i < slices.size(); ++i) {
    if (of_parts[i] == nullptr) continue;
    const MatrixRun& run = slices[i].run;
    parts_[i].muon = {
        run, of_parts[i],
        MuonMemory(list.workspace, run.matrices, product_scratch_.data())};
  }
  return Status();
}

}  // namespace shard::cuda
