// SPDX-License-Identifier: Apache-2.0
//
// DirectCommunicator: the Communicator of ranks that share memory, whether
// they are threads or processes. How they meet, how memory comes to be and how
// a death is noticed is given to it: Group, RegionSource, Liveness.

#ifndef SHARD_CORE_COMM_DIRECT_DIRECT_COMMUNICATOR_H_
#define SHARD_CORE_COMM_DIRECT_DIRECT_COMMUNICATOR_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>

#include "core/comm/communicator.h"
#include "core/comm/direct/group.h"
#include "core/comm/direct/region_source.h"

namespace shard::direct {

class DirectCommunicator final : public Communicator {
 public:
  // `keep_mapped` owns the memory of the group's ControlBlock.
  DirectCommunicator(std::unique_ptr<Group> group,
                     std::unique_ptr<RegionSource> regions,
                     std::shared_ptr<void> keep_mapped, std::string description,
                     const CommOptions& options);
  ~DirectCommunicator() override;

  int rank() const override { return group_->rank(); }
  int world_size() const override { return group_->world_size(); }
  bool direct() const override { return true; }
  std::string Describe() const override { return description_; }
  const Logger& logger() const override { return options_.logger; }
  double timeout() const override { return options_.timeout; }

  Status Barrier(std::string_view what, const Deadline& deadline) override;
  Status AllGather(std::string_view what, const void* send, size_t bytes,
                   void* recv, const Deadline& deadline) override;
  StatusOr<std::shared_ptr<SymmetricBuffer>> Allocate(
      std::string_view what, size_t bytes, SymmetricKind kind,
      const Deadline& deadline) override;
  void Abort(const Status& reason) override;
  Status Shutdown(const Deadline& deadline) override;

 private:
  Status Enter(std::string_view what) const;

  const std::shared_ptr<void> keep_mapped_;
  const std::unique_ptr<Group> group_;
  const std::unique_ptr<RegionSource> regions_;
  const std::string description_;
  const CommOptions options_;
  // A child forked from this process must not speak in its parent's name.
  const pid_t owner_;
  bool shut_down_ = false;
};

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_DIRECT_COMMUNICATOR_H_
