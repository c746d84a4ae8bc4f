// SPDX-License-Identifier: Apache-2.0
//
// Schedule: the learning rate of every step, computed from a text and nothing
// else. A schedule has no state, so a checkpoint need not save any, and every
// rank has the same rate without communication (grammar: core/base/spec.h).
//
// Steps t count from 1, as the engine's do. W is `warmup` (0 by default), T is
// `total`, D is `decay`; all are steps. Every kind has
//
//   t <= W:  lr t / W                                     step W has lr itself
//
// and after that
//
//   constant?lr=&warmup=
//       lr
//   linear?lr=&min_lr=&warmup=&total=
//       min_lr + (lr - min_lr) (1 - u)                    u = (t - W) / (T - W)
//   cosine?lr=&min_lr=&warmup=&total=
//       min_lr + (lr - min_lr) (1 + cos(pi u)) / 2        u as for linear
//       Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm
//       Restarts", ICLR 2017, without restarts.
//   inverse_sqrt?lr=&min_lr=&warmup=
//       max(min_lr, lr sqrt(max(W, 1) / t))
//       Vaswani et al., "Attention Is All You Need", NeurIPS 2017.
//   wsd?lr=&min_lr=&warmup=&total=&decay=&shape=
//       (warm-up, stable, decay)
//       lr                                                t <= T - D
//       min_lr + (lr - min_lr) f(u)                       u = (t - (T - D)) / D
//       shape=linear: f = 1 - u; 1-sqrt: 1 - sqrt(u); cosine: as above
//       Hu et al., "MiniCPM", COLM 2024; 1-sqrt: Hagele et al., "Scaling Laws
//       and Compute-Optimal Training Beyond Fixed Training Durations", NeurIPS
//       2024.
//
// Kinds with `total` end at min_lr, in step T (at lr where W is T), and keep
// the rate of step T afterwards. After the warm-up a rate never rises, and
// stays in [min_lr, lr].
//
// Immutable, so thread-safe.

#ifndef SHARD_CORE_OPTIM_SCHEDULE_H_
#define SHARD_CORE_OPTIM_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace shard {

class Schedule {
 public:
  // Parses the text. lr is needed, and total and decay where the kind has them;
  // min_lr and warmup are 0 by default, shape is linear. Allowed: 0 <= min_lr
  // <= lr, 0 <= warmup <= total, 1 <= total, 1 <= decay <= total - warmup.
  // Errors name key, value and allowed values, or list the known kinds or keys.
  static StatusOr<Schedule> Parse(std::string_view text);

  // Returns the learning rate of a step. REQUIRES: step >= 1.
  double Lr(int64_t step) const;

  // Returns every key of the kind with its value, so that equal schedules have
  // equal texts: "cosine?lr=3e-04&min_lr=3e-05&warmup=2000&total=100000".
  std::string ToString() const;

 private:
  enum class Kind { kConstant, kLinear, kCosine, kInverseSqrt, kWsd };
  enum class Shape { kLinear, kOneMinusSqrt, kCosine };
  struct KindInfo;
  static const KindInfo kKinds[];
  static const char* const kShapes[];

  Schedule() = default;
  const KindInfo& info() const;
  Status CheckRanges() const;

  // Returns the part of (lr - min_lr) that is left after the part `progress`,
  // in [0, 1], of a decay: 1 at 0, and 0 at 1.
  static double Remaining(Shape shape, double progress);

  Kind kind_ = Kind::kConstant;
  double lr_ = 0;
  double min_lr_ = 0;
  int64_t warmup_ = 0;
  int64_t total_ = 0;
  int64_t decay_ = 0;
  Shape shape_ = Shape::kLinear;
};

}  // namespace shard

#endif  // SHARD_CORE_OPTIM_SCHEDULE_H_
