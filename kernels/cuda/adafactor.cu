// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/adafactor.h"
#include "kernels/cuda/arithmetic.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/element_tiles.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/random.h"
#include "kernels/cuda/square_sums.h"
#include "kernels/formula/all.h"

namespace shard::cuda {

namespace {

// Adafactor as ElementTiles has it: its states have no element per element.
struct AdafactorElements {
  using Scalars = Adafactor::Scalars;
  static constexpr int kNumStates = 0;
};
using AdafactorTiles = ElementTiles<AdafactorElements>;
using AdafactorRule = formula::AdafactorRule<Arithmetic>;

// A slice's matrices, with what the table has of them.
class Matrices {
 public:
  SHARD_DEVICE Matrices(const MatrixTable& table, uint32_t slice)
      : shape(table.slices[slice]), table_(table) {}

  // Return where a matrix has its part.
  SHARD_DEVICE float* row_var(uint64_t batch) const {
    return StateOf(Adafactor::kRowVar) + batch * shape.rows;
  }
  SHARD_DEVICE float* col_var(uint64_t batch) const {
    return StateOf(Adafactor::kColVar) + batch * shape.cols;
  }
  SHARD_DEVICE float* variance() const { return StateOf(Adafactor::kVariance); }
  SHARD_DEVICE double* row_sums(uint64_t batch) const {
    return table_.sums + shape.first_sum + batch * shape.sums();
  }
  SHARD_DEVICE double* col_sums(uint64_t batch) const {
    return row_sums(batch) + shape.row_sums();
  }
  SHARD_DEVICE double* var_sums(uint64_t batch) const {
    return col_sums(batch) + shape.col_sums();
  }
  SHARD_DEVICE float* row_scales(uint64_t batch) const {
    return table_.scales + shape.first_scale + batch * shape.rows;
  }
  SHARD_DEVICE float* col_scales(uint64_t batch) const {
    return row_scales(shape.batches) + batch * shape.cols;
  }

  const MatrixSlice shape;

 private:
  SHARD_DEVICE float* StateOf(int state) const {
    return table_.states[state] + shape.state_begins[state];
  }

