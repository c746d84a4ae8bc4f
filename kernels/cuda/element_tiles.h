// SPDX-License-Identifier: Apache-2.0
//
// ElementTiles: the tiles of an ElementRange, with the loads and stores that
// the updates of all formulas have in common. A formula's kernel computes
// between them.

#ifndef SHARD_KERNELS_CUDA_ELEMENT_TILES_H_
#define SHARD_KERNELS_CUDA_ELEMENT_TILES_H_

#include <cstdint>

#include "core/device/step_block.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/q8.h"
#include "kernels/cuda/random.h"
#include "kernels/cuda/tile.h"
#include "kernels/cuda/update_elements.h"
#include "kernels/formula/all.h"
#include "kernels/formula/state_kind.h"

namespace shard::cuda {

// The elements of a tile that one lane steps.
struct ElementLane {
  Raw raw_gradient;
  Raw raw_param;
  Raw raw_states[kMaxStates];
  float gradient[kPerLane];
  float param[kPerLane];
  float states[kMaxStates][kPerLane];
  LaneWords words;
};

// A tile, and the parameter that it belongs to.
struct ParamTile {
  Tile tile;
  uint32_t slice;  // Of the range, where slices are updated one by one.
  uint32_t row;    // Of StepBlock::rows.
};

// Returns the last of `count` things whose first(i) is not after `index`.
template <class First>
SHARD_DEVICE uint32_t LastNotAfter(uint32_t index, uint32_t count,
                                   const First& first) {
  uint32_t low = 0;
  uint32_t high = count;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    (first(middle) <= index ? low : high) = middle;
  }
  return low;
}

// Returns the kinds of the formula's states, 8 bits each. A number, since code
// of a GPU cannot index an array that the host has.
template <class F>
constexpr uint32_t PackedKinds() {
  // clang 14 knows the bound of the array only after this.
  static_assert(sizeof(F::kStateKinds) == F::kNumStates * sizeof(StateKind));
  uint32_t kinds = 0;
  for (int s = 0; s < F::kNumStates; ++s) {
    kinds |= static_cast<uint32_t>(F::kStateKinds[s]) << 8 * s;
  }
  return kinds;
}

template <class F>
SHARD_DEVICE StateKind KindOf(int s) {
  constexpr uint32_t kKinds = PackedKinds<F>();
  return static_cast<StateKind>(kKinds >> 8 * s & 0xFF);
}

// The tiles of a range, as formula F updates them; kUse is of all tensors.
template <class F, Use kUse = Use::kAgain>
class ElementTiles {
 public:
  // `block` is a copy of that at `latched`, beside which the rows lie.
  SHARD_DEVICE ElementTiles(const ElementRange& range, const StepBlock& block,
                            const StepBlock& latched, const AesTable& table)
      : range_(range), block_(block), latched_(latched), table_(table) {
    const bool clips = block.clip_value <= kMaxFloat;
    clip_ =
        clips ? static_cast<float>(block.clip_value) : FloatOf(kInfinityBits);
    scale_ = static_cast<float>(block.scale);
    reads_kept_ = block.has_norm && range.kept_sum != nullptr;
    // A single gradient is multiplied once, by scale and sign together.
    one_gradient_ = num_sources() == 1 && !clips;
    by_slice_ = range.by_param || block.has_param_rows();
    aligned_ = AreAligned();
  }

  SHARD_DEVICE uint64_t count() const {
    return by_slice_ ? range_.num_tiles : (range_.count + kTile - 1) / kTile;
  }

  SHARD_DEVICE ParamTile TileAt(uint64_t index) const {
    ParamTile at;
    int64_t begin = 0;
    auto end = static_cast<int64_t>(range_.count);
    if (by_slice_) {
      at.slice =
          LastNotAfter(static_cast<uint32_t>(index), range_.num_slices,
                       [&](uint32_t i) { return range_.slices[i].first_tile; });
      const ElementSlice& slice = range_.slices[at.slice];
      begin = static_cast<int64_t>(slice.begin);
      end = begin + static_cast<int64_t>(slice.count);
      const int64_t tile = static_cast<int64_t>(index) - slice.first_tile;
      // The slice's first element is in the middle of a block where the
      // parameter's part on another rank ends there.
      at.tile.first = begin - slice.param_begin % kTile + tile * kTile;
      at.row = RowOf(slice);
    } else {
      at.slice = 0;
      at.tile.first = static_cast<int64_t>(index) * kTile;
      at.row = static_cast<uint32_t>(range_.group);
    }
    at.tile.begin = static_cast<int>(
        begin > at.tile.first ? begin - at.tile.first : int64_t{0});
    at.tile.end = static_cast<int>(
        end < at.tile.first + kTile ? end - at.tile.first : int64_t{kTile});
    at.tile.whole = IsWhole(at.tile);
    return at;
  }

