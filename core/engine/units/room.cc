// SPDX-License-Identifier: Apache-2.0

#include "core/engine/units/room.h"

#include <string>

#include "core/base/strings.h"

namespace shard {

Status CheckRoom(const Plan& plan, const UnitStates& states, const Slots& slots,
                 int32_t unit, std::string_view what) {
  if (slots.Find(unit) >= 0 || slots.Choose(unit) >= 0) return Status();
  std::string users;
  for (const int32_t user : slots.OtherUsers(unit)) {
    StrAppend(&users, users.empty() ? "" : ", ", states.Name(user));
  }
  return FailedPrecondition("no slot for the ", what, " of ", states.Name(unit),
                            ": they are in use by ", users,
                            "; release one of them first, or plan a larger "
                            "prefetch (",
                            plan.options().prefetch, " now)");
}

}  // namespace shard
