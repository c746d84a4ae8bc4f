// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/local_end.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/direct/control_block.h"
#include "core/comm/shm/packet.h"
#include "core/comm/shm/rendezvous.h"

namespace shard::network {

namespace {

// The most connections that are accepted, and packets of a rank that are read,
// before others have their turn.
constexpr int kMostAtOnce = 256;

// The time after which a packet is sent again that did not fit, and after which
// connections are accepted again when no descriptor was free.
constexpr double kRetrySeconds = 0.005;
constexpr double kFullSeconds = 0.1;

// The time after an error for which arriving ranks are told of it, also when
// all others have left; otherwise they would wait for their deadline.
constexpr double kLingerSeconds = 0.5;

// The most packets that wait for a rank: one that asks and never reads is gone.
constexpr size_t kMostQueued = 4096;

struct Outgoing {
  std::string bytes;
  int fd = -1;  // A duplicate, closed by `owned`.
  Fd owned;
};

template <typename T>
std::string BytesOf(const T& packet) {
  return std::string(reinterpret_cast<const char*>(&packet), sizeof(packet));
}

}  // namespace

class LocalEnd::Impl {
 public:
  Impl(Fd listening, Loop* loop, Listener* listener, double hello_seconds)
      : loop_(loop),
        listener_(listener),
        hello_seconds_(hello_seconds),
        listening_(std::move(listening)) {}

  Status Begin() {
    const int flags = ::fcntl(listening_.get(), F_GETFL);
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (flags < 0 ||
        ::getsockopt(listening_.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens,
                     &size) != 0 ||
        listens == 0) {
      return InvalidArgument("descriptor ", listening_.get(),
                             " is no listening socket");
    }
    ::fcntl(listening_.get(), F_SETFL, flags | O_NONBLOCK);
    SHARD_ASSIGN_OR_RETURN(
        listening_watch_,
        loop_->Add(listening_.get(), EPOLLIN, [this](uint32_t) { Accept(); }));
    // The rank that has started the helper may be gone already.
    CheckSoon();
    return Status();
  }

  void SendWelcome(int rank, const World& world, int memory, int bell) {
    EndMeeting();
    Welcome welcome = MakePacket<Welcome>();
    welcome.world_size = world.world_size;
    welcome.hosts = static_cast<int32_t>(world.hosts.size());
    welcome.first_rank = world.first_rank;
    welcome.ranks = world.ranks;
    Enqueue(rank, BytesOf(welcome), memory);
    for (size_t first = 0; first < world.hosts.size();
         first += WireHosts::kMost) {
      WireHosts packet = MakePacket<WireHosts>();
      packet.first = static_cast<uint32_t>(first);
      packet.count = static_cast<uint32_t>(
          std::min<size_t>(WireHosts::kMost, world.hosts.size() - first));
      for (uint32_t i = 0; i < packet.count; ++i) {
        const HostRanks& host = world.hosts[first + i];
        packet.hosts[i].first_rank = host.first_rank;
        packet.hosts[i].ranks = host.ranks;
        packet.hosts[i].name.Set(host.name);
      }
      Enqueue(rank, BytesOf(packet), -1);
    }
    Enqueue(rank, BytesOf(MakePacket<WireBell>()), bell);
  }

  void SendVerdict(int rank, uint64_t number, const Status& why) {
    Enqueue(rank, BytesOf(MakeVerdict(why, number)), -1);
  }

  void FailMeeting(const Status& why) {
    if (!failure_.ok()) return;
    failure_ = why;
    linger_until_ = Deadline::After(kLingerSeconds);
    linger_timer_ = loop_->At(linger_until_, [this] { CheckEmpty(); });
    for (const auto& [rank, member] : members_) {
      told_.insert(rank);
      SendVerdict(rank, 0, why);
    }
  }

  void SendRegion(int rank, uint64_t number, size_t bytes, int memory) {
    Region region = MakePacket<Region>();
    region.number = number;
    region.bytes = bytes;
    Enqueue(rank, BytesOf(region), memory);
  }

  std::vector<int> ranks() const {
    std::vector<int> ranks;
    for (const auto& [rank, member] : members_) ranks.push_back(rank);
    return ranks;
  }