  const MatrixTable& table_;
};

// The rows whose squares in a column are added before others are, and as many
// of them as a warp reads at once without spilling registers.
constexpr int kRows = 4;
constexpr int kPair = 2;
static_assert(kBlockRows % kRows == 0);

struct BlockLane {
  Raw raw[kPair];
  float gradient[kPerLane];
  double pair[kPerLane];
  double four[kPerLane];
  double cols[kPerLane];
};

// Adds the squares of a block: of each row in its columns, and of each column
// in its rows. `begin` is the slice's first element.
SHARD_DEVICE void SumBlock(const AdafactorTiles& tiles,
                           const Matrices& matrices, uint64_t begin,
                           uint64_t index) {
  const MatrixSlice& m = matrices.shape;
  const uint64_t batch = index / m.blocks();
  const uint64_t row_block = index % m.blocks() / m.col_blocks();
  const uint64_t col_block = index % m.col_blocks();
  const uint64_t first_row = row_block * kBlockRows;
  const uint64_t left = m.rows - first_row;
  const int rows = static_cast<int>(left < kBlockRows ? left : kBlockRows);
  const uint64_t first_col = col_block * kBlockCols;
  const uint64_t right = m.cols - first_col;
  const int cols = static_cast<int>(right < kBlockCols ? right : kBlockCols);
  const uint64_t first =
      begin + (batch * m.rows + first_row) * m.cols + first_col;
  double* const row_sums =
      matrices.row_sums(batch) + col_block * m.rows + first_row;
  double* const col_sums =
      matrices.col_sums(batch) + row_block * m.cols + first_col;
  const float factor = tiles.FactorOf(1.0);

  const auto tile_of = [&](int row) {
    return tiles.TileFrom(
        static_cast<int64_t>(first + static_cast<uint64_t>(row) * m.cols),
        row < rows ? cols : 0);
  };
  Warp<BlockLane> warp;
  warp.Each([&](int, BlockLane& v) {
    SHARD_UNROLL
    for (int k = 0; k < kPerLane; ++k) v.cols[k] = 0;
  });
  for (int i = 0; i < rows; i += kRows) {
    SHARD_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Tile tile = tile_of(i + r);
      warp.Each([&](int lane, BlockLane& v) {
        if (r % kPair == 0) {
          SHARD_UNROLL
          for (int k = 0; k < kPair; ++k) {
            v.raw[k] = tiles.LoadFirstSource(tile_of(i + r + k), lane);
          }
        }
        tiles.LoadGradient(tile, lane, v.raw[r % kPair], v.gradient);
        SHARD_UNROLL
        for (int k = 0; k < kPerLane; ++k) {
          float& g = v.gradient[k];
          g = tile.Has(ElementOf(lane, k)) ? g * factor : 0.0f;
          const auto x = static_cast<double>(g);
          v.pair[k] = r % 2 == 0 ? x * x : MulAdd(x, x, v.pair[k]);
          if (r == 1) v.four[k] = v.pair[k];
          if (r == 3) v.cols[k] += v.four[k] + v.pair[k];
        }
      });
      const double sum =
          SumTileSquares([](const BlockLane& v) { return v.gradient; }, &warp);
      ForEachLane([&](int lane) {
        if (lane == 0 && i + r < rows) row_sums[i + r] = sum;
      });
    }
  }
  warp.Each([&](int lane, BlockLane& v) {
    SHARD_UNROLL
    for (int k = 0; k < kPerLane; ++k) {
      const int element = ElementOf(lane, k);
      if (element < cols) col_sums[element] = v.cols[k];
    }
  });
}

// Returns the sum of a row's squares.
SHARD_DEVICE float RowSum(const MatrixSlice& m, const double* row_sums) {
  constexpr uint64_t kBlocks = Adafactor::kStrip / kBlockCols;
  float total = 0;
  for (uint64_t strip = 0; strip < m.col_blocks(); strip += kBlocks) {
    double sum = 0;
    for (uint64_t b = strip; b < strip + kBlocks && b < m.col_blocks(); ++b) {
      sum += row_sums[b * m.rows];
    }
    total += static_cast<float>(sum);
  }
  return total;
}

// Makes a step of a group of row_var, and adds its values.
SHARD_DEVICE void AverageRows(const AdafactorRule& rule,
                              const Matrices& matrices, uint64_t batch,
                              uint64_t group) {
  const MatrixSlice& m = matrices.shape;
  const double* const row_sums = matrices.row_sums(batch);
  float* const row_var = matrices.row_var(batch);
  const auto inverse = static_cast<float>(1.0 / static_cast<double>(m.cols));
  Warp<double> sums;
  sums.Each([&](int lane, double& sum) {
    sum = 0;
    SHARD_UNROLL
    for (uint64_t k = 0; k < kGroupRows; k += kLanes) {
      const uint64_t row = group * kGroupRows + k + static_cast<uint64_t>(lane);
      if (row >= m.rows) continue;
      const float mean = RowSum(m, row_sums + row) * inverse;
      const float state = rule.Average(row_var[row], mean);
      row_var[row] = state;
      sum += static_cast<double>(state);
    }
  });
  const double sum = sums.SumInOrder([](int, double x) { return x; });
  ForEachLane([&](int lane) {
    if (lane == 0) matrices.var_sums(batch)[group] = sum;
  });
}

// Makes a step of a group of col_var, and the scales that follow.
SHARD_DEVICE void AverageCols(const AdafactorRule& rule,
                              const Matrices& matrices, uint64_t batch,
                              uint64_t group) {
  const MatrixSlice& m = matrices.shape;
  const auto inverse = static_cast<float>(1.0 / static_cast<double>(m.rows));
  ForEachLane([&](int lane) {
    const uint64_t col = group * kGroupCols + static_cast<uint64_t>(lane);
    if (col >= m.cols) return;
    const double* const col_sums = matrices.col_sums(batch) + col;
    double sum = 0;
    for (uint64_t b = 0; b < m.row_blocks(); ++b) sum += col_sums[b * m.cols];
    float* const col_var = matrices.col_var(batch) + col;
    const float mean = static_cast<float>(sum) * inverse;
    *col_var = rule.Average(*col_var, mean);
    matrices.col_scales(batch)[col] = rule.RowScale(*col_var, 1.0f);
  });
}

// Makes the scales of a group of rows, from the sums of all groups.
SHARD_DEVICE void ScaleRows(const AdafactorRule& rule,
                            const Adafactor::Scalars& scalars,
                            const Matrices& matrices, uint64_t batch,
                            uint64_t group) {
  const MatrixSlice& m = matrices.shape;
  const double* const var_sums = matrices.var_sums(batch);
  Warp<double> sums;
  sums.Each([&](int lane, double& sum) {
    sum = 0;
    for (auto g = static_cast<uint64_t>(lane); g < m.row_groups();
         g += kLanes) {
      sum += var_sums[g];
    }
  });
  const auto inverse = static_cast<float>(Adafactor::InverseRowMean(
      scalars, sums.SumInOrder([](int, double x) { return x; }),
      static_cast<int64_t>(m.rows)));
  ForEachLane([&](int lane) {
    SHARD_UNROLL
    for (uint64_t k = 0; k < kGroupRows; k += kLanes) {
      const uint64_t row = group * kGroupRows + k + static_cast<uint64_t>(lane);
      if (row >= m.rows) continue;
      matrices.row_scales(batch)[row] =
          rule.RowScale(matrices.row_var(batch)[row], inverse);
    }
  });
}

// Returns x / size, and leaves the rest in x. Divides only where a tile may
// have more than one line of this size. REQUIRES: x < size + kTile.
SHARD_DEVICE uint32_t Quotient(uint64_t size, uint64_t* x) {
  if (*x < size) return 0;
  if (size > kTile) {
    *x -= size;
    return 1;
  }
  const auto all = static_cast<uint32_t>(*x);
  const auto divisor = static_cast<uint32_t>(size);
  *x = all % divisor;
  return all / divisor;
}

// The scales of a tile's gradients, of a parameter with rows and columns.
class TileScales {
 public:
  // `first` is the tile's first element, from the parameter's.
  SHARD_DEVICE TileScales(const Matrices& matrices, uint64_t first)
      : matrices_(matrices) {
    const MatrixSlice& m = matrices.shape;
    const uint64_t line = first / m.cols;
    col_ = first % m.cols;
    batch_ = line / m.rows;
    row_ = line % m.rows;
  }