  // Returns a tile of `count` elements from `first` on, which may lie anywhere
  // in the range.
  SHARD_DEVICE Tile TileFrom(int64_t first, int count) const {
    Tile tile = {first, 0, count, false};
    tile.whole = IsWhole(tile);
    return tile;
  }

  // Returns the row that a parameter is stepped with.
  SHARD_DEVICE uint32_t RowOf(const ElementSlice& slice) const {
    return block_.has_param_rows() ? latched_.param_rows()[slice.position]
                                   : static_cast<uint32_t>(range_.group);
  }

  // Returns the constants of a row; they are all that its FormulaScalars has.
  SHARD_DEVICE const typename F::Scalars& ScalarsOf(uint32_t row) const {
    return *reinterpret_cast<const typename F::Scalars*>(
        &latched_.rows()[row].scalars);
  }

  // Returns the factor of a tile's gradients. The sign is 1 or -1.
  SHARD_DEVICE float FactorOf(double gradient_sign) const {
    const auto sign = static_cast<float>(gradient_sign);
    return one_gradient_ ? sign * scale_ : sign;
  }

  // Loads gradient, parameter and states. Loads the first source and all other
  // tensors before it uses any, so that the loads overlap.
  SHARD_DEVICE void LoadTile(const Tile& tile, Warp<ElementLane>* warp) const {
    warp->Each([&](int lane, ElementLane& v) {
      v.raw_gradient = LoadFirstSource(tile, lane);
      LoadOthers(tile, lane, &v);
      LoadGradient(tile, lane, v.raw_gradient, v.gradient);
      WidenOthers(tile, &v);
    });
  }
  SHARD_DEVICE void LoadWithoutGradient(const Tile& tile,
                                        Warp<ElementLane>* warp) const {
    warp->Each([&](int lane, ElementLane& v) {
      LoadOthers(tile, lane, &v);
      WidenOthers(tile, &v);
    });
  }
  SHARD_DEVICE void LoadGradientAndStates(const Tile& tile,
                                          Warp<ElementLane>* warp) const {
    warp->Each([&](int lane, ElementLane& v) {
      v.raw_gradient = LoadFirstSource(tile, lane);
      LoadStates(tile, lane, &v);
      LoadGradient(tile, lane, v.raw_gradient, v.gradient);
      WidenStates(tile, &v);
    });
  }
  SHARD_DEVICE void LoadParam(const Tile& tile, Warp<ElementLane>* warp) const {
    warp->Each([&](int lane, ElementLane& v) {
      LoadRawParam(tile, lane, &v);
      Widen(WideDType(), v.raw_param, v.param);
    });
  }

  // Loads a gradient alone, in two parts, so that the first of several loads
  // overlap.
  SHARD_DEVICE Raw LoadFirstSource(const Tile& tile, int lane) const {
    return LoadRaw<kUse>(range_.sources.dtype, FirstSource(), tile, lane);
  }
  // Sums, scales and clips the gradients, as SumGradients of kernels/cpu.
  // `first` comes from LoadFirstSource.
  SHARD_DEVICE void LoadGradient(const Tile& tile, int lane, const Raw& first,
                                 float* gradient) const {
    Widen(range_.sources.dtype, first, gradient);
    if (one_gradient_) return;
    for (uint32_t w = 1; w < num_sources(); ++w) {
      float other[kPerLane];
      Widen(range_.sources.dtype,
            LoadRaw<kUse>(range_.sources.dtype, range_.sources[w], tile, lane),
            other);
      SHARD_UNROLL
      for (int k = 0; k < kPerLane; ++k) gradient[k] += other[k];
    }
    SHARD_UNROLL
    for (int k = 0; k < kPerLane; ++k) {
      float g = gradient[k] * scale_;
      g = g > clip_ ? clip_ : g;
      gradient[k] = g < -clip_ ? -clip_ : g;
    }
  }

