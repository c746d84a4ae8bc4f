// SPDX-License-Identifier: Apache-2.0
//
// UnitStates: what a host is doing with each unit, and whose gradients are
// ready for the step. Every call in the wrong order is an error that names the
// unit, the state it is in and the one that is needed.
//
//            Acquire(forward)
//   IDLE  ───────────────────────▶ FORWARD ───────── Release ──────▶ IDLE
//   IDLE  ── Acquire(backward) ──▶ BACKWARD_PRE ──── Release ──────▶ IDLE
//                                    │ GradsReady, or ParamReady of
//                                    ▼ the last of its parameters
//                                  BACKWARD_POST ─── Release ──────▶ IDLE
//
// Where gradients are kept whole they have a place at all times, so a unit's
// can become ready while it is IDLE.
//
// Pure bookkeeping. Thread-compatible.

#ifndef SHARD_CORE_ENGINE_UNIT_STATES_H_
#define SHARD_CORE_ENGINE_UNIT_STATES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/flat/plan.h"

namespace shard {

// The values are those of SHARD_PASS_* in shard.h.
enum class Pass : int32_t {
  kForward = 1,
  kBackward = 2,
  // The host writes every element of the unit's gradients, so that they need
  // not be zeros before.
  kBackwardOverwrite = 3,
};

class UnitStates {
 public:
  enum class State { kIdle, kForward, kBackwardPre, kBackwardPost };

  // `whole_grads`: every rank keeps its gradients whole. `allow_missing`: a
  // parameter may have none. The plan must outlive this.
  UnitStates(const Plan& plan, bool whole_grads, bool allow_missing);

  Status CheckUnit(int32_t unit) const;
  State state(int32_t unit) const { return at(unit).state; }
  // "unit 'h.3' (7)"; "the root unit (0)".
  std::string Name(int32_t unit) const;
  // "FORWARD".
  static std::string_view StateName(State state);

  Status CheckAcquire(int32_t unit, Pass pass) const;
  void Acquire(int32_t unit, Pass pass);
  Status CheckRelease(int32_t unit) const;
  void Release(int32_t unit);

  // Of all parameters of the unit; or, after ParamReady of some of them, the
  // others have none. With `more` (no_sync) another backward pass adds to them
  // before the step, and they do not count as ready for it.
  Status CheckGradsReady(int32_t unit) const;
  void GradsReady(int32_t unit, bool more);
  // Of one parameter; `unit_ready` when it was the unit's last. The host then
  // goes on as if by GradsReady.
  Status CheckParamReady(ParamId param) const;
  bool ParamReady(ParamId param);

  // OK when no unit is in use.
  Status CheckAllIdle(std::string_view what) const;

  // Whether any gradient was declared ready since the last step, under no_sync
  // too. If none was, and gradients are kept whole, all of them count as ready.
  bool any_ready() const { return any_ready_; }
  bool ready(int32_t unit) const { return at(unit).ready; }
  // Of the parameter, by itself or with its unit, in any pass since the last
  // step.
  bool ParamIsReady(ParamId param) const {
    const auto p = static_cast<size_t>(param);
    return param_declared_[p] || param_ready_[p];
  }
  // OK when the gradients of all units are ready; else names those that are
  // not.
  Status CheckAllReady() const;
  // After a step, or to throw accumulated gradients away.
  void ClearReady();

 private:
  struct Unit {
    State state = State::kIdle;
    bool ready = false;        // For the step.
    int32_t trainable = 0;     // Parameters.
    int32_t params_ready = 0;  // In this backward pass.
  };
  const Unit& at(int32_t unit) const {
    return units_[static_cast<size_t>(unit)];
  }
  Unit& at(int32_t unit) { return units_[static_cast<size_t>(unit)]; }
  Status CheckCanBeReady(int32_t unit) const;
  // Calls `visit(ParamId)` for the trainable parameters of the unit.
  template <typename Visit>
  void ForEachTrainable(int32_t unit, Visit visit) const;

  const Plan& plan_;
  const bool whole_grads_;
  const bool allow_missing_;
  bool any_ready_ = false;
  std::vector<Unit> units_;
  // By ParamId: declared by itself, in a unit that did not become ready since;
  // and in one that did.
  std::vector<bool> param_declared_;
  std::vector<bool> param_ready_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_UNIT_STATES_H_