  // Returns the scale of an element of the tile.
  SHARD_DEVICE float Of(int element) const {
    const MatrixSlice& m = matrices_.shape;
    uint64_t col = col_ + static_cast<uint64_t>(element);
    uint64_t row = row_ + Quotient(m.cols, &col);
    const uint64_t batch = batch_ + Quotient(m.rows, &row);
    return matrices_.row_scales(batch)[row] * matrices_.col_scales(batch)[col];
  }

 private:
  const Matrices& matrices_;
  uint64_t batch_;
  uint64_t row_;
  uint64_t col_;
};

// A tile of a parameter.
class AdafactorTile {
 public:
  SHARD_DEVICE AdafactorTile(const AdafactorTiles& tiles,
                             const Matrices& matrices, const ParamTile& at,
                             uint64_t begin)
      : tiles_(tiles),
        matrices_(matrices),
        at_(at),
        first_(static_cast<uint64_t>(at.tile.first) - begin),
        rule_(Arithmetic(), tiles.ScalarsOf(at.row)) {
    tiles.LoadTile(at.tile, &warp_);
  }

  // Replaces the gradient by u. `averages`: makes a step of variance before.
  SHARD_DEVICE void MakeUpdate(bool averages) {
    const float factor = tiles_.FactorOf(1.0);
    warp_.Each([&](int lane, ElementLane& v) {
      SHARD_UNROLL
      for (int k = 0; k < kPerLane; ++k) {
        const bool has = at_.tile.Has(ElementOf(lane, k));
        v.gradient[k] = has ? v.gradient[k] * factor : 0.0f;
      }
      if (matrices_.shape.rows == 0) {
        UpdateElements(averages, lane, v.gradient);
        return;
      }
      const TileScales scales(matrices_, first_);
      SHARD_UNROLL
      for (int k = 0; k < kPerLane; ++k) {
        const int element = ElementOf(lane, k);
        if (!at_.tile.Has(element)) continue;
        v.gradient[k] = rule_.Update(v.gradient[k], scales.Of(element));
      }
    });
  }

