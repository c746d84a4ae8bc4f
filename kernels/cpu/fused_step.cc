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
// made together. Enough that the work per tile does not count, and few enough
// that the processor overlaps the loads of one tile with the arithmetic of
// another (1024 lost up to a fifth where there are many casts).
constexpr size_t kTile = 256;
static_assert(kTile == kRandomBlock && kTile == kQ8Block);

// Runs a formula's update on fp32 arrays: the only loop that is compiled once
// per formula. Multiplies g[i] by `scale` first.
using UpdateLoop = void (*)(const void* scalars, const float* g, float scale,
                            float* param, float* const* states, size_t count);

// Updates elements [begin, count) in whole vectors of D; returns the first
// element not done.
template <class D, class F, template <class> class Rule>
HWY_INLINE size_t UpdateVectors(D d, const typename F::Scalars& scalars,
                                const float* g, float scale, float* param,
                                float* const* states, size_t begin,
                                size_t count) {
  using V = hn::Vec<D>;
  const Rule<VectorArithmetic<D>> rule(VectorArithmetic<D>(), scalars);
  const V factor = hn::Set(d, scale);
  const size_t lanes = hn::Lanes(d);
  // Local copies, because the compiler must assume that the stores below change
  // the caller's array.
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
  // Without remaining elements, not even the constants are made.
  if (done == count) return;
  UpdateVectors<hn::CappedTag<float, 1>, F, Rule>(
      hn::CappedTag<float, 1>(), s, g, scale, param, states, done, count);
}

// A formula at one step.
struct Call {
  UpdateLoop update;
  const void* scalars;
  double gradient_sign;
  int num_states;
  // NULL when the states are fp32.
  const StateKind* state_kinds;
};

// Returns the address of element i of a tensor, with `size` bytes per element.
HWY_INLINE void* At(void* tensor, size_t size, size_t i) {
  return static_cast<char*>(tensor) + i * size;
}
HWY_INLINE const void* At(const void* tensor, size_t size, size_t i) {
  return static_cast<const char*>(tensor) + i * size;
}

// The random words of a block, for all tensors that are rounded stochastically.
class BlockWords {
 public:
  HWY_INLINE BlockWords(const Call& call, const FusedStepArgs& args)
      : keys_(args.random),
        first_pair_(args.stochastic_rounding && args.master == nullptr ? 0 : 1),
        end_pair_(1) {
    if (args.state_dtype == DType::kF32) return;
    for (int s = 0; s < call.num_states; ++s) {
      if (IsRoundedStochastically(call.state_kinds[s])) {
        end_pair_ = RandomPair(TensorOfState(s)) + 1;
      }
    }
  }

  // Makes the words of elements [begin, end) of the block that has `element`.
  HWY_INLINE void Make(int64_t element, size_t begin, size_t end) {
    for (uint32_t pair = first_pair_; pair < end_pair_; ++pair) {
      MakeRandomWords(keys_, element, pair, begin, end, words_[pair]);
    }
  }

  HWY_INLINE const uint16_t* of(uint32_t tensor) const {
    return words_[RandomPair(tensor)];
  }

 private:
  static constexpr size_t kPairs =
      RandomPair(TensorOfState(kMaxStates - 1)) + 1;

  RandomKeys keys_;
  uint32_t first_pair_;
  uint32_t end_pair_;
  HWY_ALIGN uint16_t words_[kPairs][kRandomBlock];
};