  SHARD_DEVICE void StoreParam(const ParamTile& at,
                               Warp<ElementLane>* warp) const {
    const bool stochastic = range_.stochastic_rounding;
    if (stochastic) MakeWordsOf(kParamTensor, at, warp);
    warp->Each([&](int lane, ElementLane& v) {
      if (range_.master != nullptr) {
        StoreRaw<kUse>(Narrow(DType::kF32, v.param), DType::kF32, range_.master,
                       at.tile, lane);
      }
      const Raw raw = stochastic
                          ? NarrowStochastically(kParamTensor, v.words, v.param)
                          : Narrow(range_.param_dtype, v.param);
      StoreRaw<kUse>(raw, range_.param_dtype, range_.param, at.tile, lane);
      for (uint32_t p = 0; p < range_.num_peers; ++p) {
        StoreRaw<kUse>(raw, range_.param_dtype, range_.peer_params[p], at.tile,
                       lane);
      }
    });
  }

  SHARD_DEVICE void StoreStates(const ParamTile& at,
                                Warp<ElementLane>* warp) const {
    if (range_.state_dtype == DType::kF32) {
      return StoreWideStates(at.tile, warp);
    }
    if constexpr (HasNarrowStates<F>) StoreNarrowStates(at, warp);
  }

 private:
  static constexpr double kMaxFloat = 0x1.fffffep127;

  SHARD_DEVICE bool AreAligned() const {
    uintptr_t all = AddressOf(range_.param) | AddressOf(range_.master);
    for (int s = 0; s < F::kNumStates; ++s) all |= AddressOf(range_.states[s]);
    all |= AddressOf(FirstSource());
    for (uint32_t w = 1; w < num_sources(); ++w) {
      all |= AddressOf(range_.sources[w]);
    }
    return all % sizeof(Words4) == 0;
  }

  SHARD_DEVICE bool IsWhole(const Tile& tile) const {
    return aligned_ && tile.begin == 0 && tile.end == kTile &&
           tile.first % 4 == 0;
  }

  SHARD_DEVICE uint32_t num_sources() const {
    return reads_kept_ ? 1 : range_.sources.count;
  }
  SHARD_DEVICE const void* FirstSource() const {
    return reads_kept_ ? range_.kept_sum : range_.sources[0];
  }

  SHARD_DEVICE DType WideDType() const {
    return range_.master != nullptr ? DType::kF32 : range_.param_dtype;
  }
  SHARD_DEVICE void LoadRawParam(const Tile& tile, int lane,
                                 ElementLane* v) const {
    v->raw_param = LoadRaw<kUse>(
        WideDType(), range_.master != nullptr ? range_.master : range_.param,
        tile, lane);
  }
  SHARD_DEVICE void LoadStates(const Tile& tile, int lane,
                               ElementLane* v) const {
    SHARD_UNROLL
    for (int s = 0; s < F::kNumStates; ++s) {
      v->raw_states[s] =
          LoadRaw<kUse>(range_.state_dtype, range_.states[s], tile, lane);
    }
  }
  SHARD_DEVICE void LoadOthers(const Tile& tile, int lane,
                               ElementLane* v) const {
    LoadRawParam(tile, lane, v);
    LoadStates(tile, lane, v);
  }
  SHARD_DEVICE void WidenStates(const Tile& tile, ElementLane* v) const {
    SHARD_UNROLL
    for (int s = 0; s < F::kNumStates; ++s) {
      WidenState(s, tile, v->raw_states[s], v->states[s]);
    }
  }
  SHARD_DEVICE void WidenOthers(const Tile& tile, ElementLane* v) const {
    Widen(WideDType(), v->raw_param, v->param);
    WidenStates(tile, v);
  }

