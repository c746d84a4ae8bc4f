// SPDX-License-Identifier: Apache-2.0

#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/power.h"
#include "kernels/cuda/tile.h"

namespace shard::cuda {

namespace {

// A tile is so many tiles of tile.h, and a lane has so many elements of it.
constexpr int kNormParts = static_cast<int>(kNormTile) / kTile;
constexpr int kNormPerLane = kNormParts * kPerLane;
constexpr int kNormPerLaneBits = 5;
static_assert(kNormPerLane == 1 << kNormPerLaneBits);

constexpr uint32_t kMagnitudeMask = 0x7FFFFFFF;

// How terms are added without loss. As kernels/cpu/norm.h explains, a double
// that starts at 1.5 * 2^(kNormPerLaneBits + 1) * 2^M takes the lane's terms
// below 2^M, each rounded to a multiple of u = 2^(M - kUnitBits), and leaves
// remainders of at most u / 2, which a second double takes. What a double has
// taken is the difference of its bits and those that it started with, times u:
// an integer, which is summed over the lanes and added to a wide number.
//
// A square takes four operations of doubles, a magnitude one. An A100, H100 or
// B200 does half as many of them as of floats, and waits for memory; most other
// GPUs do a 64th, and a pass waits for its arithmetic there.
constexpr int kUnitBits = 52 - (kNormPerLaneBits + 1);
constexpr int kLevelBits = kUnitBits + 1;

SHARD_DEVICE double PowerOfTwo(int exponent) {
  return DoubleOf(static_cast<uint64_t>(exponent + 1023) << 52);
}
SHARD_DEVICE double AnchorOf(int top) {
  return 1.5 * PowerOfTwo(top + kNormPerLaneBits + 1);
}

// Returns an exponent: a magnitude with these bits is below 2^(exponent + 1)
// and a multiple of 2^(exponent - 23).
SHARD_DEVICE int ExponentOf(uint32_t magnitude_bits) {
  const auto biased = static_cast<int>(magnitude_bits >> 23);
  return (biased < 1 ? 1 : biased) - 127;
}

// Terms of magnitudes (power 1) have 24 bits, and one double; squares (power 2)
// 48 bits, and two. Either way nothing is lost where exponents differ by at
// most this.
constexpr int kNormSpan = kUnitBits - 24;
static_assert(kLevelBits + kUnitBits - 48 >= 2 * kNormSpan);

// The elements of a tile that one lane adds.
struct NormLane {
  float x[kNormPerLane];
  int64_t taken[2];  // By the two doubles.
};

// The magnitudes, as bits, that are added at a time: [lower, upper).
struct NormWindow {
  uint32_t lower;
  uint32_t upper;
};

SHARD_DEVICE uint32_t MagnitudeOf(float x) {
  return BitsOf(x) & kMagnitudeMask;
}

// The sum of the tiles of one warp. Lane i has limb i of NormScratch.
class NormAccumulator {
 public:
  SHARD_DEVICE NormAccumulator(NormType type, double p, double reference)
      : type_(type), p_(p), reference_(reference) {
    limbs_.Each([](int, uint64_t& limb) { limb = 0; });
  }

  SHARD_DEVICE void Add(Warp<NormLane>* tile) {
    const uint32_t most = tile->Max([](int, const NormLane& v) {
      uint32_t bits = 0;
      SHARD_UNROLL
      for (int k = 0; k < kNormPerLane; ++k) {
        if (MagnitudeOf(v.x[k]) > bits) bits = MagnitudeOf(v.x[k]);
      }
      return bits;
    });
    if (most > largest_bits_) largest_bits_ = most;
    // Infinities and NaN are recorded and not added.
    if (most == 0 || most >= 0x7F800000) return;
    if (type_ == NormType::kOne) return AddTerms<1>(most, tile);
    if (type_ == NormType::kTwo) return AddTerms<2>(most, tile);
    if (type_ == NormType::kP) AddPowers(tile);
  }

  SHARD_DEVICE void Flush(NormScratch* scratch) {
    limbs_.Each([&](int lane, uint64_t& limb) {
      if (lane < NormScratch::kNumLimbs && limb != 0) {
        AtomicAdd(limb, &scratch->limbs[lane]);
      }
      if (lane == 0 && largest_bits_ != 0) {
        AtomicMax(largest_bits_, &scratch->largest_bits);
      }
    });
  }

