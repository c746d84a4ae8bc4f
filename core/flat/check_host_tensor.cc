// SPDX-License-Identifier: Apache-2.0

#include "core/flat/check_host_tensor.h"

#include <cstddef>

#include "core/model/names.h"

namespace shard {

Status CheckHostTensor(const Plan& plan, HostTensorId id) {
  const auto& offsets = plan.host_tensors().offsets;
  if (id < 0 || static_cast<size_t>(id) >= offsets.size()) {
    return InvalidArgument("buffer ", id, " does not exist; the model has ",
                           offsets.size());
  }
  if (offsets[static_cast<size_t>(id)] >= 0) return Status();
  return FailedPrecondition("buffer ", id, ", ",
                            QuoteName(plan.model().HostTensorFqn(id)),
                            ", is in an ignored module: libshard does not "
                            "store it");
}

}  // namespace shard