  SHARD_DEVICE void WidenState(int s, const Tile& tile, const Raw& raw,
                               float* to) const {
    if (range_.state_dtype == DType::kF32) return Widen(DType::kF32, raw, to);
    if constexpr (HasNarrowStates<F>) {
      if (range_.state_dtype == DType::kQ8) {
        DecodeQ8(KindOf<F>(s), raw, *ScaleAt(s, tile), to);
      } else {
        Widen(DType::kBF16, raw, to);
      }
    }
  }

  SHARD_DEVICE float* ScaleAt(int s, const Tile& tile) const {
    return range_.scales[s] + tile.first / kTile;
  }

  SHARD_DEVICE void StoreWideStates(const Tile& tile,
                                    Warp<ElementLane>* warp) const {
    warp->Each([&](int lane, ElementLane& v) {
      SHARD_UNROLL
      for (int s = 0; s < F::kNumStates; ++s) {
        StoreRaw<kUse>(Narrow(DType::kF32, v.states[s]), DType::kF32,
                       range_.states[s], tile, lane);
      }
    });
  }

  SHARD_DEVICE void StoreNarrowStates(const ParamTile& at,
                                      Warp<ElementLane>* warp) const {
    SHARD_UNROLL
    for (int s = 0; s < F::kNumStates; ++s) {
      constexpr uint32_t kMiddle = 1u << 15;
      const StateKind kind = KindOf<F>(s);
      const uint32_t tensor = TensorOfState(s);
      const bool stochastic = IsRoundedStochastically(kind);
      // The second tensor of a pair has the words of the first.
      if (stochastic && (IsFirstOfPair(tensor) ||
                         !IsRoundedStochastically(KindOf<F>(s - 1)))) {
        MakeWordsOf(tensor, at, warp);
      }
      if (range_.state_dtype == DType::kQ8) {
        const float scale = MakeScale(kind, s, at.tile, warp);
        warp->Each([&](int lane, ElementLane& v) {
          if (lane == 0) *ScaleAt(s, at.tile) = scale;
          const Raw codes = EncodeQ8(kind, v.states[s], scale, [&](int k) {
            return stochastic ? v.words.Of(k, IsFirstOfPair(tensor)) : kMiddle;
          });
          StoreRaw<kUse>(codes, DType::kQ8, range_.states[s], at.tile, lane);
        });
      } else {
        warp->Each([&](int lane, ElementLane& v) {
          StoreRaw<kUse>(
              stochastic ? NarrowStochastically(tensor, v.words, v.states[s])
                         : Narrow(DType::kBF16, v.states[s]),
              DType::kBF16, range_.states[s], at.tile, lane);
        });
      }
    }
  }

  // Returns the scale of the block for state s.
  SHARD_DEVICE float MakeScale(StateKind kind, int s, const Tile& tile,
                               Warp<ElementLane>* warp) const {
    return ScaleOfBlock(kind, warp->Max([&](int lane, const ElementLane& v) {
      uint32_t most = 0;
      SHARD_UNROLL
      for (int k = 0; k < kPerLane; ++k) {
        if (!tile.Has(ElementOf(lane, k))) continue;
        const uint32_t bits = BitsOf(v.states[s][k]) & 0x7FFFFFFF;
        if (bits > most) most = bits;
      }
      return most;
    }));
  }

  // Returns the stream of random bits of a tile, from its first element on.
  SHARD_DEVICE RandomStream RandomOf(const ParamTile& at) const {
    const ElementSlice& slice = range_.slices[at.slice];
    return {block_.seed, block_.random_step, slice.position,
            slice.param_begin +
                (at.tile.first - static_cast<int64_t>(slice.begin))};
  }

  SHARD_DEVICE void MakeWordsOf(uint32_t tensor, const ParamTile& at,
                                Warp<ElementLane>* warp) const {
    MakeTileWords(
        table_, RandomOf(at), RandomPair(tensor),
        [](ElementLane& v) -> LaneWords& { return v.words; }, warp);
  }

  const ElementRange& range_;
  const StepBlock& block_;
  const StepBlock& latched_;
  const AesTable& table_;
  float scale_;
  float clip_;
  bool reads_kept_;
  bool one_gradient_;
  bool by_slice_;
  bool aligned_;
};

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_ELEMENT_TILES_H_
