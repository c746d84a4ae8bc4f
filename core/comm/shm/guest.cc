// SPDX-License-Identifier: Apache-2.0
//
// The rendezvous as every rank but 0 runs it.

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/shm/packet.h"
#include "core/comm/shm/rendezvous.h"
#include "core/comm/shm/wire.h"

namespace shard::shm {

namespace {

// The time beyond its own deadline that a guest waits for the host's verdict,
// which names the missing ranks and is sent at about that moment. A guest also
// returns that late when the host hangs: half a second.
constexpr double kGraceSeconds = 0.5;

constexpr int kRetryMillis = 5;

class GuestSide {
 public:
  explicit GuestSide(const RendezvousOptions& options)
      : options_(options),
        limit_(Deadline::After(
            std::chrono::duration<double>(options.deadline.Remaining())
                .count() +
            kGraceSeconds)) {}

  StatusOr<Rendezvous> Run() {
    SHARD_ASSIGN_OR_RETURN(const Fd pidfd, OwnPidfd());
    SHARD_RETURN_IF_ERROR(FindHost());
    Hello hello{};
    hello.header = Header::Of(Kind::kHello);
    hello.rank = options_.rank;
    hello.world_size = options_.world_size;
    hello.remaining_nanos = options_.deadline.Remaining().count();
    std::vector<int> fds;
    if (pidfd.valid()) fds.push_back(pidfd.get());
    SHARD_RETURN_IF_ERROR(SendToHost(hello, fds));
    options_.Phase("rendezvous: hello");

    const Status mapped = ReceiveWelcome();
    if (!mapped.ok() && !own_error_) return mapped;
    options_.Phase("rendezvous: mapped");
    const Verdict answer = MakeVerdict(mapped);
    SHARD_RETURN_IF_ERROR(SendToHost(answer, {}));
    if (!mapped.ok()) return ReceiveFinalVerdict();
    SHARD_RETURN_IF_ERROR(ReceiveVerdict().status());
    rendezvous_.connections.resize(static_cast<size_t>(options_.world_size));
    rendezvous_.connections[0] = std::move(socket_);
    return std::move(rendezvous_);
  }

 private:
  // Connects and waits for the greeting. Until that comes, a closed connection
  // is no sign of a lost rank: it may be the end of an earlier rendezvous.
  Status FindHost() {
    const Address where = AddressOf(options_.name);
    for (;; ::poll(nullptr, 0, kRetryMillis)) {
      if (options_.deadline.Expired()) {
        return Status(
            StatusCode::kDeadlineExceeded,
            StrCat("rank 0 did not come to shm:", options_.name, " within ",
                   options_.deadline.seconds(),
                   " s: missing [0]; it must run on this host, as this user, "
                   "in this network namespace, under this name"),
            0);
      }
      socket_.Reset();  // One descriptor at a time.
      socket_.Reset(
          ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!socket_.valid()) return ErrnoStatus("opening a Unix socket", errno);
      if (::connect(socket_.get(),
                    reinterpret_cast<const sockaddr*>(&where.address),
                    where.size) != 0) {
        // The host is not there yet, or its queue is full.
        if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) {
          continue;
        }
        return ErrnoStatus(StrCat("connecting to shm:", options_.name), errno);
      }
      if (const auto peer = CheckPeer(socket_.get()); !peer.ok()) {
        return Status(peer.status().code(),
                      StrCat("the name of shm:", options_.name,
                             " is taken: ", peer.status().message(),
                             "; give the job another name"),
                      0);
      }
      const auto packet = Receive(socket_.get(), options_.deadline);
      if (!packet.ok()) {
        const StatusCode code = packet.status().code();
        if (code == StatusCode::kUnavailable ||
            code == StatusCode::kDeadlineExceeded) {
          continue;
        }
        return packet.status();
      }
      // A host of another version greets too: its verdict will name the error.
      if (!Parse<Greeting>(packet->bytes, Kind::kGreeting)) {
        return FailedPrecondition("the process that listens at shm:",
                                  options_.name, " is not a libshard rank");
      }
      return Status();
    }
  }