// Steps the tiles of a call, one at a time.
class TileStepper {
 public:
  HWY_INLINE TileStepper(const Call& call, const FusedStepArgs& args)
      : call_(call),
        args_(args),
        gradient_size_(DTypeSize(args.gradients.dtype)),
        param_size_(DTypeSize(args.param_dtype)),
        state_size_(DTypeSize(args.state_dtype)),
        words_(call, args) {
    const bool clips =
        args.clip_value < std::numeric_limits<double>::infinity();
    // A single gradient is only multiplied, which the update does.
    one_gradient_ = args.gradients.count == 1 && !clips;
    gradient_in_place_ = args.gradients.dtype == DType::kF32 && one_gradient_;
    states_in_place_ = args.state_dtype == DType::kF32;
    has_master_ = args.master != nullptr;
    param_in_place_ = !has_master_ && args.param_dtype == DType::kF32;
    const double factor = one_gradient_ ? args.gradient_scale : 1;
    scale_ = static_cast<float>(call.gradient_sign * factor);
  }

  HWY_INLINE bool all_in_place() const {
    return gradient_in_place_ && param_in_place_ && states_in_place_;
  }

  // Steps all elements. REQUIRES: all_in_place().
  HWY_INLINE void StepInPlace() {
    float* states[kMaxStates] = {};
    for (int s = 0; s < call_.num_states; ++s) {
      states[s] = static_cast<float*>(args_.states[s]);
    }
    call_.update(call_.scalars,
                 static_cast<const float*>(args_.gradients.data[0]) +
                     args_.gradients_begin,
                 scale_, static_cast<float*>(args_.param), states, args_.count);
  }

  // Steps elements [begin, begin + n), the first of which is the block's
  // element `offset`. REQUIRES: offset + n <= kTile.
  HWY_INLINE void Step(size_t begin, size_t n, size_t offset) {
    const float* g = gradient_tile_;
    if (gradient_in_place_) {
      g = static_cast<const float*>(args_.gradients.data[0]) +
          args_.gradients_begin + begin;
    } else if (one_gradient_) {
      WidenTensor(args_.gradients.dtype,
                  At(args_.gradients.data[0], gradient_size_,
                     args_.gradients_begin + begin),
                  gradient_tile_, n);
    } else {
      SumSources(args_.gradients, args_.gradients_begin + begin, n,
                 args_.gradient_scale, args_.clip_value, gradient_tile_);
    }
    void* const param = At(args_.param, param_size_, begin);
    float* p = param_tile_;
    if (has_master_) {
      p = args_.master + begin;
    } else if (param_in_place_) {
      p = static_cast<float*>(param);
    } else {
      WidenTensor(args_.param_dtype, param, param_tile_, n);
    }
    float* states[kMaxStates] = {};
    for (int s = 0; s < call_.num_states; ++s) {
      if (states_in_place_) {
        states[s] = static_cast<float*>(args_.states[s]) + begin;
      } else {
        states[s] = state_tiles_[s];
        WidenState(s, begin, n, states[s]);
      }
    }

    call_.update(call_.scalars, g, scale_, p, states, n);

    // Placed before the random words, which depend on nothing: the processor
    // makes them while the maxima and divisions of a scale finish.
    if (args_.state_dtype == DType::kQ8) MakeScales(begin, n, states);
    words_.Make(args_.random.first_element + static_cast<int64_t>(begin),
                offset, offset + n);
    if (has_master_) {
      NarrowToNearest(args_.param_dtype, p, param_tile_, n);
      StreamCopy(param_tile_, param, n * param_size_);
    } else if (args_.stochastic_rounding) {
      NarrowStochastically(p, param, n, kParamTensor,
                           words_.of(kParamTensor) + offset);
    } else if (!param_in_place_) {
      NarrowToNearest(args_.param_dtype, p, param, n);
    }
    if (states_in_place_) return;
    for (int s = 0; s < call_.num_states; ++s) {
      NarrowState(s, begin, n, offset, states[s]);
    }
  }

 private:
  // Converts state s of elements [begin, begin + n) to fp32.
  HWY_INLINE void WidenState(int s, size_t begin, size_t n, float* to) const {
    const void* from = At(args_.states[s], state_size_, begin);
    if (args_.state_dtype == DType::kQ8) {
      DecodeBlocks(call_.state_kinds[s], static_cast<const uint8_t*>(from),
                   args_.scales[s] + begin / kQ8Block, to, n);
    } else {
      WidenTensor(args_.state_dtype, from, to, n);
    }
  }

