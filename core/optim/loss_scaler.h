// SPDX-License-Identifier: Apache-2.0
//
// LossScaler: by how much the host multiplies its loss, so that gradients in
// fp16 do not vanish (Micikevicius et al., "Mixed Precision Training", ICLR
// 2018), from a text (grammar: core/base/spec.h):
//
//   ""                               no scaling: 1, always
//   static?scale=1024                1024, always
//   dynamic?init_scale=65536&growth_factor=2&backoff_factor=0.5&
//       growth_interval=2000&min_scale=1&max_scale=16777216
//
// Dynamic scaling tries how far it can go. A step that was skipped, because a
// gradient was not finite, multiplies the scale by backoff_factor; every
// growth_interval steps without one multiply it by growth_factor, and both
// start to count anew. The first four defaults, and that rule, are those of
// torch.amp.GradScaler. The bounds are ours: GradScaler has none but overflow,
// so that a run which diverged halves its scale until it is 0. 2^24 is the
// ceiling of apex.amp, and 1 the floor of DeepSpeed and of Megatron-LM; below 1
// scaling would do the opposite of what it is for.
//
// Invariant: the scale is a normal value of fp32, so the host multiplies by
// exactly what the engine divides by. It is a function of the text and of the
// steps that were skipped: ranks that agree on those have the same scale and
// need not send it.
//
// Thread-compatible.

#ifndef SHARD_CORE_OPTIM_LOSS_SCALER_H_
#define SHARD_CORE_OPTIM_LOSS_SCALER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace shard {

class LossScaler {
 public:
  // What checkpoints and state dicts keep, as the numbers kLossScaleKey and
  // kGoodStepsKey.
  struct State {
    double scale;
    // Since the scale changed or a step was skipped: GradScaler's growth
    // tracker.
    int64_t good_steps;

    // Takes one of those numbers; leaves the state as it is for another name,
    // and for good steps that are no count.
    void Take(std::string_view name, double value);
  };

  // No scaling.
  LossScaler() = default;

  // Every number is read to the nearest fp32. Allowed: scale and bounds are
  // normal numbers of fp32, 0 < min_scale <= init_scale <= max_scale,
  // growth_factor > 1, 0 < backoff_factor < 1, growth_interval >= 1. A static
  // scale needs its `scale`. Errors name key, value and what is allowed, or
  // list the known forms or keys.
  static StatusOr<LossScaler> Parse(std::string_view text);

  // For the loss of the step to come.
  double scale() const { return state_.scale; }

  // Whether there is any scaling, and whether skipped steps change it.
  bool active() const { return kind_ != Kind::kNone; }
  bool dynamic() const { return kind_ == Kind::kDynamic; }

  // After a step. Nothing happens unless the scale is dynamic.
  void Update(bool skipped);

  State state() const { return state_; }

  // Continues from `state`. kInvalidArgument, and no change, when this scaler
  // could not have got there: scale out of its bounds, good_steps outside
  // [0, growth_interval), or anything but its one state if it is not dynamic.
  Status Restore(const State& state);

  // Every key with its value; "" for no scaling.
  std::string ToString() const;

 private:
  enum class Kind { kNone, kStatic, kDynamic };

  Status CheckRanges() const;

  Kind kind_ = Kind::kNone;
  State state_ = {1.0, 0};
  double init_scale_ = 1.0;
  double growth_factor_ = 1.0;
  double backoff_factor_ = 1.0;
  int64_t growth_interval_ = 1;
  double min_scale_ = 1.0;
  double max_scale_ = 1.0;
};

}  // namespace shard

#endif  // SHARD_CORE_OPTIM_LOSS_SCALER_H_
