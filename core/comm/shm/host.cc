// SPDX-License-Identifier: Apache-2.0
//
// Rank 0's side of a rendezvous. Longer than other files: it is one
// conversation, and each of its steps depends on the ranks that have come.

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <optional>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/direct/control_block.h"
#include "core/comm/shm/memfd.h"
#include "core/comm/shm/packet.h"
#include "core/comm/shm/rendezvous.h"
#include "core/comm/shm/wire.h"

namespace shard::shm {

namespace {

// The most connections that have not said hello. More are strangers: the oldest
// is closed.
constexpr size_t kMaxStrangers = 1024;

// The most connections that are accepted before guests and the deadline are
// checked.
constexpr int kMostAccepted = 256;

// The time after an error for which arriving ranks are told of it; otherwise
// they would wait for their deadline.
constexpr double kLingerSeconds = 0.5;

struct Guest {
  Fd socket;
  Fd pidfd;
  pid_t process = 0;
};

class HostSide {
 public:
  explicit HostSide(const RendezvousOptions& options)
      : options_(options),
        deadline_(options.deadline),
        guests_(static_cast<size_t>(options.world_size)),
        most_expected_(options.world_size) {}

  StatusOr<Rendezvous> Run() {
    SHARD_RETURN_IF_ERROR(Listen());
    Status status = CollectHellos();
    if (status.ok()) status = SendWelcome();
    if (status.ok()) status = CollectAnswers();
    const StatusCode code = status.code();
    if (status.rank() < 0 && (code == StatusCode::kResourceExhausted ||
                              code == StatusCode::kInternal)) {
      // The error is this process's own: other ranks must know which rank had
      // it.
      status = Status(code, StrCat("rank 0: ", status.message()), 0);
    }
    SendToAll(status);
    if (!status.ok()) {
      RefuseLateRanks(status);
      return status;
    }
    for (Guest& guest : guests_) {
      rendezvous_.connections.push_back(std::move(guest.socket));
    }
    return std::move(rendezvous_);
  }

 private:
  Status Listen() {
    listener_.Reset(
        ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!listener_.valid()) return ErrnoStatus("opening a Unix socket", errno);
    const Address where = AddressOf(options_.name);
    if (::bind(listener_.get(),
               reinterpret_cast<const sockaddr*>(&where.address),
               where.size) != 0) {
      if (errno != EADDRINUSE) return ErrnoStatus("binding a socket", errno);
      return NameTaken(where);
    }
    if (::listen(listener_.get(), options_.world_size + 16) != 0) {
      return ErrnoStatus("listening on a socket", errno);
    }
    options_.Phase("rendezvous: listening");
    return Status();
  }

  // Returns an error that names the process that has bound the name: any user
  // of this machine may.
  Status NameTaken(const Address& where) const {
    const Fd socket(
        ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ucred owner{};
    socklen_t size = sizeof(owner);
    const bool known =
        socket.valid() &&
        ::connect(socket.get(),
                  reinterpret_cast<const sockaddr*>(&where.address),
                  where.size) == 0 &&
        ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &owner, &size) == 0;
    std::string who =
        "a process that takes no connection, maybe one of another user";
    if (known && owner.uid == ::geteuid()) {
      who = StrCat("process ", owner.pid,
                   " of this user has bound it and waits for its ranks there");
    } else if (known) {
      who = StrCat("process ", owner.pid, " of user ", owner.uid,
                   " has bound it, this one is of user ",
                   static_cast<uint64_t>(::geteuid()));
    }
    return Status(StatusCode::kAlreadyExists,
                  StrCat("the name of shm:", options_.name, " is taken: ", who,
                         "; give each job a name of its own, and each process "
                         "a rank of its own"),
                  0);
  }