  // Receives the host's first verdict, the memory and the peers. An error is
  // the host's, and ends the rendezvous, unless own_error_ is set: the host
  // must then be told of it.
  Status ReceiveWelcome() {
    SHARD_ASSIGN_OR_RETURN(Welcome welcome, ReceiveVerdict());
    std::vector<Packet> batches;
    for (int first = 0; first < options_.world_size;
         first += static_cast<int>(Peers::kMost)) {
      auto packet = ReceiveFromHost();
      SHARD_RETURN_IF_ERROR(packet.status());
      // The host may give up halfway.
      if (const auto verdict = Parse<Verdict>(packet->bytes, Kind::kVerdict)) {
        SHARD_RETURN_IF_ERROR(StatusOf(*verdict));
      }
      batches.push_back(*std::move(packet));
    }
    own_error_ = true;
    if (welcome.fds.size() != 1) return Internal("rank 0 sent no memory");
    SHARD_RETURN_IF_ERROR(
        MapControlBlock(welcome.fds[0], options_, &rendezvous_));
    for (Packet& packet : batches) {
      const auto peers = Parse<Peers>(packet.bytes, Kind::kPeers);
      if (!peers || peers->count > Peers::kMost ||
          packet.fds.size() !=
              (welcome.verdict.has_pidfds ? peers->count : 0)) {
        return Internal("rank 0 sent a wrong list of peers");
      }
      for (uint32_t i = 0; i < peers->count; ++i) {
        rendezvous_.processes.push_back(peers->pids[i]);
      }
      for (Fd& fd : packet.fds) rendezvous_.pidfds.push_back(std::move(fd));
    }
    if (rendezvous_.processes.size() !=
        static_cast<size_t>(options_.world_size)) {
      return Internal("rank 0 sent a list of ", rendezvous_.processes.size(),
                      " peers");
    }
    own_error_ = false;
    return Status();
  }

  struct Welcome {
    Verdict verdict;
    std::vector<Fd> fds;
  };

  // Sends a packet. OK when the host has closed already: its verdict is still
  // there to read.
  template <typename T>
  Status SendToHost(const T& packet, const std::vector<int>& fds) {
    const Status sent =
        Send(socket_.get(), &packet, sizeof(packet), fds, limit_);
    return sent.code() == StatusCode::kUnavailable ? Status() : FromHost(sent);
  }

  StatusOr<Packet> ReceiveFromHost() {
    auto packet = Receive(socket_.get(), limit_);
    if (packet.ok()) return packet;
    const StatusCode code = packet.status().code();
    own_error_ = code != StatusCode::kUnavailable &&
                 code != StatusCode::kDeadlineExceeded;
    return FromHost(packet.status());
  }

  // Receives the host's verdict. Returns its error, or one when the host is
  // gone.
  StatusOr<Welcome> ReceiveVerdict() {
    auto packet = ReceiveFromHost();
    SHARD_RETURN_IF_ERROR(packet.status());
    const auto verdict = Parse<Verdict>(packet->bytes, Kind::kVerdict);
    if (!verdict) {
      return FailedPrecondition(
          "rank 0 speaks another version of the shm: protocol; all ranks must "
          "load the same libshard");
    }
    SHARD_RETURN_IF_ERROR(StatusOf(*verdict));
    return Welcome{*verdict, std::move(packet->fds)};
  }

  // Receives the host's answer to this rank's own error, after the packets that
  // it could not take. Leaving before would look like a death.
  Status ReceiveFinalVerdict() {
    for (;;) {
      const auto packet = ReceiveFromHost();
      if (packet.status().code() == StatusCode::kResourceExhausted) continue;
      SHARD_RETURN_IF_ERROR(packet.status());
      const auto verdict = Parse<Verdict>(packet->bytes, Kind::kVerdict);
      if (verdict && verdict->code != 0) return StatusOf(*verdict);
    }
  }

  Status FromHost(const Status& status) const {
    if (status.code() == StatusCode::kUnavailable) {
      return RankLost(0, "rank 0 died or gave up while the ranks met at shm:",
                      options_.name);
    }
    if (status.code() == StatusCode::kDeadlineExceeded) {
      return DeadlineExceeded("rank 0 came to shm:", options_.name,
                              " but did not answer within ",
                              options_.deadline.seconds(), " s");
    }
    return status;
  }

  const RendezvousOptions& options_;
  const Deadline limit_;
  Fd socket_;
  bool own_error_ = false;
  Rendezvous rendezvous_;
};

}  // namespace

StatusOr<Rendezvous> Join(const RendezvousOptions& options) {
  return GuestSide(options).Run();
}

}  // namespace shard::shm