  // Makes the scales for the elements that NarrowState will encode.
  HWY_INLINE void MakeScales(size_t begin, size_t n,
                             const float* const* states) const {
    for (int s = 0; s < call_.num_states; ++s) {
      args_.scales[s][begin / kQ8Block] =
          ScaleOfBlock(call_.state_kinds[s], states[s], n);
    }
  }

  // Converts back from fp32. `offset` is that of element `begin` in its block.
  HWY_INLINE void NarrowState(int s, size_t begin, size_t n, size_t offset,
                              const float* from) const {
    void* to = At(args_.states[s], state_size_, begin);
    const StateKind kind = call_.state_kinds[s];
    const uint32_t tensor = TensorOfState(s);
    const bool nearest = !IsRoundedStochastically(kind);
    if (args_.state_dtype == DType::kQ8) {
      EncodeBlock(kind, from, args_.scales[s][begin / kQ8Block], n, tensor,
                  nearest ? nullptr : words_.of(tensor) + offset,
                  static_cast<uint8_t*>(to));
    } else if (nearest) {
      NarrowToNearest(args_.state_dtype, from, to, n);
    } else {
      NarrowStochastically(from, to, n, tensor, words_.of(tensor) + offset);
    }
  }

  const Call& call_;
  const FusedStepArgs& args_;
  // Bytes per element.
  const size_t gradient_size_;
  const size_t param_size_;
  const size_t state_size_;
  BlockWords words_;
  bool one_gradient_;
  bool gradient_in_place_;
  bool states_in_place_;
  bool has_master_;
  bool param_in_place_;
  float scale_;
  HWY_ALIGN float gradient_tile_[kTile];
  HWY_ALIGN float param_tile_[kTile];
  HWY_ALIGN float state_tiles_[kMaxStates][kTile];
};

void StepTiles(const Call& call, const FusedStepArgs& args) {
  TileStepper stepper(call, args);
  // Tiles are for data that passes through the scratch. Without such data one
  // loop is faster: SGD moves 12 bytes per element, so the calls would show.
  if (stepper.all_in_place()) return stepper.StepInPlace();
  // Tiles end at the ends of blocks of random bits, so that each block is made
  // once.
  size_t offset = static_cast<size_t>(args.random.first_element) % kTile;
  size_t begin = 0;
  while (begin < args.count) {
    const size_t n = std::min(kTile - offset, args.count - begin);
    if (n == kTile) {
      // A loop whose length the compiler knows needs no code for remainders.
      stepper.Step(begin, kTile, 0);
    } else {
      stepper.Step(begin, n, offset);
    }
    begin += n;
    offset = 0;
  }
  if (args.master != nullptr) hwy::FlushStream();
}

template <class F, template <class> class Rule>
HWY_INLINE void Step(const void* prepared, const FusedStepArgs& args) {
  // A copy, because stores to tensors cannot change it.
  const auto scalars = *static_cast<const typename F::Scalars*>(prepared);
  Call call = {Update<F, Rule>, &scalars, scalars.gradient_sign, F::kNumStates,
               nullptr};
  if constexpr (HasNarrowStates<F>) call.state_kinds = F::kStateKinds;
  StepTiles(call, args);
}

void FusedStep(Formula formula, const void* scalars,
               const FusedStepArgs& args) {
  switch (formula) {
#define SHARD_STEP_CASE(Name)              \
  case Formula::k##Name:                   \
    Step<Name, Name##Rule>(scalars, args); \
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

void FusedStep(Formula formula, const void* scalars,
               const FusedStepArgs& args) {
  HWY_DYNAMIC_DISPATCH(FusedStep)(formula, scalars, args);
}

}  // namespace shard
#endif  // HWY_ONCE