  // Waits until every rank has said hello, or one of them fails the rendezvous.
  Status CollectHellos() {
    while (come_ + 1 < options_.world_size) {
      if (deadline_.Expired()) return MissingRanks();
      std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
      for (const Guest& stranger : strangers_) {
        entries.push_back({stranger.socket.get(), POLLIN, 0});
      }
      for (const Guest& guest : guests_) {  // poll() skips negative ones.
        entries.push_back({guest.socket.get(), POLLIN, 0});
      }
      if (::poll(entries.data(), entries.size(), PollMillis(deadline_, 1000)) <=
          0) {
        continue;
      }
      const size_t first_guest = 1 + strangers_.size();
      for (size_t r = 0; r < guests_.size(); ++r) {
        // A guest has nothing to send now: an event is its end.
        if (entries[first_guest + r].revents != 0) {
          return GuestLost(static_cast<int>(r));
        }
      }
      for (size_t i = strangers_.size(); i-- > 0;) {
        if (entries[1 + i].revents == 0) continue;
        Guest stranger = std::move(strangers_[i]);
        strangers_.erase(strangers_.begin() + static_cast<ptrdiff_t>(i));
        SHARD_RETURN_IF_ERROR(ReceiveHello(std::move(stranger)));
      }
      if (entries[0].revents != 0) SHARD_RETURN_IF_ERROR(AcceptSome());
    }
    return Status();
  }

  // Accepts some of the waiting connections: strangers may come faster than
  // they are turned away.
  Status AcceptSome() {
    for (int i = 0; i < kMostAccepted; ++i) {
      Guest stranger;
      stranger.socket.Reset(::accept4(listener_.get(), nullptr, nullptr,
                                      SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!stranger.socket.valid()) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
          return ErrnoStatus("accepting a rank's connection", errno);
        }
        if (errno == EINTR || errno == ECONNABORTED) continue;
        return Status();
      }
      const auto process = CheckPeer(stranger.socket.get());
      if (!process.ok()) {
        WarnOfStranger(process.status().message());
        continue;
      }
      stranger.process = *process;
      const Greeting greeting{Header::Of(Kind::kGreeting)};
      if (!SendNow(stranger.socket.get(), greeting)) continue;
      if (strangers_.size() >= kMaxStrangers) {
        strangers_.erase(strangers_.begin());
      }
      strangers_.push_back(std::move(stranger));
    }
    return Status();
  }

  // Warns of the first, second, fourth, ... stranger: anyone on this machine
  // can connect as often as they like, and must not fill the host's log.
  void WarnOfStranger(std::string_view why) {
    ++ignored_;
    if (!std::has_single_bit(ignored_)) return;
    options_.observer->Log(
        EventId::kStranger, "shm:", options_.name, ": ignored ", ignored_,
        ignored_ == 1 ? " connection: " : " connections, the last: ", why);
  }

