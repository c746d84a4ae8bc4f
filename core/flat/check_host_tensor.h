// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_FLAT_CHECK_HOST_TENSOR_H_
#define SHARD_CORE_FLAT_CHECK_HOST_TENSOR_H_

#include "core/base/status.h"
#include "core/flat/plan.h"
#include "core/model/model.h"

namespace shard {

// Returns OK for the id of a host tensor that the plan stores. Errors:
// kInvalidArgument for another id, kFailedPrecondition for an ignored one.
Status CheckHostTensor(const Plan& plan, HostTensorId id);

}  // namespace shard

#endif  // SHARD_CORE_FLAT_CHECK_HOST_TENSOR_H_
