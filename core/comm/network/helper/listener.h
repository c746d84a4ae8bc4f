// SPDX-License-Identifier: Apache-2.0
//
// Listener: accepts connections and passes on those that have authenticated
// themselves. Anybody who reaches the port may connect to it, so that what such
// strangers cost is bounded: 1,024 connections, each for 10 s and with about
// 1 KiB of memory, and few lines of log. The oldest stranger makes room for a
// new one once it has had half a second, in which a helper authenticates
// itself. So the helpers of a large job, who come all at once, wait for each
// other in the kernel's queue.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_LISTENER_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_LISTENER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/fd.h"
#include "core/base/status.h"
#include "core/comm/network/helper/address.h"
#include "core/comm/network/helper/channel.h"
#include "core/comm/network/helper/loop.h"

namespace shard::network {

class Listener {
 public:
  struct Options {
    ChannelOptions channel;  // The listening role; `peer` is set for each.
    size_t max_strangers = 1024;
    // Takes lines for the log. The Listener calls it for the first, second,
    // fourth, ... stranger.
    std::function<void(const std::string& line)> warn;
  };
  // Takes a channel that has just opened. It is paused.
  using OnOpen = std::function<void(std::unique_ptr<Channel>)>;
  // Called for each refused connection. `refusal` is kNone for one that ended
  // before it said anything of interest.
  using OnRefused = std::function<void(const Channel& channel, Refusal refusal,
                                       const Status& why)>;

  // `listening`: of ListenAt.
  static StatusOr<std::unique_ptr<Listener>> Create(
      Loop* loop, Fd listening, Options options, OnOpen on_open,
      OnRefused on_refused = nullptr);
  // Closes the socket and the connections of strangers.
  ~Listener();

  const SocketAddress& address() const { return address_; }
  // The time that each connection has, whoever else comes.
  static constexpr double kLeastSeconds = 0.5;

  size_t strangers() const { return strangers_.size(); }
  // Returns the number of connections that ended without authentication.
  uint64_t refused() const { return refused_; }
  // Returns why the last one did, preferably one of libshard; OK if none.
  const Status& last_refusal() const { return last_refusal_; }

 private:
  Listener(Loop* loop, Fd listening, const SocketAddress& address,
           Options options, OnOpen on_open, OnRefused on_refused);

  Status Watch();
  void AcceptSome();
  void Take(Fd socket);
  void HandleOpen(uint64_t id);
  void HandleClosed(uint64_t id, const Status& why);
  void WarnOfStranger(const Status& why, Refusal refusal = Refusal::kNone);
  void CloseOldest();
  // Accepts nothing for some time.
  void Rest(double seconds);
  // Accepts again, since there is room.
  void EndRest();

  Loop* const loop_;
  const Fd listening_;
  const SocketAddress address_;
  const Options options_;
  const OnOpen on_open_;
  const OnRefused on_refused_;
  Loop::Watch watch_;
  Loop::Timer rest_;  // While there is no room, or no descriptor.
  uint64_t next_id_ = 0;
  struct Connection {
    std::unique_ptr<Channel> channel;
    Deadline least;  // Until then it makes no room.
  };
  std::map<uint64_t, Connection> strangers_;  // By age.
  uint64_t refused_ = 0;
  Status last_refusal_;
  bool last_was_libshard_ = false;
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_LISTENER_H_