 private:
  // A connection that has not said hello.
  struct Stranger {
    Fd socket;
    pid_t process = 0;
    Deadline deadline = Deadline::After(0);
    Loop::Watch watch;
  };
  using Strangers = std::list<Stranger>;  // In the order of their coming.

  struct Member {
    Fd socket;
    Fd pidfd;
    pid_t process = 0;
    bool said_goodbye = false;
    std::deque<Outgoing> queue;
    Loop::Watch socket_watch;
    Loop::Watch pidfd_watch;
  };

  // --- strangers ---

  void Accept() {
    for (int i = 0; i < kMostAtOnce; ++i) {
      Stranger stranger;
      stranger.deadline = Deadline::After(hello_seconds_);
      stranger.socket.Reset(::accept4(listening_.get(), nullptr, nullptr,
                                      SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!stranger.socket.valid()) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno != EAGAIN) PauseAccepting(errno);
        return;
      }
      const auto process = shm::CheckPeer(stranger.socket.get());
      if (!process.ok()) {
        WarnOfStranger(process.status().message());
        continue;
      }
      stranger.process = *process;
      Greeting greeting = MakePacket<Greeting>();
      greeting.process = ::getpid();
      if (!SendNow(stranger.socket, BytesOf(greeting), -1).ok()) continue;
      Admit(std::move(stranger));
    }
  }