  SHARD_DEVICE SquareSums Squares() {
    return {
        SumTileSquares([](const ElementLane& v) { return v.param; }, &warp_),
        SumTileSquares([](const ElementLane& v) { return v.gradient; },
                       &warp_)};
  }

  SHARD_DEVICE void Apply(float step_size) {
    warp_.Each([&](int, ElementLane& v) {
      SHARD_UNROLL
      for (int k = 0; k < kPerLane; ++k) {
        v.param[k] = rule_.Apply(v.param[k], v.gradient[k], step_size);
      }
    });
    tiles_.StoreParam(at_, &warp_);
  }

 private:
  SHARD_DEVICE void UpdateElements(bool averages, int lane, float* g) const {
    Tile tile = at_.tile;
    tile.first = static_cast<int64_t>(first_);
    float* const variance = matrices_.variance();
    tile.whole = tile.end == kTile && AddressOf(variance) % sizeof(Words4) == 0;
    float v[kPerLane];
    Widen(DType::kF32, LoadRaw(DType::kF32, variance, tile, lane), v);
    SHARD_UNROLL
    for (int k = 0; k < kPerLane; ++k) {
      if (averages) v[k] = rule_.Average(v[k], g[k] * g[k]);
      if (tile.Has(ElementOf(lane, k))) {
        g[k] = rule_.Update(g[k], rule_.Scale(v[k]));
      }
    }
    if (averages) {
      StoreRaw(Narrow(DType::kF32, v), DType::kF32, variance, tile, lane);
    }
  }

  const AdafactorTiles& tiles_;
  const Matrices& matrices_;
  const ParamTile& at_;
  const uint64_t first_;  // From the parameter's first element.
  const AdafactorRule rule_;
  Warp<ElementLane> warp_;
};

// Calls body(tiles, slice, row, index) for each of the `count` parts that a
// matrix has, where its slice is stepped: part `index` of the slice, with row
// `row` of the block. first(slice) is the number of parts in the slices before.
template <class First, class Body>
SHARD_DEVICE void ForEachPart(const AdafactorArgs& args, const Launch& launch,
                              uint32_t count, const First& first,
                              const Body& body) {
  const ElementRange& range = args.tensors.range;
  const StepBlock block = *args.tensors.block;
  if (block.drops_updates()) return;
  const AesTable none(false);
  const AdafactorTiles tiles(range, block, *args.tensors.block, none);
  ForEachOnWarp(launch, count, [&](uint64_t i) {
    const MatrixSlice* const all = args.matrices.slices;
    const uint32_t slice =
        LastNotAfter(static_cast<uint32_t>(i), range.num_slices,
                     [&](uint32_t s) { return first(all[s]); });
    const uint32_t row = tiles.RowOf(range.slices[slice]);
    if (row == kNotStepped) return;
    body(tiles, slice, row, i - first(all[slice]));
  });
}

// Calls body(scalars, matrices, batch, group) for each group of lines that is
// stepped. The groups of a matrix's rows come before those of its columns.
template <class Body>
SHARD_DEVICE void ForEachGroup(const AdafactorArgs& args, const Launch& launch,
                               const Body& body) {
  ForEachPart(
      args, launch, args.matrices.num_groups,
      [](const MatrixSlice& slice) { return slice.first_group; },
      [&](const AdafactorTiles& tiles, uint32_t slice, uint32_t row,
          uint64_t index) {
        const Matrices matrices(args.matrices, slice);
        const uint64_t groups = matrices.shape.groups();
        body(tiles.ScalarsOf(row), matrices, index / groups, index % groups);
      });
}

}  // namespace