 private:
  template <int kPower>
  SHARD_DEVICE void AddTerms(uint32_t most, Warp<NormLane>* tile) {
    // The largest of ~(bits - 1), in which zero is the smallest number.
    const uint32_t least = ~tile->Max([](int, const NormLane& v) {
      uint32_t bits = 0;
      SHARD_UNROLL
      for (int k = 0; k < kNormPerLane; ++k) {
        const uint32_t one = ~(MagnitudeOf(v.x[k]) - 1);
        if (one > bits) bits = one;
      }
      return bits;
    }) + 1;
    const int exponent = ExponentOf(most);
    if (exponent - ExponentOf(least) <= kNormSpan) {
      return AddWindow<kPower, false>(exponent, {}, tile);
    }
    AddWide<kPower>(most, tile);
  }

  // Adds a tile of many exponents, in several passes.
  template <int kPower>
  SHARD_DEVICE void AddWide(uint32_t most, Warp<NormLane>* tile) {
    NormWindow window = {0, 0x7F800000};
    while (most != 0) {
      const int exponent = ExponentOf(most);
      const int last = exponent - kNormSpan;
      // Denormals have the exponent of the smallest normal numbers.
      window.lower = last <= -126 ? 0 : static_cast<uint32_t>(last + 127) << 23;
      AddWindow<kPower, true>(exponent, window, tile);
      window.upper = window.lower;
      most = tile->Max([&](int, const NormLane& v) {
        uint32_t bits = 0;
        SHARD_UNROLL
        for (int k = 0; k < kNormPerLane; ++k) {
          const uint32_t one = MagnitudeOf(v.x[k]);
          if (one < window.upper && one > bits) bits = one;
        }
        return bits;
      });
    }
  }

  // Adds |x| or x x of the values in the window, or of all.
  template <int kPower, bool kWindowed>
  SHARD_DEVICE void AddWindow(int exponent, const NormWindow& window,
                              Warp<NormLane>* tile) {
    const int top = kPower * (exponent + 1);
    const double first = AnchorOf(top);
    const double second = AnchorOf(top - kLevelBits);
    tile->Each([&](int, NormLane& v) {
      double high = first;
      double low = second;
      SHARD_UNROLL
      for (int k = 0; k < kNormPerLane; ++k) {
        const uint32_t bits = MagnitudeOf(v.x[k]);
        const bool has =
            !kWindowed || (window.lower <= bits && bits < window.upper);
        const auto x = static_cast<double>(FloatOf(has ? bits : 0));
        if constexpr (kPower == 1) {
          high += x;
        } else {
          const double after = MulAdd(x, x, high);
          low += MulAdd(x, x, -(after - high));
          high = after;
        }
      }
      v.taken[0] = Taken(high, first);
      v.taken[1] = Taken(low, second);
    });
    AddTaken<kPower>(top, tile);
  }

  // Adds (|x| / reference)^p, rounded to multiples of 2^-78.
  SHARD_DEVICE void AddPowers(Warp<NormLane>* tile) {
    // A term is at most 1, but for its error.
    constexpr int kTop = 1;
    static_assert(kLevelBits + kUnitBits - kTop >= 80);
    const double first = AnchorOf(kTop);
    const double second = AnchorOf(kTop - kLevelBits);
    tile->Each([&](int, NormLane& v) {
      double high = first;
      double low = second;
      // A power is many instructions, so few are unrolled. Values move to where
      // the loop finds them: an index that is no constant needs a stack.
      constexpr int kAtOnce = 2;
#ifdef __CUDACC__
#pragma unroll 1
#endif
      for (int done = 0; done < kNormPerLane; done += kAtOnce) {
        SHARD_UNROLL
        for (int k = 0; k < kAtOnce; ++k) {
          const auto x = static_cast<double>(FloatOf(MagnitudeOf(v.x[k])));
          const double term = RoundPower(Power(x / reference_, p_));
          const double after = high + term;
          low += term - (after - high);
          high = after;
        }
        SHARD_UNROLL
        for (int k = kAtOnce; k < kNormPerLane; ++k) v.x[k - kAtOnce] = v.x[k];
      }
      v.taken[0] = Taken(high, first);
      v.taken[1] = Taken(low, second);
    });
    AddTaken<2>(kTop, tile);
  }

