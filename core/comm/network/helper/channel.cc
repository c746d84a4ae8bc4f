// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/channel.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/network/helper/address.h"

namespace shard::network {

namespace {

// The most bytes that one channel reads before others have their turn.
constexpr size_t kMostPerRound = size_t{1} << 20;

// The most pieces that are passed to the kernel at once.
constexpr size_t kMostPieces = 64;

// The size of a block of the queue, which small frames share.
constexpr size_t kQueueBlock = size_t{64} << 10;

// The ticks of a channel in the time after which its peer's silence ends it.
constexpr int kTicksOfSilence = 4;

Deadline::Duration Seconds(double seconds) {
  return std::chrono::duration_cast<Deadline::Duration>(
      std::chrono::duration<double>(seconds));
}

// Returns a time for the peer and for the kernel, of at least 10 ms.
uint32_t MillisOf(double seconds) {
  return static_cast<uint32_t>(std::clamp(seconds * 1000, 10.0, 1e9));
}

template <typename T>
Channel::Bytes BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

Status SetOption(int socket, int option, int value, std::string_view name) {
  if (::setsockopt(socket, IPPROTO_TCP, option, &value, sizeof(value)) != 0) {
    return ErrnoStatus(StrCat("setting ", name), errno);
  }
  return Status();
}

// Returns the error of a connection, whose peer is gone or out of reach.
Status LostConnection(std::string_view doing, int error) {
  char buffer[128];
  const char* text = ::strerror_r(error, buffer, sizeof(buffer));
  return Unavailable(doing, " failed: ", text);
}

}  // namespace

StatusOr<std::unique_ptr<Channel>> Channel::Create(Loop* loop, Fd socket,
                                                   ChannelOptions options,
                                                   Handlers handlers) {
  std::unique_ptr<Channel> channel(new Channel(
      loop, std::move(socket), std::move(options), std::move(handlers)));
  SHARD_RETURN_IF_ERROR(channel->Start());
  return channel;
}

Channel::Channel(Loop* loop, Fd socket, ChannelOptions options,
                 Handlers handlers)
    : loop_(loop),
      options_(std::move(options)),
      handlers_(std::make_shared<const Handlers>(std::move(handlers))),
      handshake_(options_.identity.get(), options_.role,
                 MillisOf(options_.silence_seconds)),
      socket_(std::move(socket)) {}

Channel::~Channel() {
  if (freed_ != nullptr) *freed_ = true;
}

Status Channel::Start() {
  const int flags = ::fcntl(socket_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return ErrnoStatus("making a socket non-blocking", errno);
  }
  SHARD_RETURN_IF_ERROR(
      SetOption(socket_.get(), TCP_NODELAY, 1, "TCP_NODELAY"));
  SHARD_RETURN_IF_ERROR(SetUserTimeout());
  timer_ = loop_->At(Deadline::After(options_.greeting_seconds), [this] {
    End(Unavailable(state_ == State::kConnecting
                        ? "did not take the connection"
                        : "did not finish its greeting",
                    " within ", options_.greeting_seconds, " s"));
  });
  return UpdateEvents();
}

Status Channel::SetUserTimeout() {
  return SetOption(socket_.get(), TCP_USER_TIMEOUT,
                   static_cast<int>(MillisOf(options_.silence_seconds)),
                   "TCP_USER_TIMEOUT");
}

template <typename Work>
void Channel::RunGuarded(const Work& work) {
  bool freed = false;
  freed_ = &freed;
  Status status = work(&freed);
  if (freed) return;
  freed_ = nullptr;
  if (status.ok()) status = UpdateEvents();
  if (status.ok()) return;
  if (paused()) {
    EndSoon(std::move(status));  // Frames that have come are read before.
  } else {
    End(status);
  }
}

void Channel::HandleEvents(uint32_t events) {
  RunGuarded([this, events](const bool* freed) -> Status {
    if (state_ == State::kConnecting) return FinishConnecting();
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !paused()) {
      SHARD_RETURN_IF_ERROR(ReadSome(freed));
      if (*freed) return Status();
    }
    SHARD_RETURN_IF_ERROR(Flush());
    if (was_queued_ && queued_bytes_ == 0) {
      was_queued_ = false;
      const auto handlers = handlers_;
      if (handlers->on_drained) handlers->on_drained();
    }
    return Status();
  });
}

