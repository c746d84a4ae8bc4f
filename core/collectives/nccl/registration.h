// SPDX-License-Identifier: Apache-2.0
//
// Registration: decides for all ranks whether the memory that NCCL's
// collectives use is registered with their communicators, and allocates that
// memory.
//
// NCCL wants the buffers of a call to be registered on all ranks or on none, so
// the ranks agree once, when their communicators are made, and each of them has
// tried it before. Memory comes in whole pieces of 2 MiB: an allocation takes
// less than that more than it asks for. An NCCL that would take larger pieces
// registers nothing, for plans predict the memory of a GPU.
//
// Allocate is local. Memory becomes a window of all ranks later (windows.h).
//
// Thread-safe.

#ifndef SHARD_CORE_COLLECTIVES_NCCL_REGISTRATION_H_
#define SHARD_CORE_COLLECTIVES_NCCL_REGISTRATION_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/collectives/nccl/rank_comms.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"

namespace shard::nccl {

class Registration {
 public:
  // Decides for the ranks of `control`. COLLECTIVE. Errors: those of the
  // family alone.
  static StatusOr<Registration> Agree(Communicator* control,
                                      std::shared_ptr<RankComms> comms,
                                      const Deadline& deadline);

  // Returns why memory is not registered: "rank 1: ..."; "" where it is.
  const std::string& why_not() const { return why_not_; }

  // Allocates memory as Device::Allocate, and registers it where the ranks have
  // agreed on that. The memory keeps the communicators.
  StatusOr<DeviceMemory> Allocate(Device* device, size_t bytes,
                                  std::string_view what,
                                  const Deadline& deadline) const;

 private:
  Registration(std::shared_ptr<RankComms> comms, std::string why_not)
      : comms_(std::move(comms)), why_not_(std::move(why_not)) {}

  std::shared_ptr<RankComms> comms_;
  std::string why_not_;
};

}  // namespace shard::nccl

#endif  // SHARD_CORE_COLLECTIVES_NCCL_REGISTRATION_H_
