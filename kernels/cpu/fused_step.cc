// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/fused_step.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fused_step.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/cpu/convert-inl.h"
#include "kernels/cpu/gradients-inl.h"
#include "kernels/cpu/loop-inl.h"
#include "kernels/cpu/q8-inl.h"
#include "kernels/cpu/stream-inl.h"
#include "kernels/cpu/vector_arithmetic.h"
#include "kernels/formula/all.h"
#include "kernels/formula/state_kind.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Elements of a tile: those that share a scale in q8, and whose random bits are
// made together. Long enough that what is done once per tile does not count,
// and short enough that the processor overlaps the loads of one with the
// arithmetic of another (1024 lost up to a fifth where casts are many).
constexpr size_t kTile = 256;
static_assert(kTile == kRandomBlock && kTile == kQ8Block);

// A formula's update on fp32 arrays: the only loop that is compiled once per
// formula. g[i] is multiplied by `scale` first.
using UpdateLoop = void (*)(const void* scalars, const float* g, float scale,
                            float* param, float* const* states, size_t count);

// Elements [begin, count) in whole vectors of D; returns where it stopped.
template <class D, class F, template <class> class Rule>
HWY_INLINE size_t UpdateVectors(D d, const typename F::Scalars& scalars,
                                const float* g, float scale, float* param,
                                float* const* states, size_t begin,
                                size_t count) {
  using V = hn::Vec<D>;
  const Rule<VectorArithmetic<D>> rule(VectorArithmetic<D>(), scalars);
  const V factor = hn::Set(d, scale);
  const size_t lanes = hn::Lanes(d);
  // Local copies: the compiler cannot know that the stores below leave the
  // caller's array alone.
  float* state_of[kMaxStates] = {};
  for (int s = 0; s < F::kNumStates; ++s) state_of[s] = states[s];

  size_t i = begin;
  for (; i + lanes <= count; i += lanes) {
    V p = hn::LoadU(d, param + i);
    V state[kMaxStates];
    for (int s = 0; s < F::kNumStates; ++s) {
      state[s] = hn::LoadU(d, state_of[s] + i);
    }
    rule.Update(hn::Mul(hn::LoadU(d, g + i), factor), p, state);
    hn::StoreU(p, d, param + i);
    for (int s = 0; s < F::kNumStates; ++s) {
      hn::StoreU(state[s], d, state_of[s] + i);
    }
  }
  return i;
}

template <class F, template <class> class Rule>
void Update(const void* scalars, const float* g, float scale, float* param,
            float* const* states, size_t count) {
  const auto& s = *static_cast<const typename F::Scalars*>(scalars);
  const size_t done = UpdateVectors<hn::ScalableTag<float>, F, Rule>(
      hn::ScalableTag<float>(), s, g, scale, param, states, 0, count);
  UpdateVectors<hn::CappedTag<float, 1>, F, Rule>(
      hn::CappedTag<float, 1>(), s, g, scale, param, states, done, count);
}

// A formula at some step.
struct Call {
  UpdateLoop update;
  const void* scalars;
  double gradient_sign;
  int num_states;
  // NULL: they are fp32.
  const StateKind* state_kinds;
};

// Element i of a tensor.
HWY_INLINE void* At(void* tensor, DType dtype, size_t i) {
  return static_cast<char*>(tensor) + i * DTypeSize(dtype);
}
HWY_INLINE const void* At(const void* tensor, DType dtype, size_t i) {
  return static_cast<const char*>(tensor) + i * DTypeSize(dtype);
}

// State s of elements [begin, begin + n) as fp32.
HWY_INLINE void WidenState(const Call& call, const FusedStepArgs& args, int s,
                           size_t begin, size_t n, float* to) {
  const void* from = At(args.states[s], args.state_dtype, begin);
  if (args.state_dtype == DType::kQ8) {
    DecodeBlocks(call.state_kinds[s], static_cast<const uint8_t*>(from),
                 args.scales[s] + begin / kQ8Block, to, n);
  } else {
    WidenTensor(args.state_dtype, from, to, n);
  }
}

// The 16 random bits of each element of a block, for all tensors that are
// rounded stochastically.
class BlockBits {
 public:
  HWY_INLINE BlockBits(const Call& call, const FusedStepArgs& args)
      : keys_(args.random.seed),
        first_pair_(args.stochastic_rounding && args.master == nullptr ? 0 : 1),
        end_pair_(args.state_dtype == DType::kF32 || call.num_states == 0
                      ? 1
                      : RandomPair(TensorOfState(call.num_states - 1)) + 1) {}

  // The block of stream.first_element.
  HWY_INLINE void Make(const RandomStream& stream) {
    for (uint32_t pair = first_pair_; pair < end_pair_; ++pair) {
      MakeRandomWords(keys_, stream, pair, bits_[pair]);
    }
  }

  // The bits of the block's element `offset` and up.
  // Valid until the next call.
  HWY_INLINE const uint16_t* Of(uint32_t tensor, size_t offset) {
    uint16_t* const words = bits_[RandomPair(tensor)];
    if (IsFirstOfPair(tensor)) return words + offset;
    SwapBytes(words, swapped_);
    return swapped_ + offset;
  }

 private:
  static constexpr size_t kPairs =
      RandomPair(TensorOfState(kMaxStates - 1)) + 1;

  RandomKeys keys_;
  uint32_t first_pair_;
  uint32_t end_pair_;
  HWY_ALIGN uint16_t bits_[kPairs][kRandomBlock];
  HWY_ALIGN uint16_t swapped_[kRandomBlock];
};

