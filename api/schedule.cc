// SPDX-License-Identifier: Apache-2.0

#include "core/optim/schedule.h"

#include "api/error.h"
#include "shard/shard.h"

extern "C" {

shard_error* shard_schedule_lr(const char* schedule, int64_t step,
                               double* lr) noexcept {
  if (lr != nullptr) *lr = 0;
  return shard::api::Guard([&]() -> shard::Status {
    SHARD_API_REQUIRE(schedule);
    SHARD_API_REQUIRE(lr);
    SHARD_ASSIGN_OR_RETURN(const shard::Schedule parsed,
                           shard::Schedule::Parse(schedule));
    if (step < 1) {
      return shard::InvalidArgument("step ", step,
                                    " is out of range; steps count from 1");
    }
    *lr = parsed.Lr(step);
    return shard::Status();
  });
}

}  // extern "C"