SHARD_KERNEL(shard_adafactor_sums, AdafactorArgs) {
  ForEachPart(
      args, launch, args.matrices.num_blocks,
      [](const MatrixSlice& slice) { return slice.first_block; },
      [&](const AdafactorTiles& tiles, uint32_t slice, uint32_t,
          uint64_t index) {
        SumBlock(tiles, Matrices(args.matrices, slice),
                 args.tensors.range.slices[slice].begin, index);
      });
}

SHARD_KERNEL(shard_adafactor_states, AdafactorArgs) {
  ForEachGroup(args, launch,
               [&](const Adafactor::Scalars& scalars, const Matrices& matrices,
                   uint64_t batch, uint64_t group) {
                 const AdafactorRule rule(Arithmetic(), scalars);
                 const uint64_t of_rows = matrices.shape.row_groups();
                 if (group < of_rows) {
                   AverageRows(rule, matrices, batch, group);
                 } else {
                   AverageCols(rule, matrices, batch, group - of_rows);
                 }
               });
}

SHARD_KERNEL(shard_adafactor_scales, AdafactorArgs) {
  ForEachGroup(args, launch,
               [&](const Adafactor::Scalars& scalars, const Matrices& matrices,
                   uint64_t batch, uint64_t group) {
                 if (group >= matrices.shape.row_groups()) return;
                 const AdafactorRule rule(Arithmetic(), scalars);
                 ScaleRows(rule, scalars, matrices, batch, group);
               });
}

SHARD_KERNEL(shard_adafactor_squares, AdafactorArgs) {
  const UpdateTensorsArgs& tensors = args.tensors;
  const StepBlock block = *tensors.block;
  if (block.drops_updates()) return;
  const AesTable none(false);
  const AdafactorTiles tiles(tensors.range, block, *tensors.block, none);
  ForEachOnWarp(launch, tiles.count(), [&](uint64_t i) {
    const ParamTile at = tiles.TileAt(i);
    if (at.row == kNotStepped) return;
    const Matrices matrices(args.matrices, at.slice);
    AdafactorTile tile(tiles, matrices, at,
                       tensors.range.slices[at.slice].begin);
    tile.MakeUpdate(true);
    StoreSums(tile.Squares(), tensors.squares.tiles + i);
  });
}

SHARD_KERNEL(shard_adafactor_apply, AdafactorArgs) {
  const UpdateTensorsArgs& tensors = args.tensors;
  const StepBlock block = *tensors.block;
  if (block.drops_updates()) return;
  const AesTable table(tensors.range.needs_random);
  const AdafactorTiles tiles(tensors.range, block, *tensors.block, table);
  // Most tiles of a warp are of the parameter of the tile before.
  uint32_t slice = ~0u;
  float step_size = 0;
  ForEachOnWarp(launch, tiles.count(), [&](uint64_t i) {
    const ParamTile at = tiles.TileAt(i);
    if (at.row == kNotStepped) return;
    const ElementSlice& param = tensors.range.slices[at.slice];
    if (at.slice != slice) {
      slice = at.slice;
      const SquareSums sums = SumsOfSlice(tensors, slice);
      step_size = static_cast<float>(Adafactor::StepSizeWith(
          DeviceMath(), tiles.ScalarsOf(at.row), sums.param, sums.update,
          static_cast<int64_t>(param.count)));
    }
    const Matrices matrices(args.matrices, slice);
    AdafactorTile tile(tiles, matrices, at, param.begin);
    tile.MakeUpdate(false);
    tile.Apply(step_size);
  });
}

}  // namespace shard::cuda
