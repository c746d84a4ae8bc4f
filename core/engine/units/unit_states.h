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
// Which gradients of this rank count in a step, in every stage (HasGrad):
//   - From its first acquire for a backward pass, or its first declaration, on,
//     a rank declares. Those gradients count that it declared since the last
//     step, in any pass, and no others, whatever lies there. A step in which it
//     declares none has none of its gradients.
//   - A rank that has done neither, as hosts with a simple loop, has all of
//     them, as they lie there. Where gradients are sharded they have no place
//     outside of a backward pass, so every rank declares from the beginning.
//
// Pure bookkeeping. Thread-compatible.

#ifndef SHARD_CORE_ENGINE_UNITS_UNIT_STATES_H_
#define SHARD_CORE_ENGINE_UNITS_UNIT_STATES_H_

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
  // From BACKWARD_PRE: gradients that are sharded are gone, declared or not.
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

  // Whether this rank declares its gradients; see above.
  bool declares() const { return declares_; }
  void BeginDeclaring() { declares_ = true; }
  // Whether this rank's gradient of a trainable parameter counts in the next
  // step.
  bool HasGrad(ParamId param) const {
    const auto p = static_cast<size_t>(param);
    return !declares_ || param_declared_[p] || param_ready_[p];
  }
  // Whether some parameters of the unit were declared in this pass, by
  // themselves; then GradsReady means those.
  bool SomeDeclared(int32_t unit) const { return at(unit).params_ready > 0; }
  bool Declared(ParamId param) const {
    return param_declared_[static_cast<size_t>(param)];
  }

  // Whether any gradient was declared ready since the last step, under no_sync
  // too.
  bool any_ready() const { return any_ready_; }
  bool ready(int32_t unit) const { return at(unit).ready; }
  // OK when the gradients of all units count in the next step; else names the
  // units whose do not.
  Status CheckAllReady() const;
  // After a step, or to throw accumulated gradients away. A rank that declares
  // goes on declaring.
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
  // What was declared of single parameters is a gradient (`counts`), or gone.
  void EndPass(int32_t unit, bool counts);
  // Calls `visit(ParamId)` for the trainable parameters of the unit.
  template <typename Visit>
  void ForEachTrainable(int32_t unit, Visit visit) const;

  const Plan& plan_;
  const bool whole_grads_;
  const bool allow_missing_;
  bool declares_;
  bool any_ready_ = false;
  std::vector<Unit> units_;
  // By ParamId: declared by itself, in a unit that did not become ready since;
  // and in one that did.
  std::vector<bool> param_declared_;
  std::vector<bool> param_ready_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_UNITS_UNIT_STATES_H_