Status Channel::FinishConnecting() {
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
    error = errno;
  }
  if (error != 0) return LostConnection("connecting", error);
  // TCP connects a socket to itself where nobody listens at a port that the
  // kernel has just given to the socket.
  const auto mine = SocketAddress::OfSocket(socket_.get());
  const auto theirs = SocketAddress::OfPeer(socket_.get());
  if (mine.ok() && theirs.ok() && mine->port() == theirs->port() &&
      mine->SameHost(*theirs)) {
    return Unavailable("nobody listens there");
  }
  state_ = State::kHead;
  return SendReserved(kHeadKind, BytesOf(handshake_.head()));
}

Status Channel::ReadSome(const bool* freed) {
  size_t read = 0;
  while (read < kMostPerRound && !paused()) {
    Header next{};
    const Bytes waiting = received_.data();
    if (waiting.size() >= sizeof(next)) {
      std::memcpy(&next, waiting.data(), sizeof(next));
    }
    const auto room = received_.Room(sizeof(next) + next.bytes);
    const ssize_t size = ::recv(socket_.get(), room.data(), room.size(), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return Status();
    if (size < 0) return LostConnection("receiving", errno);
    if (size == 0) {
      return Unavailable(open() ? "closed the connection: its process has "
                                  "ended, or has left the job"
                                : "closed the connection before it was "
                                  "authenticated");
    }
    read += static_cast<size_t>(size);
    bytes_received_ += static_cast<uint64_t>(size);
    last_received_ = Deadline::Clock::now();
    received_.Commit(static_cast<size_t>(size));
    SHARD_RETURN_IF_ERROR(ParseFrames(freed));
    if (*freed || static_cast<size_t>(size) < room.size()) return Status();
  }
  return Status();
}

Status Channel::ParseFrames(const bool* freed) {
  while (!paused()) {
    const Bytes data = received_.data();
    Header header{};
    if (data.size() < sizeof(header)) return Status();
    std::memcpy(&header, data.data(), sizeof(header));
    const size_t limit = open() ? options_.max_frame_bytes : kMaxGreetingBytes;
    if (header.bytes > limit) {
      if (!open()) return Refuse(Refusal::kStranger);
      return Internal("sent a frame of ", header.bytes, " bytes; at most ",
                      limit, " are allowed");
    }
    const size_t frame = sizeof(header) + header.bytes;
    if (data.size() < frame) return Status();
    const Bytes body = data.subspan(sizeof(header), header.bytes);
    if (!open()) {
      SHARD_RETURN_IF_ERROR(HandleGreeting(header, body));
    } else if (header.kind < kFirstReservedKind) {
      const auto handlers = handlers_;
      handlers->on_frame(header.kind, body);
    } else if (header.kind != kHeartbeatKind || header.bytes != 0) {
      return Internal("sent a frame of the unknown kind ", header.kind);
    }
    if (*freed) return Status();
    received_.Consume(frame);
    if (state_ == State::kOpening) {
      state_ = State::kOpen;
      was_open_ = true;
      const auto handlers = handlers_;
      if (handlers->on_open) handlers->on_open();
      if (*freed) return Status();
    }
  }
  return Status();
}

Status Channel::HandleGreeting(const Header& header, Bytes body) {
  const bool listens = Listens(options_.role);
  Refusal refusal = Refusal::kStranger;
  if (state_ == State::kHead && header.kind == kHeadKind) {
    refusal = handshake_.TakeHead(body);
    if (refusal != Refusal::kNone) return Refuse(refusal);
    state_ = State::kProof;
    if (listens) return Status();
    return SendReserved(kProofKind, BytesOf(handshake_.MakeProof()));
  }
  if (state_ == State::kProof && header.kind == kRefusalKind && !listens) {
    return Refuse(Refusal::kSecret);
  }
  if (state_ == State::kProof && header.kind == kProofKind) {
    refusal = handshake_.TakeProof(body);
    if (listens) {
      // An error of sending shows as the end of the connection.
      (void)(refusal == Refusal::kNone
                 ? SendReserved(kProofKind, BytesOf(handshake_.MakeProof()))
                 : SendReserved(kRefusalKind, {}));
    }
    if (refusal == Refusal::kNone) refusal = handshake_.Compare();
    if (refusal == Refusal::kNone) {
      StartTicks();
      state_ = State::kOpening;
      return SetUserTimeout();
    }
  }
  return Refuse(refusal);
}

Status Channel::Refuse(Refusal refusal) {
  refusal_ = refusal;
  return handshake_.ErrorOf(refusal);
}

Status Channel::Send(uint32_t kind, std::span<const Bytes> parts) {
  if (!open() || !failure_.ok()) {
    return Unavailable(options_.peer, ": the connection has ended");
  }
  size_t bytes = 0;
  for (const Bytes& part : parts) bytes += part.size();
  if (bytes > std::numeric_limits<uint32_t>::max()) {
    return InvalidArgument("a frame of ", bytes, " bytes is too large");
  }
  if (sizeof(Header) + bytes > options_.max_queued_bytes - queued_bytes_) {
    return ResourceExhausted(options_.peer, ": ", FormatBytes(queued_bytes_),
                             " wait to be sent, and a frame of ",
                             FormatBytes(bytes), " more has no room; at most ",
                             FormatBytes(options_.max_queued_bytes),
                             " may wait");
  }
  const Header header{static_cast<uint32_t>(bytes), kind};
  std::vector<Bytes> pieces{BytesOf(header)};
  pieces.insert(pieces.end(), parts.begin(), parts.end());
  Status status = Write(pieces);
  if (status.ok()) status = UpdateEvents();
  if (!status.ok()) EndSoon(status);
  return Status();
}

Status Channel::SendReserved(ReservedKind kind, Bytes body) {
  const Header header{static_cast<uint32_t>(body.size()), kind};
  return Write(std::array{BytesOf(header), body});
}

Status Channel::Write(std::span<const Bytes> pieces) {
  size_t sent = 0;
  if (queue_.empty()) {
    std::array<iovec, kMostPieces> vectors;
    const size_t count = std::min(pieces.size(), kMostPieces);
    for (size_t i = 0; i < count; ++i) {
      vectors[i] = {const_cast<std::byte*>(pieces[i].data()), pieces[i].size()};
    }
    SHARD_ASSIGN_OR_RETURN(sent, SendNow(std::span(vectors.data(), count)));
  }
  for (const Bytes& piece : pieces) {
    const size_t skipped = std::min(sent, piece.size());
    sent -= skipped;
    Enqueue(piece.subspan(skipped));
  }
  return Status();
}

StatusOr<size_t> Channel::SendNow(std::span<iovec> vectors) {
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = vectors.size();
  for (;;) {
    const ssize_t size = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (size >= 0) {
      bytes_sent_ += static_cast<uint64_t>(size);
      return static_cast<size_t>(size);
    }
    if (errno == EAGAIN || errno == ENOBUFS) return size_t{0};
    if (errno != EINTR) return LostConnection("sending", errno);
  }
}

void Channel::Enqueue(Bytes bytes) {
  if (bytes.empty()) return;
  queued_bytes_ += bytes.size();
  was_queued_ = true;
  if (queue_.empty() ||
      queue_.back().capacity() - queue_.back().size() < bytes.size()) {
    queue_.emplace_back().reserve(std::max(bytes.size(), kQueueBlock));
  }
  queue_.back().insert(queue_.back().end(), bytes.begin(), bytes.end());
}

Status Channel::Flush() {
  while (!queue_.empty()) {
    std::array<iovec, kMostPieces> vectors;
    size_t count = 0;
    size_t bytes = 0;
    for (auto& block : queue_) {
      if (count == kMostPieces) break;
      const size_t skipped = count == 0 ? first_sent_ : 0;
      vectors[count] = {block.data() + skipped, block.size() - skipped};
      bytes += vectors[count++].iov_len;
    }
    SHARD_ASSIGN_OR_RETURN(size_t sent,
                           SendNow(std::span(vectors.data(), count)));
    const bool took_all = sent == bytes;
    queued_bytes_ -= sent;
    sent += first_sent_;
    while (!queue_.empty() && sent >= queue_.front().size()) {
      sent -= queue_.front().size();
      queue_.pop_front();
    }
    first_sent_ = sent;
    if (!took_all) break;
  }
  return Status();
}

void Channel::SetHandlers(Handlers handlers) {
  const bool was_paused = paused();
  handlers_ = std::make_shared<const Handlers>(std::move(handlers));
  if (state_ == State::kClosed) return;
  if (was_paused) last_received_ = Deadline::Clock::now();
  if (!failure_.ok()) {
    EndSoon(failure_);
    return;
  }
  pending_ = loop_->Soon([this] {
    RunGuarded([this](const bool* freed) { return ParseFrames(freed); });
  });
}

void Channel::StartTicks() {
  const double theirs = std::max(10u, handshake_.peer_silence_millis()) * 1e-3;
  options_.silence_seconds = std::min(options_.silence_seconds, theirs);
  last_tick_ = last_received_ = Deadline::Clock::now();
  sent_at_tick_ = bytes_sent_;
  SetTick();
}

void Channel::SetTick() {
  timer_ = loop_->At(
      Deadline::After(options_.silence_seconds / kTicksOfSilence), [this] {
        RunGuarded([this](const bool* freed) { return Tick(freed); });
      });
}

Status Channel::Tick(const bool* freed) {
  if (!failure_.ok()) return Status();
  // The loop may have been late, and bytes of the peer may be waiting.
  if (!paused()) {
    SHARD_RETURN_IF_ERROR(ReadSome(freed));
    if (*freed) return Status();
  }
  const auto now = Deadline::Clock::now();
  const auto silence = Seconds(options_.silence_seconds);
  if (paused() || now - last_tick_ > silence / 2) last_received_ = now;
  if (now - last_received_ > silence) {
    return Unavailable(
        "sent nothing for ", options_.silence_seconds,
        " s: its process is stopped, or its host or the network is down");
  }
  if (bytes_sent_ == sent_at_tick_ && queue_.empty()) {
    SHARD_RETURN_IF_ERROR(SendReserved(kHeartbeatKind, {}));
  }
  sent_at_tick_ = bytes_sent_;
  last_tick_ = now;
  SetTick();
  return Status();
}

Status Channel::UpdateEvents() {
  if (state_ == State::kClosed) return Status();
  uint32_t events = 0;
  if (failure_.ok()) {
    if (state_ == State::kConnecting) {
      events = EPOLLOUT;
    } else {
      if (!paused()) events |= EPOLLIN;
      if (!queue_.empty()) events |= EPOLLOUT;
    }
  }
  if (events == events_) return Status();
  events_ = events;
  // The kernel reports a broken connection always, which would wake the loop
  // for ever while nobody may read what came before.
  if (events == 0) {
    watch_.Reset();
    return Status();
  }
  if (watch_.active()) return watch_.SetEvents(events);
  SHARD_ASSIGN_OR_RETURN(
      watch_, loop_->Add(socket_.get(), events,
                         [this](uint32_t found) { HandleEvents(found); }));
  return Status();
}

void Channel::EndSoon(Status why) {
  failure_ = std::move(why);
  (void)UpdateEvents();
  pending_ = loop_->Soon([this] {
    if (paused()) return;  // SetHandlers comes back to it.
    RunGuarded([this](const bool* freed) -> Status {
      SHARD_RETURN_IF_ERROR(ParseFrames(freed));
      // The peer may have sent its reason before it closed the connection.
      if (!*freed) SHARD_RETURN_IF_ERROR(ReadSome(freed));
      return *freed || paused() ? Status() : failure_;
    });
  });
}

void Channel::End(const Status& why) {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  watch_.Reset();
  timer_.Reset();
  pending_.Reset();
  socket_.Reset();
  queue_.clear();
  queued_bytes_ = 0;
  const auto handlers = std::exchange(handlers_, nullptr);
  const Status named = why.WithContext(options_.peer);
  if (handlers->on_closed) handlers->on_closed(named);  // May free this.
}

}  // namespace shard::network
