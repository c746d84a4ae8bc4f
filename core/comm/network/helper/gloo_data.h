// SPDX-License-Identifier: Apache-2.0
//
// GlooData: moves the tensor data of a host to and from the others, by Gloo's
// point-to-point operations over TCP. Collectives of Gloo are not used: they
// round at each hop and sum in another order.
//
// A pair of hosts has a connection of Gloo's own, beside their Channel, which
// carries the address of each end to the other one and later says what the data
// is (mirror.h). Gloo's connections authenticate nobody, so the first bytes
// over each are a token that came over the Channel. It is followed by as many
// bytes as fill packets of any size of Ethernet: a path on which large packets
// are lost shows while the hosts meet, and not as a collective that hangs.
//
// Gloo reports errors by exceptions, which end here. Its threads block SIGPIPE
// only where the thread that creates this does.
//
// Threads: one, the loop's, calls everything and gets all callbacks. Each host
// has two threads that wait for the ends of operations.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_GLOO_DATA_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_GLOO_DATA_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/network/helper/loop.h"

namespace shard::network {

class GlooData {
 public:
  static constexpr size_t kTokenBytes = 32;
  // The token and what follows it: more than two packets of the largest MTU
  // that Ethernet has, 9,000 bytes and some.
  static constexpr size_t kProbeBytes = 20'000;

  // Is given the host that cannot be connected to, with the error, or -1 and
  // OK.
  using Connected = std::function<void(int host, const Status& status)>;

  // The part of a connection that one end tells the other.
  struct End {
    std::string address;  // Gloo's, in its own form.
    std::string token;
  };

  // `address`: the local one, on which connections are expected. `deadline`: to
  // connect. `loop` must outlive this.
  static StatusOr<std::unique_ptr<GlooData>> Create(Loop* loop, int host,
                                                    int hosts,
                                                    const std::string& address,
                                                    const Deadline& deadline);
  // Ends all connections.
  ~GlooData();

  // Returns this host's end of the connection with another one.
  const End& end(int host) const;

  // Connects to all hosts, whose ends are given by host, in a thread, and then
  // calls `done`. REQUIRES: not called before; all hosts do so.
  void Connect(std::vector<End> ends, Connected done);

  // Called once for a host whose connection fails.
  void set_on_lost(std::function<void(int host, const Status& why)> on_lost);

  // See HostLinks (mirror.h). REQUIRES: connected.
  void Send(int host, const std::byte* data, size_t bytes,
            std::shared_ptr<const void> owner);
  void Receive(int host, std::byte* data, size_t bytes,
               std::function<void()> done);

  // Ends the connection with a host. Its receptions do not end any more.
  void Lose(int host);

  uint64_t bytes_sent() const { return bytes_sent_; }
  uint64_t bytes_received() const { return bytes_received_; }

 private:
  class Line;
  struct Transport;

  GlooData(Loop* loop, int host, int hosts, const Deadline& deadline);
  Status ConnectTo(int host, const End& theirs);
  std::chrono::milliseconds Remaining() const;
  void ReportLost(int host, const Status& why);

  Loop* const loop_;
  const int host_;
  const int hosts_;
  const Deadline deadline_;
  std::unique_ptr<Transport> transport_;
  std::vector<End> ends_;                     // By host.
  std::vector<std::unique_ptr<Line>> lines_;  // By host; null for this one.
  std::thread connecting_;
  std::function<void(int, const Status&)> on_lost_;
  // Callbacks that a thread has posted do nothing once this is gone.
  std::shared_ptr<std::atomic<bool>> alive_;
  uint64_t bytes_sent_ = 0;
  uint64_t bytes_received_ = 0;
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_GLOO_DATA_H_
