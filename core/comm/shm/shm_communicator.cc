// SPDX-License-Identifier: Apache-2.0

#include "core/comm/shm/shm_communicator.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "core/base/host_memory.h"
#include "core/base/strings.h"
#include "core/comm/direct/direct_communicator.h"
#include "core/comm/shm/memfd.h"
#include "core/comm/shm/packet.h"
#include "core/comm/shm/rendezvous.h"
#include "core/comm/shm/wire.h"

namespace shard::shm {

namespace {

// Detects dead ranks by pidfds. Without them the host watches its connections,
// and the guests their connection to the host, which then names a dead guest to
// all. (A hang-up is the weaker sign: a child forked by the peer may hold the
// socket open.)
class ProcessLiveness final : public direct::Liveness {
 public:
  explicit ProcessLiveness(std::shared_ptr<const Rendezvous> rendezvous)
      : rendezvous_(std::move(rendezvous)) {}

  bool IsDead(int rank) const override {
    const auto r = static_cast<size_t>(rank);
    const bool by_pidfd = !rendezvous_->pidfds.empty();
    const int fd = by_pidfd ? rendezvous_->pidfds[r].get()
                            : rendezvous_->connections[r].get();
    if (fd < 0) return false;
    pollfd entry{fd, static_cast<short>(by_pidfd ? POLLIN : POLLRDHUP), 0};
    // Ignores POLLNVAL: a host program that closes descriptors it does not
    // know, as daemons do, disables this check but has no dead rank. Deadlines
    // remain.
    return ::poll(&entry, 1, 0) > 0 &&
           (entry.revents & (POLLIN | POLLRDHUP | POLLHUP)) != 0;
  }

  std::string Name(int rank) const override {
    return StrCat("rank ", rank, " (process ",
                  rendezvous_->processes[static_cast<size_t>(rank)], ")");
  }

 private:
  const std::shared_ptr<const Rendezvous> rendezvous_;
};

// One memfd per allocation: rank 0 makes it and sends it over `connections`,
// those of the rendezvous or, in a duplicate, others that came over them.
class ShmRegions final : public direct::RegionSource {
 public:
  ShmRegions(std::shared_ptr<const std::vector<Fd>> connections, int rank)
      : connections_(std::move(connections)), rank_(rank) {}

  Status Create(const direct::RegionRequest& request) override {
    SHARD_RETURN_IF_ERROR(CheckHostMemory(request.bytes, kShardFurther));
    SHARD_ASSIGN_OR_RETURN(memory_, CreateMemory("libshard", request.bytes));
    bytes_ = request.bytes;
    return Status();
  }

  Status Exchange(const direct::RegionRequest&, const direct::Group& group,
                  const Deadline& deadline) override {
    if (rank_ == 0) {
      const Region region{Header::Of(Kind::kRegion), bytes_};
      for (size_t r = 1; r < connections_->size(); ++r) {
        SHARD_RETURN_IF_ERROR(SendTo(r, region, memory_, deadline));
      }
      return Status();
    }
    SHARD_ASSIGN_OR_RETURN(Packet packet, ReceiveFromHost(group, deadline));
    const auto region = Parse<Region>(packet.bytes, Kind::kRegion);
    if (!region || packet.fds.size() != 1) {
      return Internal("rank 0 sent no memory");
    }
    memory_ = std::move(packet.fds[0]);
    bytes_ = region->bytes;
    return Status();
  }

  StatusOr<std::shared_ptr<Mapping>> Take(
      const direct::RegionRequest& request) override {
    if (bytes_ != request.bytes) {
      return Internal("rank 0 sent memory of ", bytes_, " bytes, not ",
                      request.bytes);
    }
    SHARD_ASSIGN_OR_RETURN(
        Mapping mapping, MapMemory(memory_.get(), request.bytes,
                                   request.commit_begin, request.commit_bytes));
    return std::make_shared<Mapping>(std::move(mapping));
  }

