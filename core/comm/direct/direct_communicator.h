// SPDX-License-Identifier: Apache-2.0
//
// DirectCommunicator: the Communicator of ranks that share memory, whether they
// are threads or processes. Its parts are given to it: Group meets the ranks,
// RegionSource allocates shared memory, and Liveness detects dead ranks. A Link
// that is not direct hides shared memory from callers, who then use an
// exchange.

#ifndef SHARD_CORE_COMM_DIRECT_DIRECT_COMMUNICATOR_H_
#define SHARD_CORE_COMM_DIRECT_DIRECT_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <string_view>

#include "core/comm/communicator.h"
#include "core/comm/direct/direct_exchange.h"
#include "core/comm/direct/group.h"
#include "core/comm/direct/hosts.h"
#include "core/comm/direct/link.h"
#include "core/comm/direct/region_source.h"

namespace shard::direct {

class DirectCommunicator final : public Communicator {
 public:
  // REQUIRES: options.observer is not null.
  DirectCommunicator(std::shared_ptr<Group> group,
                     std::unique_ptr<RegionSource> regions,
                     std::string description, const CommOptions& options,
                     const Link& link, const Hosts& hosts);

  int rank() const override { return group_->rank(); }
  int world_size() const override { return group_->world_size(); }
  int local_rank() const override {
    return rank() - hosts_.begin(hosts_.HostOf(rank()));
  }
  int local_world_size() const override {
    return hosts_.size(hosts_.HostOf(rank()));
  }
  bool direct() const override { return link_.direct; }
  bool shares_host() const override {
    return link_.direct || link_.shares_host;
  }
  std::string Describe() const override { return description_; }
  Observer* observer() const override { return options_.observer.get(); }
  double timeout() const override { return options_.timeout; }
  HostWaits* host_waits() override { return &group_->host_waits(); }

  Status Barrier(std::string_view what, const Deadline& deadline) override;
  Status AllGather(std::string_view what, const void* send, size_t bytes,
                   void* recv, const Deadline& deadline) override;
  StatusOr<std::shared_ptr<SymmetricBuffer>> Allocate(
      std::string_view what, size_t bytes, SymmetricKind kind,
      const Deadline& deadline) override;
  Status Broadcast(std::string_view what, int root, void* data, size_t bytes,
                   const Deadline& deadline) override;
  StatusOr<std::shared_ptr<Communicator>> Duplicate(
      std::string_view what, bool direct, const Deadline& deadline) override;
  StatusOr<std::shared_ptr<Exchange>> OpenExchange(
      std::string_view what, const Deadline& deadline) override;
  StatusOr<std::unique_ptr<Notices>> OpenNotices(
      std::string_view what, size_t bytes, const Deadline& deadline) override;
  void Abort(const Status& reason) override;
  Status Shutdown(const Deadline& deadline) override;

 private:
  Status Enter(std::string_view what) const;
  // Makes the regions of Allocate, once the ranks' calls are known to agree, or
  // the memory of a ControlBlock with cells of `ring`. COLLECTIVE.
  StatusOr<std::shared_ptr<SymmetricBuffer>> MakeRegions(
      std::string_view what, size_t bytes, SymmetricKind kind,
      const CellRing* ring, const Deadline& deadline);

  // Makes the duplicate of Duplicate or OpenExchange, which `operation` says.
  // COLLECTIVE.
  StatusOr<std::shared_ptr<DirectCommunicator>> MakeDuplicate(
      Operation operation, std::string_view kind, std::string_view what,
      bool direct, const Deadline& deadline);

  // Duplicates hold it too.
  const std::shared_ptr<Group> group_;
  const std::unique_ptr<RegionSource> regions_;
  const std::string description_;
  const CommOptions options_;
  const Link link_;
  const Hosts hosts_;
  const Status out_of_memory_;  // For Abort, made beforehand.
  // For Broadcast; and what OpenExchange of another communicator returns, if
  // this is the duplicate that it made.
  DirectExchange exchange_;
};

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_DIRECT_COMMUNICATOR_H_
