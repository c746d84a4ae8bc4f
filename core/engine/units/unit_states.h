// SPDX-License-Identifier: Apache-2.0
//
// UnitStates: the state in which a host uses each unit, and the gradients that
// are ready for the step. A call in the wrong order is an error that names the
// unit, its state and the state that the call needs.
//
//            Acquire(forward)
//   IDLE  ───────────────────────▶ FORWARD ───────── Release ──────▶ IDLE
//   IDLE  ── Acquire(backward) ──▶ BACKWARD_PRE ──── Release ──────▶ IDLE
//                                    │ GradsReady, or ParamReady of
//                                    ▼ the last of its parameters
//                                  BACKWARD_POST ─── Release ──────▶ IDLE
//
// Where gradients are kept whole they have memory at all times, so the
// gradients of a unit can become ready while the unit is IDLE.
//
// The gradients of this rank that count in a step, in every stage (HasGrad):
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
  // The host writes every element of the unit's gradients, so that the library
  // need not zero them before.
  kBackwardOverwrite = 3,
};

class UnitStates {
 public:
  enum class State { kIdle, kForward, kBackwardPre, kBackwardPost };

  // `whole_grads`: every rank keeps its gradients whole. `allow_missing`: a
  // parameter may have no gradient. The plan must outlive this.
  UnitStates(const Plan& plan, bool whole_grads, bool allow_missing);

  Status CheckUnit(int32_t unit) const;
  State state(int32_t unit) const { return at(unit).state; }
  // Returns the name in messages: "unit 'h.3' (7)" or "the root unit (0)".
  std::string Name(int32_t unit) const;
  // Returns the name of a state, such as "FORWARD".
  static std::string_view StateName(State state);

  Status CheckAcquire(int32_t unit, Pass pass) const;
  void Acquire(int32_t unit, Pass pass);
  Status CheckRelease(int32_t unit) const;
  // Ends the use of a unit. Sharded gradients of a unit in BACKWARD_PRE are
  // lost, declared or not.
  void Release(int32_t unit);

  // Declares the gradients of all parameters of the unit ready; or, after
  // ParamReady of some of them, those alone: the others have no gradient. With
  // `more` (accumulate) another backward pass adds to the gradients before the
  // step, and they do not count as ready for it.
  Status CheckGradsReady(int32_t unit) const;
  void GradsReady(int32_t unit, bool more);
  // Declares the gradient of one parameter ready. Returns whether it was the
  // last one of the unit: the caller then does what follows GradsReady.
  Status CheckParamReady(ParamId param) const;
  bool ParamReady(ParamId param);

  // Returns OK when no unit is in use.
  Status CheckAllIdle(std::string_view what) const;

  // Returns whether this rank declares its gradients; see above.
  bool declares() const { return declares_; }
  void BeginDeclaring() { declares_ = true; }
  // Returns whether this rank's gradient of a trainable parameter counts in the
  // next step.
  bool HasGrad(ParamId param) const {
    const auto p = static_cast<size_t>(param);
    return !declares_ || param_declared_[p] || param_ready_[p];
  }
  // Returns whether some parameters of the unit were declared by themselves in
  // this pass; GradsReady then means those alone.
  bool SomeDeclared(int32_t unit) const { return at(unit).params_ready > 0; }
  bool Declared(ParamId param) const {
    return param_declared_[static_cast<size_t>(param)];
  }

  // Returns whether any gradient was declared ready since the last step, under
  // accumulate too.
  bool any_ready() const { return any_ready_; }
  bool ready(int32_t unit) const { return at(unit).ready; }
  // Returns OK when the gradients of all units count in the next step; the
  // error names the units that lack some.
  Status CheckAllReady() const;
  // Forgets all ready declarations, after a step or to discard accumulated
  // gradients. A rank that declares goes on declaring.
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
  // Ends a pass. Gradients that were declared by parameter count (`counts`), or
  // are lost.
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
  // By ParamId: declared by itself, in a unit that did not become ready since
  // (param_declared_), or in one that did (param_ready_).
  std::vector<bool> param_declared_;
  std::vector<bool> param_ready_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_UNITS_UNIT_STATES_H_