  // Doubles from 2^-26 up are multiples of 2^-78, as sums with 2^-26 are.
  static SHARD_DEVICE double RoundPower(double term) {
    constexpr double kUnit = 0x1p-26;
    return term < kUnit ? (term + kUnit) - kUnit : term;
  }

  static SHARD_DEVICE int64_t Taken(double after, double before) {
    return static_cast<int64_t>(BitsOf(after) - BitsOf(before));
  }

  template <int kLevels>
  SHARD_DEVICE void AddTaken(int top, Warp<NormLane>* tile) {
    SHARD_UNROLL
    for (int level = 0; level < kLevels; ++level) {
      const int64_t sum =
          tile->Sum([&](int, const NormLane& v) { return v.taken[level]; });
      AddToLimbs(sum, top - level * kLevelBits - kUnitBits);
    }
  }

  // Adds value * 2^exponent. REQUIRES: a multiple of the lowest limb's unit.
  SHARD_DEVICE void AddToLimbs(int64_t value, int exponent) {
    int shift = exponent - ExactSum::kLowestExponent;
    if (shift < 0) {
      value >>= -shift;
      shift = 0;
    }
    const bool negative = value < 0;
    const uint64_t magnitude = negative ? 0 - static_cast<uint64_t>(value)
                                        : static_cast<uint64_t>(value);
    const int bit = shift % 32;
    const uint64_t low = magnitude << bit;
    // The bits that the shift has lost.
    const uint64_t high = magnitude >> 32 >> (32 - bit);
    limbs_.Each([&](int lane, uint64_t& limb) {
      const int at = lane - shift / 32;
      uint64_t part = 0;
      if (at == 0) part = low & 0xFFFFFFFF;
      if (at == 1) part = low >> 32;
      if (at == 2) part = high;
      limb += negative ? 0 - part : part;
    });
  }

  const NormType type_;
  const double p_;
  const double reference_;
  uint32_t largest_bits_ = 0;
  Warp<uint64_t> limbs_;
};

// Loads the tiles of a range and sums their sources.
class NormTiles {
 public:
  SHARD_DEVICE NormTiles(const AddToNormArgs& args) : args_(args) {
    const bool second = args.pass == NormPass::kSecond;
    reads_kept_ = second && args.kept != nullptr;
    num_sources_ = reads_kept_ ? 1 : args.sources.count;
    // A single source is what is kept.
    stores_ = args.kept != nullptr && num_sources_ > 1;
    uintptr_t all = AddressOf(args.kept);
    for (uint32_t w = 0; w < num_sources_; ++w) {
      all |= AddressOf(Source(w));
    }
    aligned_ = all % sizeof(Words4) == 0;
  }

  SHARD_DEVICE uint64_t count() const {
    return (args_.count + kNormTile - 1) / kNormTile;
  }

  SHARD_DEVICE void Load(uint64_t index, Warp<NormLane>* tile) const {
    if (args_.sources.dtype == DType::kF32) {
      LoadAs<DType::kF32>(index, tile);
    } else if (args_.sources.dtype == DType::kBF16) {
      LoadAs<DType::kBF16>(index, tile);
    } else {
      LoadAs<DType::kF16>(index, tile);
    }
    if (!stores_) return;
    tile->Each([&](int lane, NormLane& v) {
      SHARD_UNROLL
      for (int part = 0; part < kNormParts; ++part) {
        StoreRaw(Narrow(DType::kF32, v.x + part * kPerLane), DType::kF32,
                 args_.kept, TileOf(index, part), lane);
      }
    });
  }

 private:
  SHARD_DEVICE const void* Source(uint32_t w) const {
    return reads_kept_ ? args_.kept : args_.sources[w];
  }

  SHARD_DEVICE Tile TileOf(uint64_t index, int part) const {
    Tile tile;
    tile.first = static_cast<int64_t>(index * kNormTile) + part * kTile;
    const int64_t left = static_cast<int64_t>(args_.count) - tile.first;
    tile.begin = 0;
    tile.end = left >= kTile ? kTile : left > 0 ? static_cast<int>(left) : 0;
    tile.whole = aligned_ && tile.end == kTile;
    return tile;
  }

