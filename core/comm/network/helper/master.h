// SPDX-License-Identifier: Apache-2.0
//
// Master: the side of a rendezvous that listens. It collects the ranks of all
// hosts, publishes the table of hosts, waits until every host is connected to
// every other one, and tells all of them to begin. An error of one host, or of
// the job, becomes the verdict of all: the same Status, once.
//
// The helper in whose process the master runs is a member as the others are, by
// a connection to its own address. It is told last: its process may end then.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_MASTER_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_MASTER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/fd.h"
#include "core/base/status.h"
#include "core/comm/direct/shipments.h"
#include "core/comm/network/helper/channel.h"
#include "core/comm/network/helper/listener.h"
#include "core/comm/network/helper/loop.h"
#include "core/comm/network/helper/rendezvous_wire.h"
#include "core/comm/network/helper/roster.h"

namespace shard::network {

struct MasterOptions {
  std::shared_ptr<const Identity> identity;
  std::string where;  // The rendezvous point, for errors.
  int world_size;
  Deadline deadline;
  double silence_seconds = 5;
  int most_hosts = direct::kMaxHosts;
  std::function<void(const std::string& line)> warn;
};

class Master {
 public:
  // The time after an error for which hosts that come are told of it; otherwise
  // they would wait for their deadline.
  static constexpr double kLingerSeconds = 0.3;

  static StatusOr<std::unique_ptr<Master>> Create(Loop* loop, Fd listening,
                                                  MasterOptions options);
  ~Master();

  // For tests and measurements.
  const Roster& roster() const { return roster_; }
  size_t members() const { return members_.size(); }
  const Listener& listener() const { return *listener_; }
  uint64_t bytes_sent() const;
  uint64_t bytes_received() const;

 private:
  enum class Phase { kCollecting, kMeshing, kEnding };

  struct Member {
    std::unique_ptr<Channel> channel;
    bool has_greeted = false;
    bool on_master = false;
    bool takes_table = false;  // Part of the Table waits to be sent.
    bool meshed = false;
    bool told = false;   // The verdict.
    int index = -1;      // In the table.
    int world_size = 0;  // As this helper's ranks were told.
  };

  Master(Loop* loop, MasterOptions options);

  void Admit(std::unique_ptr<Channel> channel);
  void HandleRefused(const Channel& channel, Refusal refusal,
                     const Status& why);
  void HandleFrame(uint64_t id, Kind kind, Channel::Bytes body);
  // Return an error of the whole job.
  Status HandleHello(uint64_t id, Channel::Bytes body);
  Status HandleRanks(uint64_t id, Channel::Bytes body);
  Status HandleMeshed(uint64_t id);
  void HandleClosed(uint64_t id);
  void Drop(uint64_t id);

  void SetDeadline(const Deadline& deadline);
  Status DeadlineError() const;
  void TellMasterRank();
  // Makes the table, and begins to send it.
  Status Publish();
  void PublishSome();
  void HandleDrained(uint64_t id);

  // Ends the rendezvous with the same Status for all; OK: they begin.
  void EndWith(Status verdict);
  void Tell(Member* member);
  void TellOwnWhenOthersHaveGone();

  Loop* const loop_;
  const MasterOptions options_;
  Roster roster_;
  std::unique_ptr<Listener> listener_;
  Phase phase_ = Phase::kCollecting;
  const Deadline::Clock::time_point started_ = Deadline::Clock::now();
  Deadline deadline_;  // The earliest of all hosts.
  Loop::Timer timer_;
  uint64_t next_id_ = 0;
  std::map<uint64_t, Member> members_;
  int32_t master_rank_ = -1;

  std::vector<HostEntry> table_;
  FrameWriter table_frame_;
  std::vector<uint64_t> hosts_;  // The ids of the members in the table.
  size_t published_ = 0;         // Hosts to which the table was sent.
  size_t taking_ = 0;            // Members with takes_table.
  size_t meshed_ = 0;

  Status verdict_;
  bool lingers_ = false;           // Hosts that come are awaited.
  bool waits_for_others_ = false;  // Hosts that have come are to go first.
  uint64_t bytes_sent_ = 0;        // Of members that have gone.
  uint64_t bytes_received_ = 0;
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_MASTER_H_