  // Receives a stranger's first packet. An error is one of the whole
  // rendezvous; a stranger with another protocol is dropped.
  Status ReceiveHello(Guest stranger) {
    auto packet = ReceiveNow(stranger.socket.get());
    if (packet.status().code() == StatusCode::kResourceExhausted) {
      rejected_.push_back(std::move(stranger));
      return packet.status();  // No room for its pidfd, nor for the next one.
    }
    Header header{};
    if (packet.ok() && packet->bytes.size() >= sizeof(Header)) {
      std::memcpy(&header, packet->bytes.data(), sizeof(Header));
    }
    if (header.magic != kMagic || header.kind != Kind::kHello) {
      WarnOfStranger(
          StrCat("process ", stranger.process, " did not say hello"));
      return Status();
    }
    const auto hello = Parse<Hello>(packet->bytes, Kind::kHello);
    const pid_t process = stranger.process;
    if (header.version != kVersion || !hello) {
      rejected_.push_back(std::move(stranger));
      return FailedPrecondition(
          "process ", process, " speaks version ", header.version,
          " of the shm: protocol, rank 0 version ", kVersion,
          "; all ranks must load the same libshard");
    }
    const int rank = hello->rank;
    most_expected_ = std::max(most_expected_, hello->world_size);
    Status wrong;
    if (hello->world_size != options_.world_size) {
      wrong =
          Status(StatusCode::kInvalidArgument,
                 StrCat("rank ", rank, " says world size ", hello->world_size,
                        ", rank 0 says ", options_.world_size),
                 rank);
    } else if (rank < 1 || rank >= options_.world_size) {
      wrong = Status(StatusCode::kInvalidArgument,
                     StrCat("process ", process, " says it is rank ", rank,
                            "; the other ranks of ", options_.world_size,
                            " are 1 to ", options_.world_size - 1),
                     rank);
    } else if (Guest& guest = guests_[static_cast<size_t>(rank)];
               guest.socket.valid()) {
      wrong = Status(StatusCode::kAlreadyExists,
                     StrCat("two processes say they are rank ", rank, ": ",
                            guest.process, " and ", process),
                     rank);
    }
    if (!wrong.ok()) {
      rejected_.push_back(std::move(stranger));
      return wrong;
    }
    if (packet->fds.size() == 1) stranger.pidfd = std::move(packet->fds[0]);
    guests_[static_cast<size_t>(rank)] = std::move(stranger);
    ++come_;
    const double patience = static_cast<double>(hello->remaining_nanos) * 1e-9;
    if (patience < Seconds(deadline_)) deadline_ = Deadline::After(patience);
    return Status();
  }

  Status SendWelcome() {
    const size_t bytes = direct::ControlBlock::Bytes(options_.world_size);
    SHARD_ASSIGN_OR_RETURN(const Fd memory,
                           CreateMemory("libshard-control", bytes));
    SHARD_RETURN_IF_ERROR(MapControlBlock(memory, options_, &rendezvous_));
    SHARD_ASSIGN_OR_RETURN(guests_[0].pidfd, OwnPidfd());
    guests_[0].process = ::getpid();

    const bool has_pidfds =
        std::all_of(guests_.begin(), guests_.end(),
                    [](const Guest& guest) { return guest.pidfd.valid(); });
    Verdict welcome = MakeVerdict(Status());
    welcome.has_pidfds = has_pidfds;
    for (int r = 1; r < options_.world_size; ++r) {
      const int socket = guests_[static_cast<size_t>(r)].socket.get();
      Status sent =
          Send(socket, &welcome, sizeof(welcome), {memory.get()}, deadline_);
      if (sent.ok()) sent = SendPeers(socket, has_pidfds);
      if (sent.code() == StatusCode::kUnavailable) return GuestLost(r);
      SHARD_RETURN_IF_ERROR(sent);
    }
    for (Guest& guest : guests_) {
      rendezvous_.processes.push_back(guest.process);
      if (has_pidfds) rendezvous_.pidfds.push_back(std::move(guest.pidfd));
    }
    return Status();
  }

  Status SendPeers(int socket, bool has_pidfds) {
    for (size_t first = 0; first < guests_.size(); first += Peers::kMost) {
      Peers peers{};
      peers.header = Header::Of(Kind::kPeers);
      peers.first = static_cast<uint32_t>(first);
      peers.count = static_cast<uint32_t>(
          std::min<size_t>(Peers::kMost, guests_.size() - first));
      std::vector<int> fds;
      for (size_t i = 0; i < peers.count; ++i) {
        peers.pids[i] = guests_[first + i].process;
        if (has_pidfds) fds.push_back(guests_[first + i].pidfd.get());
      }
      SHARD_RETURN_IF_ERROR(
          Send(socket, &peers, sizeof(peers), fds, deadline_));
    }
    return Status();
  }

