// SPDX-License-Identifier: Apache-2.0
//
// Channel: a TCP connection between two helpers of a job, which carries frames:
// a header of two numbers, {bytes, kind}, and a body.
//
// A channel is made of a socket that is connected, or that is being connected.
// The two ends first authenticate each other (handshake.h). Until then a
// channel takes frames of at most 512 bytes, holds about 1 KiB of memory, and
// ends after `greeting_seconds`, however slowly its peer sends. From then on it
// is open and carries the frames of its two owners, in order.
//
// A channel notices the end of its peer: of the process at once, by the end of
// the connection; that of a host, of a cable or of a process that is stopped
// after `silence_seconds`, because an idle end sends a heartbeat four times in
// that time, and unacknowledged bytes end the connection (TCP_USER_TIMEOUT). An
// end whose own loop was late does not blame the other for it.
//
// Nothing blocks. Send passes the bytes to the kernel, and copies what the
// kernel does not take yet into a queue of at most `max_queued_bytes`.
//
// A channel without `on_frame` is paused: it reads nothing, frames wait in the
// socket, and the peer's silence is not noticed. No frame is lost when a
// channel gets another owner.
//
// Threads: the loop's. Callbacks come from the loop, never from within a call,
// and may free the channel or replace its handlers.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_CHANNEL_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_CHANNEL_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/fd.h"
#include "core/base/status.h"
#include "core/comm/network/helper/handshake.h"
#include "core/comm/network/helper/loop.h"
#include "core/comm/network/helper/receive_buffer.h"

namespace shard::network {

struct ChannelOptions {
  std::shared_ptr<const Identity> identity;
  Role role;         // This end's. The peer must have the other one.
  std::string peer;  // Names the peer in errors, such as "10.0.0.2:29500".
  double greeting_seconds = 10;
  double silence_seconds = 5;  // The shorter one of both ends' counts.
  size_t max_frame_bytes = size_t{16} << 20;  // Of a body, once open.
  size_t max_queued_bytes = size_t{64} << 20;
};

class Channel {
 public:
  using Bytes = std::span<const std::byte>;

  // Kinds from here on are the channel's own.
  static constexpr uint32_t kFirstReservedKind = 0xFFFFFF00;
  static constexpr size_t kMaxGreetingBytes = 512;

  struct Header {
    uint32_t bytes;  // Of the body.
    uint32_t kind;
  };

  struct Handlers {
    // The two ends have authenticated each other.
    std::function<void()> on_open;
    // A frame has come. The bytes are valid during the call.
    std::function<void(uint32_t kind, Bytes body)> on_frame;
    // The channel has ended, by itself; the last callback. The status is never
    // OK: it names the peer, and says why.
    std::function<void(const Status& why)> on_closed;
    // The queue has become empty.
    std::function<void()> on_drained;
  };

  // Takes a stream socket that is connected or being connected.
  static StatusOr<std::unique_ptr<Channel>> Create(Loop* loop, Fd socket,
                                                   ChannelOptions options,
                                                   Handlers handlers);
  // Closes the connection. Queued bytes are lost.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Sends a frame whose body is the parts, one after the other. Fails with
  // kUnavailable where the channel has ended (`on_closed` says why), and with
  // kResourceExhausted where the queue has no room; nothing is sent then.
  // REQUIRES: open(), kind < kFirstReservedKind, and a body that the peer's
  // max_frame_bytes allows.
  Status Send(uint32_t kind, std::initializer_list<Bytes> parts) {
    return Send(kind, std::span(parts.begin(), parts.size()));
  }
  Status Send(uint32_t kind, std::span<const Bytes> parts);

  // Replaces all handlers. Frames that have come wait for the next round of the
  // loop.
  void SetHandlers(Handlers handlers);
  // Names the peer in errors from now on.
  void set_peer(std::string peer) { options_.peer = std::move(peer); }
  const std::string& peer() const { return options_.peer; }

  bool open() const { return state_ == State::kOpen; }
  // Returns true once the channel was open, also after its end.
  bool was_open() const { return was_open_; }
  // Returns why the peer was refused; kNone where it was not.
  Refusal refusal() const { return refusal_; }
  // Returns the peer's restart count. REQUIRES: its Head has come.
  uint32_t peer_restart() const { return handshake_.peer_restart(); }

  size_t queued_bytes() const { return queued_bytes_; }
  uint64_t bytes_sent() const { return bytes_sent_; }
  uint64_t bytes_received() const { return bytes_received_; }
  // Returns the socket, for tests and for questions about its addresses.
  int socket() const { return socket_.get(); }

 private:
  // kOpening: the last frame of the greeting is being handled.
  enum class State { kConnecting, kHead, kProof, kOpening, kOpen, kClosed };
  enum ReservedKind : uint32_t {
    kHeartbeatKind = kFirstReservedKind,
    kHeadKind,
    kProofKind,
    kRefusalKind,
  };

  Channel(Loop* loop, Fd socket, ChannelOptions options, Handlers handlers);

  Status Start();
  Status SetUserTimeout();
  // Calls `work`, which may call handlers, and ends the channel on its error.
  // The argument of `work` tells, after each handler, whether the channel has
  // been freed.
  template <typename Work>
  void RunGuarded(const Work& work);
  void HandleEvents(uint32_t events);
  Status FinishConnecting();
  // Read and parse as much as they can.
  Status ReadSome(const bool* freed);
  Status ParseFrames(const bool* freed);
  Status HandleGreeting(const Header& header, Bytes body);
  Status Refuse(Refusal refusal);

  Status SendReserved(ReservedKind kind, Bytes body);
  // Passes the pieces to the kernel, and queues the rest.
  Status Write(std::span<const Bytes> pieces);
  // Returns the number of bytes that the kernel took.
  StatusOr<size_t> SendNow(std::span<iovec> vectors);
  void Enqueue(Bytes bytes);
  Status Flush();

  void StartTicks();
  void SetTick();
  Status Tick(const bool* freed);

  Status UpdateEvents();
  // Ends the channel in a later round, where an error is found within a call of
  // the owner, or while the channel is paused.
  void EndSoon(Status why);
  void End(const Status& why);
  bool paused() const { return open() && !handlers_->on_frame; }

  Loop* const loop_;
  ChannelOptions options_;
  // Held by the calls of handlers, which may replace them.
  std::shared_ptr<const Handlers> handlers_;
  Handshake handshake_;
  State state_ = State::kConnecting;
  Refusal refusal_ = Refusal::kNone;
  bool was_open_ = false;
  Status failure_;  // Of EndSoon.
  // Set by a callback that frees the channel.
  bool* freed_ = nullptr;

  Fd socket_;  // Before the watch, which ends first.
  Loop::Watch watch_;
  uint32_t events_ = 0;
  Loop::Timer timer_;    // Of the greeting, then of heartbeats.
  Loop::Timer pending_;  // Of EndSoon, and of frames that wait for a handler.

  ReceiveBuffer received_;
  std::deque<std::vector<std::byte>> queue_;
  size_t first_sent_ = 0;  // Bytes of queue_[0] that are sent.
  size_t queued_bytes_ = 0;
  bool was_queued_ = false;  // Whether on_drained is due.

  uint64_t bytes_sent_ = 0;
  uint64_t bytes_received_ = 0;
  uint64_t sent_at_tick_ = 0;  // bytes_sent_ of the last tick.
  Deadline::Clock::time_point last_tick_;
  Deadline::Clock::time_point last_received_;
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_CHANNEL_H_