  // Rests from accepting: the event of a connection that cannot be accepted
  // stays, and the loop would spin.
  void PauseAccepting(int error) {
    listener_->OnWarning(
        ErrnoStatus("accepting the connection of a rank", error).message());
    if (!strangers_.empty()) strangers_.pop_front();
    listening_watch_.Reset();
    accept_timer_ = loop_->At(Deadline::After(kFullSeconds), [this] {
      if (!listening_.valid()) return;
      auto watch =
          loop_->Add(listening_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
      if (watch.ok()) listening_watch_ = *std::move(watch);
      CheckSoon();
    });
  }

  void Admit(Stranger stranger) {
    if (strangers_.size() >= kMaxStrangers) {
      strangers_.pop_front();
      WarnOfStranger("it did not say hello");
    }
    strangers_.push_back(std::move(stranger));
    const auto at = std::prev(strangers_.end());
    auto watch = loop_->Add(at->socket.get(), EPOLLIN,
                            [this, at](uint32_t) { OnStranger(at); });
    if (!watch.ok()) {
      listener_->OnWarning(watch.status().message());
      strangers_.erase(at);
      return;
    }
    at->watch = *std::move(watch);
    if (strangers_.size() == 1) AwaitHello();
  }

  // Sets the timer to the end of the oldest stranger.
  void AwaitHello() {
    if (strangers_.empty()) return;
    hello_timer_ = loop_->At(strangers_.front().deadline, [this] {
      while (!strangers_.empty() && strangers_.front().deadline.Expired()) {
        WarnOfStranger(StrCat("process ", strangers_.front().process,
                              " did not say hello"));
        strangers_.pop_front();
      }
      AwaitHello();
      CheckSoon();
    });
  }

  // Warns of the first, second, fourth, ... stranger: anyone on this machine
  // can connect as often as they like, and must not fill the log.
  void WarnOfStranger(std::string_view why) {
    ++ignored_;
    if (!std::has_single_bit(ignored_)) return;
    listener_->OnWarning(StrCat(
        "ignored ", ignored_,
        ignored_ == 1 ? " connection: " : " connections, the last: ", why));
  }

  void OnStranger(Strangers::iterator at) {
    auto packet = shm::ReceiveNow(at->socket.get());
    if (packet.status().code() == StatusCode::kNotFound) return;
    Stranger stranger = std::move(*at);
    strangers_.erase(at);
    stranger.watch.Reset();
    CheckSoon();
    // Gone again.
    if (packet.status().code() == StatusCode::kUnavailable) return;
    if (packet.status().code() == StatusCode::kResourceExhausted) {
      Refuse(stranger, packet.status().WithContext("the network helper"));
      return;
    }
    LocalHeader header{};
    if (packet.ok() && packet->bytes.size() >= sizeof(header)) {
      std::memcpy(&header, packet->bytes.data(), sizeof(header));
    }
    if (header.magic != kLocalMagic || header.kind != Hello::kKind) {
      WarnOfStranger(
          StrCat("process ", stranger.process, " did not say hello"));
      return;
    }
    const auto hello = Parse<Hello>(packet->bytes);
    if (!hello) {
      Refuse(stranger,
             FailedPrecondition(
                 "process ", stranger.process, " speaks version ",
                 header.version, " of the network helper's protocol, process ",
                 ::getpid(), " version ", kLocalVersion,
                 "; all ranks must load the same libshard, and the helper "
                 "must come with it"));
      return;
    }
    Welcomed(std::move(stranger), *hello, std::move(packet->fds));
  }

  // Takes a rank in, or refuses it.
  void Welcomed(Stranger stranger, const Hello& hello, std::vector<Fd> fds) {
    const int rank = hello.rank;
    // A process may have come in place of one whose end is not seen yet.
    if (const auto old = members_.find(rank); old != members_.end()) {
      if (IsOver(old->second)) RemoveMember(rank);
    }
    // A rank that comes once more after the meeting has failed begins another.
    if (!failure_.ok() && !told_.insert(rank).second) EndMeeting();
    if (!listening_.valid()) {
      Tell(stranger, Unavailable("the meeting is over"), kMeetingIsOver);
      return;
    }
    if (!failure_.ok()) {
      Tell(stranger, failure_);
      return;
    }
    if (const Status wrong = Check(stranger, hello); !wrong.ok()) {
      told_.insert(rank);
      Refuse(stranger, wrong);
      return;
    }
    Member& member = members_[rank];
    member.process = stranger.process;
    member.socket = std::move(stranger.socket);
    if (fds.size() == 1) member.pidfd = std::move(fds[0]);
    const Status watched = WatchMember(rank, &member);
    if (!watched.ok()) {
      stranger.socket = std::move(member.socket);
      members_.erase(rank);
      Refuse(stranger, watched);
      return;
    }
    world_size_ = hello.world_size;
    options_ = hello.options.Get();
    first_rank_ = rank;
    const double seconds = static_cast<double>(hello.remaining_nanos) * 1e-9;
    listener_->OnRank(
        {.rank = rank,
         .world_size = hello.world_size,
         .process = stranger.process,
         .deadline = Deadline::After(seconds),
         .timeout = static_cast<double>(hello.timeout_nanos) * 1e-9,
         .options = options_});
  }

  Status Check(const Stranger& stranger, const Hello& hello) const {
    const int rank = hello.rank;
    const int world_size = hello.world_size;
    if (world_size < 1 || world_size > direct::kMaxRanks || rank < 0 ||
        rank >= world_size) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("process ", stranger.process, " says it is rank ",
                           rank, " of ", world_size, "; at most ",
                           direct::kMaxRanks, " ranks are possible, from 0 on"),
                    rank);
    }
    if (world_size_ != 0 && world_size != world_size_) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("rank ", rank, " says world size ", world_size,
                           ", rank ", first_rank_, " says ", world_size_),
                    rank);
    }
    if (world_size_ != 0 && hello.options.Get() != options_) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("rank ", rank, " has the options '",
                           hello.options.Get(), "', rank ", first_rank_, " '",
                           options_, "'; all ranks must open the same URL"),
                    rank);
    }
    if (const auto old = members_.find(rank); old != members_.end()) {
      return Status(StatusCode::kAlreadyExists,
                    StrCat("two processes say they are rank ", rank, ": ",
                           old->second.process, " and ", stranger.process),
                    rank);
    }
    return Status();
  }

  void Refuse(const Stranger& stranger, const Status& why) {
    Tell(stranger, why);
    listener_->OnRefused(why);
  }

  static void Tell(const Stranger& stranger, const Status& why,
                   uint64_t number = 0) {
    (void)SendNow(stranger.socket, BytesOf(MakeVerdict(why, number)), -1);
  }

  // --- ranks ---

  Status WatchMember(int rank, Member* member) {
    SHARD_ASSIGN_OR_RETURN(
        member->socket_watch,
        loop_->Add(member->socket.get(), EPOLLIN,
                   [this, rank](uint32_t) { OnMember(rank); }));
    if (!member->pidfd.valid()) return Status();
    auto watch = loop_->Add(member->pidfd.get(), EPOLLIN,
                            [this, rank](uint32_t) { RemoveMember(rank); });
    if (watch.ok()) {
      member->pidfd_watch = *std::move(watch);
    } else {
      // A descriptor that is none of a process: the connection's end will do.
      member->pidfd.Reset();
    }
    return Status();
  }

  // Whether the process of a rank has ended, or its connection.
  static bool IsOver(const Member& member) {
    pollfd entries[2] = {{member.socket.get(), POLLRDHUP, 0},
                         {member.pidfd.get(), POLLIN, 0}};
    return ::poll(entries, 2, 0) > 0;
  }

  void OnMember(int rank) {
    for (int i = 0; i < kMostAtOnce; ++i) {
      const auto member = members_.find(rank);
      // Callbacks may have ended it.
      if (member == members_.end()) return;
      const auto packet = shm::ReceiveNow(member->second.socket.get());
      if (packet.status().code() == StatusCode::kNotFound) return;
      if (!packet.ok()) {
        if (packet.status().code() != StatusCode::kUnavailable) {
          listener_->OnWarning(
              StrCat("rank ", rank, ": ", packet.status().message()));
        }
        RemoveMember(rank);
        return;
      }
      if (const auto request = Parse<WireRegionRequest>(packet->bytes)) {
        OnRequest(rank, *request);
      } else if (const auto release = Parse<Release>(packet->bytes)) {
        listener_->OnRelease(rank, release->key.Get());
      } else if (Parse<Goodbye>(packet->bytes)) {
        member->second.said_goodbye = true;
      } else {
        listener_->OnWarning(StrCat("rank ", rank, " sent a wrong packet"));
        RemoveMember(rank);
        return;
      }
    }
  }

  void OnRequest(int rank, const WireRegionRequest& wire) {
    Request request;
    request.number = wire.number;
    request.key = wire.key.Get();
    request.bytes = wire.bytes;
    request.layout = {.kind = wire.layout.kind,
                      .cells = wire.layout.cells,
                      .payload_bytes = wire.layout.payload_bytes,
                      .block = wire.layout.block.Get()};
    if (request.bytes == 0) {
      SendVerdict(rank, request.number, InvalidArgument("a region of 0 bytes"));
      return;
    }
    listener_->OnRegionRequest(rank, request);
  }

  void RemoveMember(int rank) {
    const auto at = members_.find(rank);
    if (at == members_.end()) return;
    // The rank may have said goodbye before its process ended.
    for (;;) {
      const auto packet = shm::ReceiveNow(at->second.socket.get());
      if (!packet.ok()) break;
      if (Parse<Goodbye>(packet->bytes)) at->second.said_goodbye = true;
    }
    const bool left = at->second.said_goodbye;
    const Status why =
        RankLost(rank, "rank ", rank, " (process ", at->second.process, ") ",
                 left ? "left" : "died");
    members_.erase(at);
    told_.insert(rank);
    CheckSoon();
    listener_->OnGone(rank, left ? End::kLeft : End::kDied, why);
  }

  // --- packets ---

  static Status SendNow(const Fd& socket, const std::string& bytes, int fd) {
    std::vector<int> fds;
    if (fd >= 0) fds.push_back(fd);
    return shm::Send(socket.get(), bytes.data(), bytes.size(), fds,
                     Deadline::After(0));
  }

  void Enqueue(int rank, std::string bytes, int fd) {
    const auto at = members_.find(rank);
    if (at == members_.end()) return;
    Outgoing packet{std::move(bytes), fd, Fd()};
    if (at->second.queue.empty() && TrySend(rank, &at->second, packet)) return;
    // The owner may close its descriptor.
    if (fd >= 0) {
      packet.owned.Reset(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
      if (!packet.owned.valid()) {
        listener_->OnWarning(
            ErrnoStatus("keeping memory for a rank", errno).message());
        return;
      }
      packet.fd = packet.owned.get();
    }
    if (at->second.queue.size() >= kMostQueued) return;
    at->second.queue.push_back(std::move(packet));
    retry_timer_ =
        loop_->At(Deadline::After(kRetrySeconds), [this] { Flush(); });
  }

  // Returns whether the packet need not be sent again.
  bool TrySend(int rank, Member* member, const Outgoing& packet) {
    const Status sent = SendNow(member->socket, packet.bytes, packet.fd);
    if (sent.code() == StatusCode::kDeadlineExceeded) return false;
    // The end of a connection is seen by its watch.
    if (!sent.ok() && sent.code() != StatusCode::kUnavailable) {
      listener_->OnWarning(StrCat("rank ", rank, ": ", sent.message()));
    }
    return true;
  }

  void Flush() {
    bool more = false;
    for (auto& [rank, member] : members_) {
      while (!member.queue.empty() &&
             TrySend(rank, &member, member.queue.front())) {
        member.queue.pop_front();
      }
      more = more || !member.queue.empty();
    }
    if (!more) return;
    retry_timer_ =
        loop_->At(Deadline::After(kRetrySeconds), [this] { Flush(); });
  }

  // --- the end ---

  void CheckSoon() {
    check_timer_ = loop_->Soon([this] { CheckEmpty(); });
  }

  void CheckEmpty() {
    if (said_empty_ || !members_.empty() || !strangers_.empty()) return;
    if (listening_.valid()) {
      if (!failure_.ok() && !linger_until_.Expired()) return;
      // A rank may wait to be accepted.
      Accept();
      if (!strangers_.empty() || !listening_watch_.active()) return;
      EndMeeting();
    }
    said_empty_ = true;
    listener_->OnEmpty();
  }

  // Gives the name of the meeting free. Ranks that have not been accepted find
  // their connections closed, and start another helper.
  void EndMeeting() {
    accept_timer_.Reset();
    listening_watch_.Reset();
    listening_.Reset();
  }

  Loop* const loop_;
  Listener* const listener_;
  const double hello_seconds_;
  Fd listening_;
  Loop::Watch listening_watch_;
  Strangers strangers_;
  std::map<int, Member> members_;  // By rank.
  Status failure_;                 // Of the meeting.
  std::set<int> told_;  // The ranks that know of the failure, or are gone.
  Deadline linger_until_ = Deadline::After(0);
  bool said_empty_ = false;
  // Those of the first rank, once one has come.
  int world_size_ = 0;
  int first_rank_ = -1;
  std::string options_;
  uint64_t ignored_ = 0;  // Connections of strangers.
  Loop::Timer hello_timer_;
  Loop::Timer accept_timer_;
  Loop::Timer linger_timer_;
  Loop::Timer retry_timer_;
  Loop::Timer check_timer_;
};

