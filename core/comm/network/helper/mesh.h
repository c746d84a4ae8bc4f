// SPDX-License-Identifier: Apache-2.0
//
// MeshBuilder: connects this host to every other host of a job, by one channel
// for each pair. The host of the lower index listens. The MeshBuilder listens
// from the beginning, before the table of hosts is known, since other hosts may
// have the table earlier.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_MESH_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_MESH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/fd.h"
#include "core/base/status.h"
#include "core/comm/network/helper/channel.h"
#include "core/comm/network/helper/listener.h"
#include "core/comm/network/helper/loop.h"
#include "core/comm/network/helper/roster.h"

namespace shard::network {

// The hosts of a job, and a channel to each of them.
struct Mesh {
  std::vector<HostEntry> hosts;
  int self = -1;  // The index of this host.
  // By host; null for this one. They are open and paused.
  std::vector<std::unique_ptr<Channel>> channels;
};

class MeshBuilder {
 public:
  struct Options {
    std::shared_ptr<const Identity> identity;
    int world_size = 1;          // The most hosts.
    double silence_seconds = 5;  // Of hosts that are connected.
    // The time in which another host has to be reached.
    double reach_seconds = 10;
    std::function<void(const std::string& line)> warn;
  };
  // Called once, with OK when all channels are open, or with the error of a
  // host that cannot be reached, whose rank is the first one of that host.
  using Done = std::function<void(const Status&)>;

  static StatusOr<std::unique_ptr<MeshBuilder>> Create(Loop* loop, Fd listening,
                                                       Options options,
                                                       Done done);
  ~MeshBuilder();

  // Returns the address at which this listens.
  const SocketAddress& address() const { return listener_->address(); }

  bool has_table() const { return mesh_.self >= 0; }
  // Connects to the hosts of a lower index. REQUIRES: !has_table().
  void Connect(std::vector<HostEntry> hosts, int self);

  // Returns what was built, and listens no more. REQUIRES: `done` was OK.
  Mesh Take();

 private:
  // A connection that this host makes.
  struct Attempt {
    std::unique_ptr<Channel> channel;
    Loop::Timer timer;
    double wait_seconds = 0.01;
    Deadline give_up = Deadline::After(0);
  };

  MeshBuilder(Loop* loop, Options options, Done done);

  void TakeIncoming(std::unique_ptr<Channel> channel);
  void HandleHello(uint64_t id, uint32_t kind, Channel::Bytes body);
  void Place(int index, std::unique_ptr<Channel> channel);
  void ConnectTo(int index);
  void HandleOpen(int index);
  void HandleFailed(int index, const Status& why);
  void Finish(const Status& status);

  Loop* const loop_;
  const Options options_;
  Done done_;  // Null once called.
  std::unique_ptr<Listener> listener_;
  Loop::Timer finish_;
  Mesh mesh_;
  size_t placed_ = 0;
  uint64_t next_id_ = 0;
  std::map<uint64_t, std::unique_ptr<Channel>> nameless_;  // No MeshHello yet.
  std::map<int, std::unique_ptr<Channel>> early_;  // By index; no table yet.
  std::map<int, Attempt> attempts_;                // By index.
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_MESH_H_
