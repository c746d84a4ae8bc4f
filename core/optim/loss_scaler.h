// SPDX-License-Identifier: Apache-2.0
//
// LossScaler: the factor by which the host multiplies its loss, so that
// gradients in fp16 do not vanish (Micikevicius et al., "Mixed Precision
// Training", ICLR 2018). It is made from a text (grammar: core/base/spec.h):
//
//   ""                               no scaling: 1, always
//   static?scale=1024                1024, always
//   dynamic?init_scale=65536&growth_factor=2&backoff_factor=0.5&
//       growth_interval=2000&min_scale=1&max_scale=16777216
//
// Dynamic scaling searches for the largest scale that works. A step that was
// skipped, because a gradient was not finite, multiplies the scale by
// backoff_factor; growth_interval steps in a row without a skipped one multiply
// it by growth_factor; both restart the count. That rule and the first four
// defaults are those of torch.amp.GradScaler. The bounds are libshard's:
// GradScaler has none but overflow, so a run that diverged halves its scale
// until it is 0. 2^24 is the ceiling of apex.amp, and 1 the floor of DeepSpeed
// and of Megatron-LM; a scale below 1 would do the opposite of its purpose.
//
// Invariant: the scale is a normal value of fp32, so the host multiplies by
// exactly the number that the engine divides by. The scale is a function of the
// text and of the steps that were skipped: ranks that agree on those have the
// same scale and need not send it.
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
  // The state that checkpoints and state dicts keep, as the numbers
  // kLossScaleKey and kGoodStepsKey.
  struct State {
    double scale;
    // Steps since the scale changed or a step was skipped: GradScaler's growth
    // tracker.
    int64_t good_steps;

    // Sets the member that `name` stands for. Another name, or good steps that
    // are no count, leave the state unchanged.
    void Take(std::string_view name, double value);
  };

  // Makes a scaler that does not scale.
  LossScaler() = default;

  // Parses the text. Every number is rounded to the nearest fp32. Allowed:
  // scale and bounds are normal numbers of fp32, 0 < min_scale <= init_scale <=
  // max_scale, growth_factor > 1, 0 < backoff_factor < 1, growth_interval >= 1.
  // A static scale needs its `scale`. Errors name key, value and allowed
  // values, or list the known forms or keys.
  static StatusOr<LossScaler> Parse(std::string_view text);

  // Returns the scale for the loss of the next step.
  double scale() const { return state_.scale; }

  // Return whether there is any scaling, and whether skipped steps change the
  // scale.
  bool active() const { return kind_ != Kind::kNone; }
  bool dynamic() const { return kind_ == Kind::kDynamic; }

  // Updates the scale after a step. Does nothing unless the scale is dynamic.
  void Update(bool skipped);

  State state() const { return state_; }

  // Continues from `state`. Returns kInvalidArgument, and changes nothing, when
  // this scaler could not have reached it: a scale out of its bounds,
  // good_steps outside [0, growth_interval), or any state but the one of a
  // scaler that is not dynamic.
  Status Restore(const State& state);

  // Returns every key with its value; "" for no scaling.
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