  // Collects the guests' answers. A guest that could not map the memory fails
  // the rendezvous for all.
  Status CollectAnswers() {
    for (int r = 1; r < options_.world_size; ++r) {
      const auto packet =
          Receive(guests_[static_cast<size_t>(r)].socket.get(), deadline_);
      if (packet.status().code() == StatusCode::kUnavailable) {
        return GuestLost(r);
      }
      if (packet.status().code() == StatusCode::kDeadlineExceeded) {
        return Status(StatusCode::kDeadlineExceeded,
                      StrCat("rank ", r, " came to shm:", options_.name,
                             " but did not answer in time"),
                      r);
      }
      SHARD_RETURN_IF_ERROR(packet.status());
      const auto answer = Parse<Verdict>(packet->bytes, Kind::kVerdict);
      if (!answer) return Internal("rank ", r, " answered with a wrong packet");
      if (const Status theirs = StatusOf(*answer); !theirs.ok()) {
        return Status(theirs.code(), StrCat("rank ", r, ": ", theirs.message()),
                      r);
      }
    }
    return Status();
  }

  // Sends a verdict to all guests. A guest that cannot be reached is dead, or
  // will find the connection closed.
  void SendToAll(const Status& status) {
    const Verdict verdict = MakeVerdict(status);
    for (const auto* group : {&guests_, &rejected_, &strangers_}) {
      for (const Guest& guest : *group) {
        if (guest.socket.valid()) SendNow(guest.socket.get(), verdict);
      }
    }
  }

  void RefuseLateRanks(const Status& status) {
    const Deadline until =
        Deadline::After(std::min(kLingerSeconds, Seconds(deadline_)));
    size_t told = 1 + static_cast<size_t>(come_) + rejected_.size();
    while (told < static_cast<size_t>(most_expected_) && !until.Expired()) {
      pollfd entry{listener_.get(), POLLIN, 0};
      if (::poll(&entry, 1, PollMillis(until, 1000)) <= 0) continue;
      strangers_.clear();
      if (!AcceptSome().ok()) return;
      const Verdict verdict = MakeVerdict(status);
      for (const Guest& stranger : strangers_) {
        SendNow(stranger.socket.get(), verdict);
        ++told;
      }
    }
  }

  Status GuestLost(int rank) const {
    return RankLost(
        rank, "rank ", rank, " (process ",
        guests_[static_cast<size_t>(rank)].process,
        ") died or gave up while the ranks met at shm:", options_.name);
  }

  Status MissingRanks() const {
    std::vector<int64_t> missing;
    for (size_t r = 1; r < guests_.size(); ++r) {
      if (!guests_[r].socket.valid()) {
        missing.push_back(static_cast<int64_t>(r));
      }
    }
    const double waited = std::round(deadline_.seconds() * 10) / 10;
    return Status(
        StatusCode::kDeadlineExceeded,
        StrCat(missing.size(), " of ", options_.world_size,
               " ranks did not come to shm:", options_.name, " within ", waited,
               " s: missing ", FormatList(missing),
               "; they must run on this host, as this user, in this network "
               "namespace, under this name"),
        static_cast<int>(missing[0]));
  }

  static double Seconds(const Deadline& deadline) {
    return std::chrono::duration<double>(deadline.Remaining()).count();
  }

  // Sends a small packet into an empty socket: it fits, or the peer does not
  // matter.
  template <typename T>
  static bool SendNow(int socket, const T& packet) {
    return Send(socket, &packet, sizeof(packet), {}, Deadline::After(0)).ok();
  }

  const RendezvousOptions& options_;
  Deadline deadline_;  // The earliest of all ranks.
  Fd listener_;
  std::vector<Guest> guests_;  // By rank; [0] is this process.
  std::vector<Guest> strangers_;
  std::vector<Guest> rejected_;
  int come_ = 0;
  int most_expected_;
  uint64_t ignored_ = 0;  // Connections of strangers.
  Rendezvous rendezvous_;
};

}  // namespace

StatusOr<Rendezvous> Host(const RendezvousOptions& options) {
  return HostSide(options).Run();
}

}  // namespace shard::shm
