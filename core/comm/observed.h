// SPDX-License-Identifier: Apache-2.0
//
// ObservedCommunicator and ObservedExchange: record the operations of another
// communicator or exchange as events, and in the ring of the last collectives.
// OpenCommunicator puts it around every backend. The one that it opens is held
// by the handles of the host alone, and not by its duplicates: once it is
// destroyed, the host gets no more messages, though a save may go on.

#ifndef SHARD_CORE_COMM_OBSERVED_H_
#define SHARD_CORE_COMM_OBSERVED_H_

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/process_id.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/comm/exchange.h"
#include "core/observe/collective_ring.h"
#include "core/observe/host_log.h"

namespace shard {

// Logs the end of a family on this rank once, whatever finds it: a
// communicator, its duplicates and notices, and work on a device, which all end
// by one error. The log function is the host's, and may wait for as long as a
// thread of the host does. So a thread that others wait for keeps the reason,
// and leaves the log to the next one that comes.
//
// Thread-safe. In a child of fork it does nothing.
class EndLog {
 public:
  explicit EndLog(Observer* observer)
      : observer_(observer), owner_(ProcessId()) {}

  // Logs the reason that was kept, or else this one. Called after the other
  // ranks were told, for they wait.
  void Log(const Status& reason);
  // Keeps the reason, unless one was kept before.
  void Keep(const Status& reason);
  // Logs the reason that was kept, if any.
  void LogKept();

 private:
  Status kept() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return kept_;
  }

  Observer* const observer_;
  const pid_t owner_;
  std::atomic<bool> is_logged_ = false;
  mutable std::mutex mutex_;
  Status kept_;  // GUARDED_BY(mutex_)
};

class ObservedCommunicator final : public Communicator {
 public:
  // `host`: the log of the host, for the communicator that the host opens.
  // `end`: that of the family, where there is one before. `sequence`: that of
  // a duplicate.
  explicit ObservedCommunicator(std::shared_ptr<Communicator> comm,
                                std::weak_ptr<HostLog> host = {},
                                std::shared_ptr<EndLog> end = nullptr,
                                const CollectiveSequence& sequence = {})
      : comm_(std::move(comm)),
        observer_(comm_->observer()),
        host_(std::move(host)),
        end_(end != nullptr ? std::move(end)
                            : std::make_shared<EndLog>(observer_)),
        sequence_(sequence) {}
  ~ObservedCommunicator() override;

  int rank() const override { return comm_->rank(); }
  int world_size() const override { return comm_->world_size(); }
  int local_rank() const override { return comm_->local_rank(); }
  int local_world_size() const override { return comm_->local_world_size(); }
  bool direct() const override { return comm_->direct(); }
  bool shares_host() const override { return comm_->shares_host(); }
  std::string Describe() const override { return comm_->Describe(); }
  Observer* observer() const override { return observer_; }
  double timeout() const override { return comm_->timeout(); }
  HostWaits* host_waits() override { return comm_->host_waits(); }

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
  void AbortUnlogged(const Status& reason) override;
  Status Shutdown(const Deadline& deadline) override;

 private:
  std::shared_ptr<Communicator> comm_;
  Observer* const observer_;  // The observer of comm_.
  const std::weak_ptr<HostLog> host_;
  const std::shared_ptr<EndLog> end_;
  CollectiveSequence sequence_;
};

class ObservedExchange final : public Exchange {
 public:
  // `exchange` holds its communicator, and so the observer.
  ObservedExchange(std::shared_ptr<Exchange> exchange, int world_size,
                   Observer* observer, const CollectiveSequence& sequence)
      : exchange_(std::move(exchange)),
        world_size_(world_size),
        observer_(observer),
        sequence_(sequence) {}

  Status ReduceScatter(std::string_view what, const RankSet& set,
                       const ReduceScatterArgs& args,
                       const Deadline& deadline) override;
  Status AllGatherBlocks(std::string_view what, const RankSet& set,
                         const void* send, size_t bytes, void* recv,
                         const Deadline& deadline) override;
  Status GatherOnHosts(std::string_view what, const RankSet& set,
                       const void* send, size_t bytes, int block_groups,
                       void* recv, const Deadline& deadline) override;
  Status Broadcast(std::string_view what, int root, void* data, size_t bytes,
                   const Deadline& deadline) override;
  HostWaits* host_waits() override { return exchange_->host_waits(); }

 private:
  const std::shared_ptr<Exchange> exchange_;
  const int world_size_;
  Observer* const observer_;
  CollectiveSequence sequence_;
};

}  // namespace shard

#endif  // SHARD_CORE_COMM_OBSERVED_H_
