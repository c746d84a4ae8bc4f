// SPDX-License-Identifier: Apache-2.0
//
// CollectivesCheck: whether the ranks' GPUs move tensors between them without
// the host, by each of the calls that collectives of Transport::kNccl make.

#ifndef SHARD_CORE_DEVICE_CHECK_H_
#define SHARD_CORE_DEVICE_CHECK_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/device/work_queue/work_queue.h"

namespace shard {

class Communicator;
struct Plugin;

class CollectivesCheck {
 public:
  // Prepares the check of a GPU, "cuda:0". Errors: kInvalidArgument for another
  // device; those of LoadPlugin.
  static StatusOr<CollectivesCheck> Prepare(std::string_view spec);

  // Sends a MiB of each rank with each call, and compares what arrives.
  // COLLECTIVE: each rank has a GPU of its own. Runs in a thread of its own,
  // which is left behind where a library does not return soon after the
  // deadline. Errors: kBackendUnavailable where there is no library that all
  // ranks can use. Those that end the family of `control`: the error of a call,
  // with its name; kDeadlineExceeded where a library does not return.
  Status Run(const std::shared_ptr<Communicator>& control,
             const Deadline& deadline);

 private:
  CollectivesCheck(const Plugin* plugin, std::string id,
                   std::unique_ptr<WorkQueue> queue)
      : plugin_(plugin), id_(std::move(id)), queue_(std::move(queue)) {}

  const Plugin* plugin_;
  std::string id_;
  std::unique_ptr<WorkQueue> queue_;
};

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_CHECK_H_
