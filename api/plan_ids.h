// SPDX-License-Identifier: Apache-2.0
//
// Checks of the ids that a host passes with a plan.

#ifndef SHARD_API_PLAN_IDS_H_
#define SHARD_API_PLAN_IDS_H_

#include <cstddef>
#include <cstdint>

#include "core/base/status.h"
#include "core/flat/plan.h"

namespace shard::api {

// Checks that 0 <= id < count. `what` is the noun for messages: "buffer".
inline Status CheckId(const char* what, int32_t id, size_t count) {
  if (id >= 0 && static_cast<size_t>(id) < count) return Status();
  return InvalidArgument(what, " ", id, " does not exist; the plan has ",
                         count);
}

// Checks that a parameter exists and is not ignored.
inline Status CheckStored(const Plan& plan, int32_t param) {
  const auto index = static_cast<size_t>(param);
  SHARD_RETURN_IF_ERROR(CheckId("parameter", param, plan.places().size()));
  if (plan.place(param).buffer >= 0) return Status();
  return FailedPrecondition("parameter '", plan.model().ParamFqns()[index],
                            "' is ignored: libshard does not store it");
}

}  // namespace shard::api

#endif  // SHARD_API_PLAN_IDS_H_
