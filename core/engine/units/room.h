// SPDX-License-Identifier: Apache-2.0
//
// CheckRoom: whether a unit has a slot to be acquired into, and the error,
// which names the units that are in the way.

#ifndef SHARD_CORE_ENGINE_UNITS_ROOM_H_
#define SHARD_CORE_ENGINE_UNITS_ROOM_H_

#include <cstdint>
#include <string_view>

#include "core/base/status.h"
#include "core/engine/memory/slots.h"
#include "core/engine/units/unit_states.h"
#include "core/flat/plan.h"

namespace shard {

// `what` names what the slots hold.
Status CheckRoom(const Plan& plan, const UnitStates& states, const Slots& slots,
                 int32_t unit, std::string_view what);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_UNITS_ROOM_H_
