// SPDX-License-Identifier: Apache-2.0

#include "core/engine/units/unit_states.h"

#include <cstddef>

#include "core/base/strings.h"

namespace shard {

template <typename Visit>
void UnitStates::ForEachTrainable(int32_t unit, Visit visit) const {
  for (const int32_t b : plan_.unit(unit).buffers) {
    const FlatBufferPlan& buffer = plan_.buffer(b);
    if (!buffer.trainable) continue;
    for (const Slot& slot : buffer.layout.slots()) visit(slot.param);
  }
}

UnitStates::UnitStates(const Plan& plan, bool whole_grads, bool allow_missing)
    : plan_(plan),
      whole_grads_(whole_grads),
      allow_missing_(allow_missing),
      declares_(!whole_grads),
      units_(plan.units().size()),
      param_declared_(plan.model().params().size()),
      param_ready_(plan.model().params().size()) {
  for (size_t u = 0; u < units_.size(); ++u) {
    ForEachTrainable(static_cast<int32_t>(u),
                     [&](ParamId) { ++units_[u].trainable; });
  }
}

std::string UnitStates::Name(int32_t unit) const {
  const std::string fqn = plan_.model().ModuleFqn(plan_.unit(unit).module);
  return fqn.empty() ? StrCat("the root unit (", unit, ")")
                     : StrCat("unit '", fqn, "' (", unit, ")");
}

std::string_view UnitStates::StateName(State state) {
  switch (state) {
    case State::kIdle:
      return "IDLE";
    case State::kForward:
      return "FORWARD";
    case State::kBackwardPre:
      return "BACKWARD_PRE";
    case State::kBackwardPost:
      return "BACKWARD_POST";
  }
  return "unknown";
}

Status UnitStates::CheckUnit(int32_t unit) const {
  if (unit >= 0 && static_cast<size_t>(unit) < units_.size()) return Status();
  return InvalidArgument("unit ", unit, " does not exist; the plan has ",
                         units_.size(), ", from 0");
}

Status UnitStates::CheckAcquire(int32_t unit, Pass pass) const {
  SHARD_RETURN_IF_ERROR(CheckUnit(unit));
  const auto number = static_cast<int32_t>(pass);
  if (number < 1 || number > 3) {
    return InvalidArgument(
        "unknown pass ", number,
        "; known: 1 (forward), 2 (backward), 3 (backward, overwrite)");
  }
  if (pass == Pass::kBackwardOverwrite && allow_missing_) {
    return InvalidArgument(
        "pass 3 (backward, overwrite) with missing_grads: gradients that may "
        "be missing begin as zeros; use pass 2 (backward)");
  }
  if (state(unit) != State::kIdle) {
    return FailedPrecondition(Name(unit), " is in state ",
                              StateName(state(unit)),
                              "; acquire needs IDLE: release it first");
  }
  if (pass != Pass::kForward && at(unit).ready) {
    return FailedPrecondition(
        "the gradients of ", Name(unit),
        " are ready for the step already; accumulate over several backward "
        "passes with set_accumulate 1 for all but the last, or step first");
  }
  return Status();
}

void UnitStates::Acquire(int32_t unit, Pass pass) {
  at(unit).state =
      pass == Pass::kForward ? State::kForward : State::kBackwardPre;
  if (pass != Pass::kForward) declares_ = true;
}

Status UnitStates::CheckRelease(int32_t unit) const {
  SHARD_RETURN_IF_ERROR(CheckUnit(unit));
  if (state(unit) != State::kIdle) return Status();
  return FailedPrecondition(Name(unit),
                            " is in state IDLE; release needs FORWARD, "
                            "BACKWARD_PRE or BACKWARD_POST: acquire it first");
}

void UnitStates::Release(int32_t unit) {
  Unit& entry = at(unit);
  if (entry.state == State::kBackwardPre && entry.params_ready > 0) {
    // Without missing_grads, declared whole gradients stay until the unit's
    // other ones are declared.
    if (!whole_grads_ || allow_missing_) EndPass(unit, whole_grads_);
  }
  entry.state = State::kIdle;
}

Status UnitStates::CheckCanBeReady(int32_t unit) const {
  if (at(unit).ready) {
    return FailedPrecondition("the gradients of ", Name(unit),
                              " are ready already; each unit's become ready "
                              "once per step");
  }
  const State now = state(unit);
  if (now == State::kBackwardPre) return Status();
  if (now == State::kIdle && whole_grads_) return Status();
  return FailedPrecondition(
      Name(unit), " is in state ", StateName(now),
      "; gradients become ready in BACKWARD_PRE: acquire it for the backward "
      "pass first");
}

Status UnitStates::CheckGradsReady(int32_t unit) const {
  SHARD_RETURN_IF_ERROR(CheckUnit(unit));
  SHARD_RETURN_IF_ERROR(CheckCanBeReady(unit));
  const int32_t some = at(unit).params_ready;
  if (some == 0 || some == at(unit).trainable || allow_missing_)
    return Status();
  return FailedPrecondition(
      "mark_unit_grads_ready for ", Name(unit),
      " after mark_param_grad_ready for ", some, " of its ", at(unit).trainable,
      " parameters: the others have no gradient; declare them ready too, or "
      "create the engine with missing_grads");
}

void UnitStates::GradsReady(int32_t unit, bool more) {
  Unit& entry = at(unit);
  if (entry.state == State::kBackwardPre) entry.state = State::kBackwardPost;
  declares_ = true;
  any_ready_ = true;
  entry.ready = !more;
  if (entry.params_ready == 0) {
    ForEachTrainable(unit, [&](ParamId param) {
      param_ready_[static_cast<size_t>(param)] = true;
    });
  }
  EndPass(unit, true);
}

void UnitStates::EndPass(int32_t unit, bool counts) {
  at(unit).params_ready = 0;
  ForEachTrainable(unit, [&](ParamId param) {
    const auto p = static_cast<size_t>(param);
    if (counts && param_declared_[p]) param_ready_[p] = true;
    param_declared_[p] = false;
  });
}

Status UnitStates::CheckParamReady(ParamId param) const {
  const int32_t unit = plan_.UnitOf(param);
  SHARD_RETURN_IF_ERROR(CheckCanBeReady(unit));
  if (param_declared_[static_cast<size_t>(param)]) {
    return FailedPrecondition("the gradient of parameter ", param, " of ",
                              Name(unit), " is ready already");
  }
  return Status();
}

bool UnitStates::ParamReady(ParamId param) {
  Unit& entry = at(plan_.UnitOf(param));
  param_declared_[static_cast<size_t>(param)] = true;
  declares_ = true;
  any_ready_ = true;
  return ++entry.params_ready == entry.trainable;
}

Status UnitStates::CheckAllIdle(std::string_view what) const {
  for (size_t u = 0; u < units_.size(); ++u) {
    const auto unit = static_cast<int32_t>(u);
    if (state(unit) == State::kIdle) continue;
    return FailedPrecondition(Name(unit), " is in state ",
                              StateName(state(unit)), "; ", what,
                              " needs all units to be IDLE: release it first");
  }
  return Status();
}

Status UnitStates::CheckAllReady() const {
  if (!declares_) return Status();
  constexpr int kMost = 8;  // Most names in the message.
  std::string missing;
  int count = 0;
  for (size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].ready || units_[u].trainable == 0) continue;
    if (count++ >= kMost) continue;
    StrAppend(&missing, missing.empty() ? "" : ", ",
              Name(static_cast<int32_t>(u)));
  }
  if (count == 0) return Status();
  return FailedPrecondition(
      "step needs the gradients of all units, but those of ", count,
      " are not ready: ", missing, count > kMost ? ", ..." : "",
      "; call mark_unit_grads_ready for each, or create the engine with "
      "missing_grads");
}

void UnitStates::ClearReady() {
  any_ready_ = false;
  for (Unit& unit : units_) {
    unit.ready = false;
    unit.params_ready = 0;
  }
  param_declared_.assign(param_declared_.size(), false);
  param_ready_.assign(param_ready_.size(), false);
}

}  // namespace shard
