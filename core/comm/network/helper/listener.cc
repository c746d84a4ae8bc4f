// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/listener.h"

#include <sys/socket.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <utility>

#include "core/base/strings.h"

namespace shard::network {

namespace {

// The most connections that are accepted before others have their turn.
constexpr int kMostAccepted = 256;

// The time for which a process without descriptors accepts nothing.
constexpr double kRestSeconds = 0.1;

}  // namespace

StatusOr<std::unique_ptr<Listener>> Listener::Create(Loop* loop, Fd listening,
                                                     Options options,
                                                     OnOpen on_open,
                                                     OnRefused on_refused) {
  SHARD_ASSIGN_OR_RETURN(const SocketAddress address,
                         SocketAddress::OfSocket(listening.get()));
  std::unique_ptr<Listener> listener(
      new Listener(loop, std::move(listening), address, std::move(options),
                   std::move(on_open), std::move(on_refused)));
  SHARD_RETURN_IF_ERROR(listener->Watch());
  return listener;
}

Listener::Listener(Loop* loop, Fd listening, const SocketAddress& address,
                   Options options, OnOpen on_open, OnRefused on_refused)
    : loop_(loop),
      listening_(std::move(listening)),
      address_(address),
      options_(std::move(options)),
      on_open_(std::move(on_open)),
      on_refused_(std::move(on_refused)) {}

Listener::~Listener() = default;

Status Listener::Watch() {
  SHARD_ASSIGN_OR_RETURN(watch_,
                         loop_->Add(listening_.get(), EPOLLIN,
                                    [this](uint32_t) { AcceptSome(); }));
  return Status();
}

void Listener::AcceptSome() {
  for (int i = 0; i < kMostAccepted; ++i) {
    const bool is_full = strangers_.size() >= options_.max_strangers;
    if (is_full) {
      const Deadline& least = strangers_.begin()->second.least;
      if (!least.Expired()) {
        return Rest(std::chrono::duration<double>(least.Remaining()).count());
      }
    }
    Fd socket(::accept4(listening_.get(), nullptr, nullptr,
                        SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) {
      if (is_full) CloseOldest();
      Take(std::move(socket));
      continue;
    }
    if (errno == EAGAIN) return;
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS &&
        errno != ENOMEM) {
      continue;  // The connection has ended already.
    }
    if (!strangers_.empty()) {
      CloseOldest();
      continue;
    }
    WarnOfStranger(ErrnoStatus("accepting a connection", errno));
    return Rest(kRestSeconds);
  }
}

void Listener::Rest(double seconds) {
  watch_.Reset();
  rest_ = loop_->At(Deadline::After(seconds), [this] { EndRest(); });
}

void Listener::EndRest() {
  if (watch_.active()) return;
  rest_.Reset();
  const Status status = Watch();
  if (!status.ok()) WarnOfStranger(status);
}

void Listener::Take(Fd socket) {
  ChannelOptions channel = options_.channel;
  const auto peer = SocketAddress::OfPeer(socket.get());
  if (!peer.ok()) return;  // It has gone.
  channel.peer = peer->ToString();
  const uint64_t id = next_id_++;
  auto created = Channel::Create(
      loop_, std::move(socket), std::move(channel),
      {.on_open = [this, id] { HandleOpen(id); },
       .on_closed = [this, id](const Status& why) { HandleClosed(id, why); }});
  if (!created.ok()) {
    WarnOfStranger(created.status());
    return;
  }
  strangers_.emplace(
      id, Connection{*std::move(created), Deadline::After(kLeastSeconds)});
}

void Listener::HandleOpen(uint64_t id) {
  auto node = strangers_.extract(id);
  std::unique_ptr<Channel> channel = std::move(node.mapped().channel);
  channel->SetHandlers({});
  EndRest();
  // The owner may free the Listener.
  const OnOpen on_open = on_open_;
  on_open(std::move(channel));
}

void Listener::HandleClosed(uint64_t id, const Status& why) {
  const auto node = strangers_.extract(id);
  const Channel& channel = *node.mapped().channel;
  EndRest();
  WarnOfStranger(why, channel.refusal());
  if (!on_refused_) return;
  const OnRefused on_refused = on_refused_;
  on_refused(channel, channel.refusal(), why);
}

void Listener::CloseOldest() {
  const std::unique_ptr<Channel> oldest =
      std::move(strangers_.extract(strangers_.begin()).mapped().channel);
  WarnOfStranger(Unavailable(oldest->peer(),
                             ": the oldest of too many connections that had "
                             "not been authenticated"));
}

void Listener::WarnOfStranger(const Status& why, Refusal refusal) {
  ++refused_;
  const bool is_libshard =
      refusal != Refusal::kNone && refusal != Refusal::kStranger;
  if (is_libshard || !last_was_libshard_) last_refusal_ = why;
  last_was_libshard_ = last_was_libshard_ || is_libshard;
  if (!options_.warn || !std::has_single_bit(refused_)) return;
  options_.warn(
      StrCat(address_.ToString(), ": refused ", refused_,
             refused_ == 1 ? " connection: " : " connections, the last: ",
             why.message()));
}

}  // namespace shard::network