// `offset` is that of element `begin` in its block.
HWY_INLINE void NarrowState(const Call& call, const FusedStepArgs& args, int s,
                            size_t begin, size_t n, size_t offset,
                            BlockBits* random, const float* from) {
  void* to = At(args.states[s], args.state_dtype, begin);
  const StateKind kind = call.state_kinds[s];
  const bool nearest = kind == StateKind::kSquareMaximum;
  if (args.state_dtype == DType::kQ8) {
    EncodeBlock(kind, from, n,
                nearest ? nullptr : random->Of(TensorOfState(s), offset),
                static_cast<uint8_t*>(to), args.scales[s] + begin / kQ8Block);
  } else if (nearest) {
    NarrowToNearest(args.state_dtype, from, to, n);
  } else {
    NarrowStochastically(from, to, n, random->Of(TensorOfState(s), offset));
  }
}

void StepTiles(const Call& call, const FusedStepArgs& args) {
  HWY_ALIGN float gradient_tile[kTile];
  HWY_ALIGN float param_tile[kTile];
  HWY_ALIGN float state_tiles[kMaxStates][kTile];
  const bool clips = args.clip_value < std::numeric_limits<double>::infinity();
  // Then its only change is to be multiplied, which the update does.
  const bool one_gradient = args.gradients.count == 1 && !clips;
  const bool gradient_in_place =
      args.gradients.dtype == DType::kF32 && one_gradient;
  const bool states_in_place = args.state_dtype == DType::kF32;
  const bool has_master = args.master != nullptr;
  const bool param_in_place = !has_master && args.param_dtype == DType::kF32;
  // Tiles are for what goes through the scratch. Where nothing does, one loop
  // is faster: SGD moves 12 bytes per element, and would feel the calls.
  const bool all_in_place =
      gradient_in_place && param_in_place && states_in_place;
  const size_t tile = all_in_place ? args.count : kTile;
  // They end where blocks of random bits do, which are then made once.
  size_t offset = static_cast<size_t>(args.random.first_element) % kTile;
  size_t n = all_in_place ? args.count : kTile - offset;
  BlockBits random(call, args);
  RandomStream stream = args.random;
  for (size_t begin = 0; begin < args.count; begin += n, n = tile, offset = 0) {
    n = std::min(n, args.count - begin);
    stream.first_element =
        args.random.first_element + static_cast<int64_t>(begin);

    const float* g = gradient_tile;
    double scale = call.gradient_sign;
    if (one_gradient) scale *= args.gradient_scale;
    if (gradient_in_place) {
      g = static_cast<const float*>(args.gradients.data[0]) +
          args.gradients_begin + begin;
    } else if (one_gradient) {
      WidenTensor(args.gradients.dtype,
                  At(args.gradients.data[0], args.gradients.dtype,
                     args.gradients_begin + begin),
                  gradient_tile, n);
    } else {
      SumSources(args.gradients, args.gradients_begin + begin, n,
                 args.gradient_scale, args.clip_value, gradient_tile);
    }
    void* const param = At(args.param, args.param_dtype, begin);
    float* p = param_tile;
    if (has_master) {
      p = args.master + begin;
    } else if (param_in_place) {
      p = static_cast<float*>(param);
    } else {
      WidenTensor(args.param_dtype, param, param_tile, n);
    }
    float* states[kMaxStates] = {};
    for (int s = 0; s < call.num_states; ++s) {
      if (states_in_place) {
        states[s] = static_cast<float*>(args.states[s]) + begin;
      } else {
        states[s] = state_tiles[s];
        WidenState(call, args, s, begin, n, states[s]);
      }
    }

    call.update(call.scalars, g, static_cast<float>(scale), p, states, n);

    random.Make(stream);
    if (has_master) {
      NarrowToNearest(args.param_dtype, p, param_tile, n);
      StreamCopy(param_tile, param, n * DTypeSize(args.param_dtype));
    } else if (args.stochastic_rounding) {
      NarrowStochastically(p, param, n, random.Of(kParamTensor, offset));
    } else if (!param_in_place) {
      NarrowToNearest(args.param_dtype, p, param, n);
    }
    if (!states_in_place) {
      for (int s = 0; s < call.num_states; ++s) {
        NarrowState(call, args, s, begin, n, offset, &random, states[s]);
      }
    }
  }
  if (has_master) hwy::FlushStream();
}

template <class F, template <class> class Rule>
HWY_INLINE void Step(const double* hypers, int64_t step,
                     const FusedStepArgs& args) {
  const typename F::Scalars scalars = F::Prepare(hypers, step);
  Call call = {Update<F, Rule>, &scalars, scalars.gradient_sign, F::kNumStates,
               nullptr};
  if constexpr (HasNarrowStates<F>) call.state_kinds = F::kStateKinds;
  StepTiles(call, args);
}

void FusedStep(Formula formula, const double* hypers, int64_t step,
               const FusedStepArgs& args) {
  switch (formula) {
#define SHARD_STEP_CASE(Name)                   \
  case Formula::k##Name:                        \
    Step<Name, Name##Rule>(hypers, step, args); \
    return;
    SHARD_ELEMENT_FORMULAS(SHARD_STEP_CASE)
#undef SHARD_STEP_CASE
    default:
      return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard {

HWY_EXPORT(FusedStep);

void FusedStep(Formula formula, const double* hypers, int64_t step,
               const FusedStepArgs& args) {
  HWY_DYNAMIC_DISPATCH(FusedStep)(formula, hypers, step, args);
}

}  // namespace shard
#endif  // HWY_ONCE