LocalEnd::LocalEnd(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LocalEnd::~LocalEnd() = default;

StatusOr<std::unique_ptr<LocalEnd>> LocalEnd::Create(Fd listening, Loop* loop,
                                                     Listener* listener,
                                                     double hello_seconds) {
  auto impl = std::make_unique<Impl>(std::move(listening), loop, listener,
                                     hello_seconds);
  SHARD_RETURN_IF_ERROR(impl->Begin());
  return std::unique_ptr<LocalEnd>(new LocalEnd(std::move(impl)));
}

void LocalEnd::SendWelcome(int rank, const World& world, int memory, int bell) {
  impl_->SendWelcome(rank, world, memory, bell);
}

void LocalEnd::SendVerdict(int rank, const Status& why) {
  impl_->SendVerdict(rank, 0, why);
}

void LocalEnd::FailMeeting(const Status& why) { impl_->FailMeeting(why); }

void LocalEnd::SendRegion(int rank, uint64_t number, size_t bytes, int memory) {
  impl_->SendRegion(rank, number, bytes, memory);
}

void LocalEnd::RefuseRegion(int rank, uint64_t number, const Status& why) {
  impl_->SendVerdict(rank, number, why);
}

std::vector<int> LocalEnd::ranks() const { return impl_->ranks(); }

}  // namespace shard::network