  Status CreateDuplicate() override {
    near_.resize(connections_->size());
    far_.resize(connections_->size());
    for (size_t r = 1; r < connections_->size(); ++r) {
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK,
                       0, ends) != 0) {
        return ErrnoStatus("opening a pair of Unix sockets", errno);
      }
      near_[r].Reset(ends[0]);
      far_[r].Reset(ends[1]);
      if (!near_[r].valid() || !far_[r].valid()) {
        return ErrnoStatus("keeping a pair of Unix sockets", errno);
      }
    }
    return Status();
  }

  StatusOr<std::unique_ptr<direct::RegionSource>> ExchangeDuplicate(
      const direct::Group& group, const Deadline& deadline) override {
    if (rank_ == 0) {
      const Connection connection{Header::Of(Kind::kConnection)};
      for (size_t r = 1; r < connections_->size(); ++r) {
        SHARD_RETURN_IF_ERROR(SendTo(r, connection, far_[r], deadline));
      }
    } else {
      SHARD_ASSIGN_OR_RETURN(Packet packet, ReceiveFromHost(group, deadline));
      if (!Parse<Connection>(packet.bytes, Kind::kConnection) ||
          packet.fds.size() != 1) {
        return Internal("rank 0 sent no connection");
      }
      near_ = std::move(packet.fds);
    }
    return std::unique_ptr<direct::RegionSource>(std::make_unique<ShmRegions>(
        std::make_shared<const std::vector<Fd>>(std::move(near_)), rank_));
  }

  // A mapping keeps its memory.
  void Forget() override {
    memory_.Reset();
    bytes_ = 0;
    near_.clear();
    far_.clear();
  }

 private:
  template <typename T>
  Status SendTo(size_t rank, const T& packet, const Fd& fd,
                const Deadline& deadline) {
    const Status sent = Send((*connections_)[rank].get(), &packet,
                             sizeof(packet), {fd.get()}, deadline);
    // The agreement that follows reports a dead peer.
    return sent.code() == StatusCode::kUnavailable ? Status() : sent;
  }

  StatusOr<Packet> ReceiveFromHost(const direct::Group& group,
                                   const Deadline& deadline) {
    return Receive((*connections_)[0].get(), deadline,
                   [&] { return group.failed(); });
  }

  // By rank. On the host: all but [0]; on a guest: [0].
  const std::shared_ptr<const std::vector<Fd>> connections_;
  const int rank_;
  Fd memory_;
  size_t bytes_ = 0;
  // Connections of the duplicate that is being made: this side's, and on rank 0
  // also the other ranks'.
  std::vector<Fd> near_;
  std::vector<Fd> far_;
};

}  // namespace

StatusOr<std::shared_ptr<Communicator>> Open(const std::string& name,
                                             const std::string& description,
                                             const CommOptions& options,
                                             const direct::Link& link) {
  SHARD_RETURN_IF_ERROR(CheckName(name));
  const RendezvousOptions how{name,
                              options.rank,
                              options.world_size,
                              Deadline::After(options.timeout),
                              options.observer.get(),
                              options.phase_hook};
  auto done = options.rank == 0 ? Host(how) : Join(how);
  if (!done.ok()) return done.status().WithContext(description);
  auto rendezvous = std::make_shared<Rendezvous>(*std::move(done));
  const std::shared_ptr<direct::ControlBlock> block(rendezvous,
                                                    rendezvous->block());
  const std::shared_ptr<const std::vector<Fd>> connections(
      rendezvous, &rendezvous->connections);
  return std::shared_ptr<Communicator>(
      std::make_shared<direct::DirectCommunicator>(
          std::make_shared<direct::Group>(
              block, std::move(rendezvous->membership), options.world_size,
              std::make_shared<const ProcessLiveness>(rendezvous),
              options.find_deadlocks_at_once),
          std::make_unique<ShmRegions>(connections, options.rank), description,
          options, link, direct::Hosts(options.world_size)));
}

}  // namespace shard::shm
