// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/meet_helper.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/network/in_process.h"
#include "core/comm/network/start_helper.h"
#include "core/comm/shm/memfd.h"
#include "core/comm/shm/packet.h"
#include "core/comm/shm/rendezvous.h"
#include "xxhash.h"

namespace shard::network {

namespace {

// The time beyond its own deadline that a rank waits for the helper's verdict,
// which names the missing ranks and is sent at about that moment.
constexpr double kGraceSeconds = 0.9;

// Seconds. Longer ones are told as this one.
constexpr double kLongestTimeout = 1e9;

constexpr int kRetryMillis = 5;

// The time that the end of a connection waits for the helper to end, in a host
// that has a keeper, so that no zombie of the keeper stays.
constexpr double kReapSeconds = 0.1;

// More than the ranks of a host, if the system allows as many.
constexpr int kBacklog = 4096;

constexpr char kWrongPacket[] = "the network helper sent a wrong packet";

Fd OpenSocket() {
  return Fd(
      ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

const sockaddr* AsSockaddr(const LocalAddress& where) {
  return reinterpret_cast<const sockaddr*>(&where.address);
}

class Meeting {
 public:
  explicit Meeting(const MeetOptions& options)
      : options_(options),
        where_(LocalAddressOf(options.key)),
        limit_(options.deadline.Later(
            std::chrono::duration_cast<Deadline::Duration>(
                std::chrono::duration<double>(kGraceSeconds)))) {}

  StatusOr<std::unique_ptr<HelperConnection>> Run() {
    if (options_.options.size() > kMaxOptionsBytes) {
      return InvalidArgument("the options of the network helper have ",
                             options_.options.size(), " bytes; at most ",
                             kMaxOptionsBytes, " are possible");
    }
    SHARD_ASSIGN_OR_RETURN(const Fd pidfd, shm::OwnPidfd());
    for (;; ::poll(nullptr, 0, kRetryMillis)) {
      SHARD_RETURN_IF_ERROR(FindHelper());
      Phase("greeted");
      SHARD_RETURN_IF_ERROR(SendHello(pidfd));
      Phase("hello");
      is_over_ = false;
      auto world = ReceiveWelcome();
      if (is_over_) continue;
      SHARD_RETURN_IF_ERROR(world.status());
      Phase("welcome");
      return std::make_unique<HelperConnection>(
          std::move(socket_), options_.rank, helper_, *std::move(world),
          control_, std::move(bell_));
    }
  }

 private:
  void Phase(std::string_view what) const {
    if (options_.phase_hook) options_.phase_hook(what);
  }

  // Connects to the helper, which is started if there is none, and waits for
  // its greeting. Until that comes, a closed connection is no error but for the
  // rank that has started the helper: the rank that bound the name may have
  // died, and the helper of an earlier meeting may have ended.
  Status FindHelper() {
    has_started_ = false;
    for (;; ::poll(nullptr, 0, kRetryMillis)) {
      if (options_.deadline.Expired()) return NotReached();
      socket_ = OpenSocket();
      if (!socket_.valid()) return ErrnoStatus("opening a Unix socket", errno);
      if (::connect(socket_.get(), AsSockaddr(where_), where_.size) != 0) {
        // EAGAIN: the queue of the helper is full.
        if (errno == EAGAIN || errno == EINTR) continue;
        if (errno != ECONNREFUSED) {
          return ErrnoStatus("connecting to the network helper", errno);
        }
        SHARD_ASSIGN_OR_RETURN(const bool bound, BindAndStart());
        if (!bound) continue;
      }
      if (const auto peer = shm::CheckPeer(socket_.get()); !peer.ok()) {
        return Status(peer.status().code(),
                      StrCat("the socket of the network helper is taken: ",
                             peer.status().message()));
      }
      const auto packet = shm::Receive(socket_.get(), options_.deadline);
      if (packet.status().code() == StatusCode::kDeadlineExceeded) {
        return NotReached();
      }
      if (packet.status().code() == StatusCode::kUnavailable) {
        if (has_started_) return EndedAtOnce();
        continue;
      }
      SHARD_RETURN_IF_ERROR(packet.status());
      // A helper of another version greets too: its verdict, or that the rank
      // cannot read it, is the error.
      const auto greeting = ParseAnyVersion<Greeting>(packet->bytes);
      if (!greeting) {
        return FailedPrecondition(
            "the process that listens at the socket of the network helper is "
            "none");
      }
      helper_ = greeting->process;
      return Status();
    }
  }

  // Binds the name of the meeting and starts the helper, unless another rank
  // does: then returns false.
  StatusOr<bool> BindAndStart() {
    Fd listening = OpenSocket();
    if (!listening.valid()) return ErrnoStatus("opening a Unix socket", errno);
    if (::bind(listening.get(), AsSockaddr(where_), where_.size) != 0) {
      if (errno == EADDRINUSE) return false;
      return ErrnoStatus("binding the socket of the network helper", errno);
    }
    if (::listen(listening.get(), kBacklog) != 0) {
      return ErrnoStatus("listening for the network helper", errno);
    }
    Phase("bound");
    // Connects before the helper runs, which ends when it has no connection.
    if (::connect(socket_.get(), AsSockaddr(where_), where_.size) != 0) {
      if (errno == EAGAIN) return false;  // The queue is full of others.
      return ErrnoStatus("connecting to the network helper", errno);
    }
    if (!options_.isolate) {
      SHARD_RETURN_IF_ERROR(
          StartInProcess(std::move(listening), options_.keep_stderr));
      has_started_ = true;
      Phase("started");
      return true;
    }
    HelperProgram program;
    program.path = options_.program;
    program.arguments = options_.arguments;
    program.arguments.push_back("--listen-fd=3");
    program.fds = {listening.get()};
    program.keep_stderr = options_.keep_stderr;
    SHARD_RETURN_IF_ERROR(StartHelper(program, options_.deadline));
    has_started_ = true;
    Phase("started");
    return true;
  }

  Status SendHello(const Fd& pidfd) {
    Hello hello = MakePacket<Hello>();
    hello.rank = options_.rank;
    hello.world_size = options_.world_size;
    hello.remaining_nanos = options_.deadline.Remaining().count();
    hello.timeout_nanos =
        static_cast<int64_t>(std::min(options_.timeout, kLongestTimeout) * 1e9);
    hello.options.Set(options_.options);
    std::vector<int> fds;
    if (pidfd.valid()) fds.push_back(pidfd.get());
    const Status sent =
        shm::Send(socket_.get(), &hello, sizeof(hello), fds, limit_);
    // The verdict of a helper that has closed already is there to read.
    return sent.code() == StatusCode::kUnavailable ? Status() : sent;
  }

  StatusOr<World> ReceiveWelcome() {
    SHARD_ASSIGN_OR_RETURN(const shm::Packet first, ReceiveFromHelper());
    const auto welcome = Parse<Welcome>(first.bytes);
    if (!welcome) return OtherVersion();
    const size_t bytes = direct::ControlBlock::Bytes(options_.world_size);
    if (first.fds.size() != 1 || welcome->world_size != options_.world_size ||
        welcome->hosts < 1 || welcome->hosts > options_.world_size) {
      return Internal(kWrongPacket);
    }
    SHARD_ASSIGN_OR_RETURN(Mapping control,
                           shm::MapMemory(first.fds[0].get(), bytes, 0, bytes));
    control_ = std::make_shared<Mapping>(std::move(control));
    World world;
    world.world_size = welcome->world_size;
    world.first_rank = welcome->first_rank;
    world.ranks = welcome->ranks;
    while (world.hosts.size() < static_cast<size_t>(welcome->hosts)) {
      SHARD_ASSIGN_OR_RETURN(const shm::Packet packet, ReceiveFromHelper());
      const auto hosts = Parse<WireHosts>(packet.bytes);
      if (!hosts || hosts->first != world.hosts.size() || hosts->count < 1 ||
          hosts->count > WireHosts::kMost) {
        return Internal(kWrongPacket);
      }
      for (uint32_t i = 0; i < hosts->count; ++i) {
        const WireHosts::Host& host = hosts->hosts[i];
        world.hosts.push_back({host.name.Get(), host.first_rank, host.ranks});
      }
    }
    SHARD_ASSIGN_OR_RETURN(shm::Packet bell, ReceiveFromHelper());
    if (!Parse<WireBell>(bell.bytes) || bell.fds.size() != 1) {
      return Internal(kWrongPacket);
    }
    bell_ = std::move(bell.fds[0]);
    return world;
  }

  // Receives a packet that is no verdict; the error of one that is.
  StatusOr<shm::Packet> ReceiveFromHelper() {
    auto packet = shm::Receive(socket_.get(), limit_);
    if (packet.status().code() == StatusCode::kUnavailable) {
      return RankLost(options_.rank, "the network helper (process ", helper_,
                      ") of this host died while the ranks met; rank ",
                      options_.rank, " cannot go on without");
    }
    if (packet.status().code() == StatusCode::kDeadlineExceeded) {
      return DeadlineExceeded(
          "the network helper (process ", helper_,
          ") of this host did not bring all ranks together within ",
          options_.deadline.seconds(),
          " s, and does not say which are missing");
    }
    SHARD_RETURN_IF_ERROR(packet.status());
    if (const auto verdict = Parse<Verdict>(packet->bytes)) {
      is_over_ = verdict->number == kMeetingIsOver;
      return StatusOf(*verdict);
    }
    return packet;
  }

  Status NotReached() const {
    return DeadlineExceeded(
        has_started_
            ? "the network helper was started, but did not answer"
            : "the network helper of this host was not reached: another rank "
              "may have bound its socket without starting it",
        " within ", options_.deadline.seconds(), " s");
  }

  Status EndedAtOnce() const {
    if (!options_.isolate) {
      return BackendUnavailable(
          "the network helper in this process ended before it answered; set "
          "SHARD_LOG=debug, with which it writes its errors to the standard "
          "error output");
    }
    return BackendUnavailable(
        "the network helper ", options_.program,
        " ended before it answered; run it with --version to see whether it "
        "can start here, or set SHARD_LOG=debug, with which it writes its "
        "errors to the standard error output");
  }

  Status OtherVersion() const {
    return FailedPrecondition(
        "the network helper (process ", helper_,
        ") of this host speaks another version than rank ", options_.rank,
        "; all ranks must load the same libshard, and the helper must come "
        "with it");
  }

  const MeetOptions& options_;
  const LocalAddress where_;
  const Deadline limit_;
  Fd socket_;
  bool has_started_ = false;
  bool is_over_ = false;  // The helper was that of an earlier meeting.
  pid_t helper_ = 0;
  std::shared_ptr<Mapping> control_;
  Fd bell_;
};

}  // namespace

LocalAddress LocalAddressOf(std::string_view key) {
  const XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
  const std::string path =
      StrCat("libshard-net-", static_cast<uint64_t>(::geteuid()), "-",
             FormatHex(hash.high64).substr(2), FormatHex(hash.low64).substr(2));
  static_assert(sizeof("libshard-net-4294967295-") + 32 <
                sizeof(sockaddr_un::sun_path));
  LocalAddress result{};
  result.address.sun_family = AF_UNIX;
  // sun_path[0] stays NUL: the abstract namespace, which leaves no file.
  std::memcpy(result.address.sun_path + 1, path.data(), path.size());
  result.size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
  return result;
}

HelperConnection::HelperConnection(Fd socket, int rank, pid_t helper,
                                   World world,
                                   std::shared_ptr<Mapping> control, Fd bell)
    : owner_(::getpid()),
      socket_(std::move(socket)),
      rank_(rank),
      helper_(helper),
      world_(std::move(world)),
      control_(std::move(control)),
      bell_(std::move(bell)) {}

HelperConnection::~HelperConnection() {
  if (::getpid() != owner_) return;
  const Goodbye goodbye = MakePacket<Goodbye>();
  // The helper may be gone, or full: then the end of the connection says less.
  (void)shm::Send(socket_.get(), &goodbye, sizeof(goodbye), {},
                  Deadline::After(0));
  // A child forked from this process may have the socket too.
  ::shutdown(socket_.get(), SHUT_RDWR);
  ReapKeepers(Deadline::After(kReapSeconds));
}

bool HelperConnection::HelperIsGone() const {
  pollfd entry{socket_.get(), 0, 0};
  return ::poll(&entry, 1, 0) == 1;
}

Status HelperConnection::HelperGone() const {
  return RankLost(rank_, "the network helper (process ", helper_,
                  ") of this host died; rank ", rank_, " cannot go on without");
}

StatusOr<Mapping> HelperConnection::RequestRegion(std::string_view key,
                                                  const RegionLayout& layout,
                                                  size_t bytes,
                                                  const Deadline& deadline,
                                                  const CommitRange& commit) {
  for (const std::string_view text : {key, std::string_view(layout.block)}) {
    if (text.size() > kMaxRegionKeyBytes) {
      return InvalidArgument("the key of a region has ", text.size(),
                             " bytes; at most ", kMaxRegionKeyBytes,
                             " are possible");
    }
  }
  std::unique_lock<std::mutex> lock(mutex_);
  WireRegionRequest request = MakePacket<WireRegionRequest>();
  request.number = ++last_number_;
  request.bytes = bytes;
  request.key.Set(key);
  request.layout.kind = layout.kind;
  request.layout.cells = layout.cells;
  request.layout.payload_bytes = layout.payload_bytes;
  request.layout.block.Set(layout.block);
  const Status sent =
      shm::Send(socket_.get(), &request, sizeof(request), {}, deadline);
  if (!sent.ok() && sent.code() != StatusCode::kUnavailable) return sent;
  for (;;) {
    const auto packet = shm::Receive(socket_.get(), deadline);
    if (packet.status().code() == StatusCode::kUnavailable) return HelperGone();
    if (packet.status().code() == StatusCode::kDeadlineExceeded) {
      return DeadlineExceeded("the network helper (process ", helper_,
                              ") did not answer a request for memory within ",
                              deadline.seconds(), " s");
    }
    SHARD_RETURN_IF_ERROR(packet.status());
    // Answers to earlier requests may come, whose deadlines had passed.
    if (const auto verdict = Parse<Verdict>(packet->bytes)) {
      if (verdict->number == 0 || verdict->number == request.number) {
        return StatusOf(*verdict);
      }
    } else if (const auto region = Parse<Region>(packet->bytes)) {
      if (region->number != request.number) continue;
      if (packet->fds.size() != 1 || region->bytes != bytes) {
        return Internal(kWrongPacket);
      }
      // To take pages may last, and others may ask meanwhile.
      lock.unlock();
      return shm::MapMemory(packet->fds[0].get(), bytes, commit.begin,
                            commit.bytes);
    } else {
      return Internal(kWrongPacket);
    }
  }
}

Status HelperConnection::ReleaseRegion(std::string_view key,
                                       const Deadline& deadline) {
  // A child of fork has no part in what its parent has.
  if (::getpid() != owner_) return Status();
  Release release = MakePacket<Release>();
  release.key.Set(key);
  const std::lock_guard<std::mutex> lock(mutex_);
  const Status sent =
      shm::Send(socket_.get(), &release, sizeof(release), {}, deadline);
  return sent.code() == StatusCode::kUnavailable ? HelperGone() : sent;
}

StatusOr<std::unique_ptr<HelperConnection>> MeetHelper(
    const MeetOptions& options) {
  return Meeting(options).Run();
}

}  // namespace shard::network
