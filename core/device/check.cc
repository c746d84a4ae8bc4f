// SPDX-License-Identifier: Apache-2.0

#include "core/device/check.h"

#include <chrono>

#include "core/base/spec.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/device/event.h"
#include "core/device/plugin/plugin.h"

namespace shard {

namespace {

// Seconds for the end of a check that is late: an abort takes 10 at most.
constexpr double kEndSeconds = 20;

}  // namespace

StatusOr<CollectivesCheck> CollectivesCheck::Prepare(std::string_view spec) {
  SHARD_ASSIGN_OR_RETURN(const DeviceChoice choice, ReadDeviceSpec(spec));
  if (choice.kind != DeviceId::Kind::kCuda) {
    return InvalidArgument("'", spec,
                           "' is no GPU; only GPUs have collectives of their "
                           "own: cuda:0");
  }
  SHARD_ASSIGN_OR_RETURN(const Spec parsed, Spec::Parse(spec));
  SHARD_ASSIGN_OR_RETURN(const Plugin* const plugin, LoadPlugin(kCudaPlugin));
  SHARD_ASSIGN_OR_RETURN(
      auto queue,
      WorkQueue::Start(std::make_shared<Monitor>(), "shard-check", Pauses()));
  return CollectivesCheck(plugin, std::string(parsed.body()), std::move(queue));
}

Status CollectivesCheck::Run(const std::shared_ptr<Communicator>& control,
                             const Deadline& deadline) {
  // The thread may outlive the check.
  queue_->Push("check", [plugin = plugin_, id = id_, control, deadline] {
    return plugin->check_collectives(id, control.get(), deadline);
  });
  const double left =
      std::chrono::duration<double>(deadline.Remaining()).count() + kEndSeconds;
  const Event end = queue_->Record();
  Status status = end.Synchronize(Deadline::After(left));
  if (end.IsDone()) return status;
  static_cast<void>(queue_.release());
  const Status late = DeadlineExceeded(
      "a library did not return within ", deadline.seconds() + kEndSeconds,
      " s, and its thread is left behind; look at the GPU (nvidia-smi), and at "
      "the network that NCCL uses (NCCL_DEBUG=INFO)");
  // Its thread still uses the communicator.
  control->Abort(late);
  return late;
}

}  // namespace shard