  template <DType kDType>
  SHARD_DEVICE void LoadAs(uint64_t index, Warp<NormLane>* tile) const {
    // One branch for all parts, so that their loads overlap.
    const bool whole = TileOf(index, kNormParts - 1).whole;
    tile->Each([&](int lane, NormLane& v) {
      if (whole) {
        LoadSum<kDType, true>(index, lane, v.x);
      } else {
        LoadSum<kDType, false>(index, lane, v.x);
      }
    });
  }

  template <DType kDType, bool kWhole>
  SHARD_DEVICE void LoadSum(uint64_t index, int lane, float* to) const {
    LoadSource<kDType, kWhole>(0, index, lane, to);
    for (uint32_t w = 1; w < num_sources_; ++w) {
      float other[kNormPerLane];
      LoadSource<kDType, kWhole>(w, index, lane, other);
      SHARD_UNROLL
      for (int k = 0; k < kNormPerLane; ++k) to[k] += other[k];
    }
  }

  template <DType kDType, bool kWhole>
  SHARD_DEVICE void LoadSource(uint32_t w, uint64_t index, int lane,
                               float* to) const {
    const void* const source = Source(w);
    Raw raw[kNormParts];
    SHARD_UNROLL
    for (int part = 0; part < kNormParts; ++part) {
      Tile tile = TileOf(index, part);
      if (kWhole) tile.whole = true;
      raw[part] = LoadRaw(kDType, source, tile, lane);
    }
    SHARD_UNROLL
    for (int part = 0; part < kNormParts; ++part) {
      Widen(kDType, raw[part], to + part * kPerLane);
    }
  }

  const AddToNormArgs& args_;
  uint32_t num_sources_;
  bool reads_kept_;
  bool stores_;
  bool aligned_;
};

// Adds what all warps have found to the sum, and leaves zeros.
SHARD_DEVICE void TakeNorm(NormScratch* scratch, NormSum* sum) {
  NormSum found;
  int64_t carry = 0;
  SHARD_UNROLL
  for (int i = 0; i < NormScratch::kNumLimbs; i += 2) {
    const int64_t low =
        carry + static_cast<int64_t>(AtomicTake(&scratch->limbs[i]));
    const int64_t high =
        (low >> 32) + static_cast<int64_t>(AtomicTake(&scratch->limbs[i + 1]));
    carry = high >> 32;
    found.terms.words[i / 2] = (static_cast<uint64_t>(low) & 0xFFFFFFFF) |
                               static_cast<uint64_t>(high) << 32;
  }
  found.largest_bits = AtomicTake(&scratch->largest_bits);
  MergeNorm(found, sum);
}

}  // namespace

SHARD_KERNEL(shard_add_to_norm, AddToNormArgs) {
  const StepBlock& block = *args.block;
  if (args.pass == NormPass::kSecond && !NeedsSecondPass(block)) return;
  const NormType type = NormTypeOf(block, args.pass);
  const double p = block.norm_p;
  const double reference = block.largest;
  const NormTiles tiles(args);
  OnEachWarpThenOnce(
      launch, &args.scratch->finished,
      [&](uint64_t warp, uint64_t warps) {
        NormAccumulator sum(type, p, reference);
        for (uint64_t i = warp; i < tiles.count(); i += warps) {
          Warp<NormLane> tile;
          tiles.Load(i, &tile);
          sum.Add(&tile);
        }
        sum.Flush(args.scratch);
      },
      [&] { TakeNorm(args.scratch, args.sum); });
}

SHARD_KERNEL(shard_finish_norm, FinishNormArgs) {
  Once([&] {
    NormSum all = {};
    for (uint32_t i = 0; i < args.count; ++i) MergeNorm(args.sums[i], &all);
    StepBlock block = *args.block;
    FinishNormWith(
        [&](NormType type, double p, double reference) {
          return FinishNormWith(DeviceMath(), type, p, reference, all);
        },
        args.pass, &block);
    args.block->largest = block.largest;
    args.block->grad_norm = block.grad_norm;
    args.block->scale = block.scale;
    args.block->skipped = block.skipped;
  });
}

}  // namespace shard::cuda
