// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/rendezvous.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/network/helper/rendezvous_wire.h"

namespace shard::network {

namespace {

constexpr double kLongestWaitSeconds = 1;

// The time for which a name that nobody knows is looked up again: clusters
// publish the name of a host when it starts.
constexpr double kNameSeconds = 30;

std::string PointOf(const MeetingOptions& options) {
  if (!options.folder.empty()) return StrCat("file:", options.folder);
  const bool is_ipv6 = options.host.find(':') != std::string::npos;
  return StrCat("tcp://", is_ipv6 ? "[" : "", options.host, is_ipv6 ? "]" : "",
                ":", options.port);
}

}  // namespace

double SilenceSeconds(const Deadline& deadline) {
  return std::min(5.0, deadline.seconds() / 4);
}

double SilenceSeconds(const Deadline& deadline, double timeout) {
  const double silence = SilenceSeconds(deadline);
  return timeout > 0 ? std::min(silence, std::max(1.0, timeout / 4)) : silence;
}

Status CheckTrust(const SocketAddress& address, bool has_secret,
                  bool trust_network) {
  if (has_secret || trust_network || address.loopback()) {
    return Status();
  }
  return PermissionDenied(
      "listening at ", address.HostText(),
      " without a job secret would let everybody on its network into the job; "
      "set SHARD_TOKEN or secret_file to the same random text on all hosts, or "
      "add trust=network where only hosts of the job reach this one");
}

Meeting::Meeting(Loop* loop, MeetingOptions options, Done done)
    : loop_(loop),
      options_(std::move(options)),
      done_(std::move(done)),
      identity_(std::make_shared<const Identity>(options_.identity)),
      where_(PointOf(options_)),
      silence_seconds_(SilenceSeconds(options_.deadline)) {
  const Status status = Begin();
  if (!status.ok()) Finish(status);
}

Meeting::~Meeting() = default;

Status Meeting::Begin() {
  if (options_.world_size < 1) {
    return InvalidArgument("the world size is ", options_.world_size,
                           "; at least 1 is needed");
  }
  if (!options_.folder.empty()) {
    folder_ = std::make_unique<FolderPoint>(options_.folder, identity_->job_id,
                                            identity_->restart,
                                            identity_->secret.given());
  } else if (options_.port == 0) {
    return InvalidArgument(where_, " has no port from 1 to 65535");
  }
  deadline_timer_ = loop_->At(options_.deadline, [this] { HandleDeadline(); });
  give_up_ =
      Deadline::After(std::min(kNameSeconds, options_.deadline.seconds() / 4));
  Resolve();
  return Status();
}

void Meeting::Resolve() {
  if (folder_ != nullptr) return HandleResolved(FindMaster());
  auto resolution = Resolution::Start(
      loop_, options_.host, options_.port, options_.deadline,
      [this](Resolution::Addresses addresses) {
        HandleResolved(std::move(addresses));
      },
      options_.resolver);
  if (!resolution.ok()) return Finish(resolution.status());
  resolution_ = *std::move(resolution);
}

void Meeting::HandleResolved(Resolution::Addresses addresses) {
  if (!addresses.ok()) {
    last_error_ = addresses.status();
    const StatusCode code = last_error_.code();
    // The file may be gone since another host's claim came first.
    const bool may_change =
        code == StatusCode::kUnavailable ||
        (code == StatusCode::kNotFound && (!give_up_ || !give_up_->Expired()));
    if (!may_change || options_.deadline.Expired()) return Finish(last_error_);
    retry_ = loop_->At(Deadline::After(wait_seconds_), [this] { Resolve(); });
    wait_seconds_ = std::min(2 * wait_seconds_, kLongestWaitSeconds);
    return;
  }
  const bool is_new = addresses_.empty() || addresses_.front().ToString() !=
                                                addresses->front().ToString();
  addresses_ = *std::move(addresses);
  // Each master has as much time, from the first failure to reach it.
  if (is_new) give_up_.reset();
  if (mesh_ != nullptr) return Try();  // The folder was read again.
  wait_seconds_ = 0.01;
  const Status status = ListenForMesh();
  // The others are told: the job cannot become complete.
  if (!status.ok()) Fail(status);
  Try();
}

Resolution::Addresses Meeting::FindMaster() {
  auto found = folder_->Read();
  if (found.ok()) return Resolution::Addresses({*found});
  if (found.status().code() != StatusCode::kNotFound || master_ != nullptr) {
    return found.status();
  }
  SHARD_ASSIGN_OR_RETURN(const SocketAddress local,
                         ChooseMasterAddress(options_.local));
  SHARD_RETURN_IF_ERROR(CheckTrust(local));
  SHARD_ASSIGN_OR_RETURN(Fd listening, ListenAt(local));
  SHARD_ASSIGN_OR_RETURN(const SocketAddress address,
                         SocketAddress::OfSocket(listening.get()));
  const Status claimed = folder_->Claim(address, options_.host_name);
  if (claimed.code() == StatusCode::kAlreadyExists) {
    return Unavailable(claimed.message());  // It is read next time.
  }
  SHARD_RETURN_IF_ERROR(claimed);
  SHARD_RETURN_IF_ERROR(BecomeMaster(std::move(listening)));
  return Resolution::Addresses({address});
}

Status Meeting::ListenForMesh() {
  SHARD_ASSIGN_OR_RETURN(
      const SocketAddress local,
      ChooseLocalAddress(options_.local, addresses_.front()));
  SHARD_RETURN_IF_ERROR(CheckTrust(local));
  SHARD_ASSIGN_OR_RETURN(Fd listening, ListenAt(local));
  SHARD_ASSIGN_OR_RETURN(
      mesh_, MeshBuilder::Create(
                 loop_, std::move(listening),
                 {.identity = identity_,
                  .world_size = options_.world_size,
                  .silence_seconds =
                      SilenceSeconds(options_.deadline, options_.timeout),
                  .reach_seconds = 2 * silence_seconds_,
                  .warn = options_.warn},
                 [this](const Status& status) { HandleMeshed(status); }));
  return Status();
}

void Meeting::Try() {
  if (finishing_) return;
  const Status status = TryToBecomeMaster();
  if (!status.ok()) return Finish(status);
  ConnectToMaster();
}

Status Meeting::BecomeMaster(Fd listening) {
  SHARD_ASSIGN_OR_RETURN(master_,
                         Master::Create(loop_, std::move(listening),
                                        {.identity = identity_,
                                         .where = where_,
                                         .world_size = options_.world_size,
                                         .deadline = options_.deadline,
                                         .silence_seconds = silence_seconds_,
                                         .warn = options_.warn}));
  return Status();
}

Status Meeting::TryToBecomeMaster() {
  if (master_ != nullptr || folder_ != nullptr) return Status();
  for (const SocketAddress& address : addresses_) {
    const Status trust = CheckTrust(address);
    auto listening = trust.ok() ? ListenAt(address) : trust;
    if (listening.ok()) {
      addresses_ = {address};
      return BecomeMaster(*std::move(listening));
    }
    const StatusCode code = listening.status().code();
    if (code == StatusCode::kNotFound) continue;  // Of another host.
    // A helper that must not listen may still be a member, and another helper
    // of this host may be the master. The error counts where nobody answers.
    if (code == StatusCode::kAlreadyExists || !trust.ok()) {
      last_error_ = listening.status();
      return Status();
    }
    return listening.status();
  }
  return Status();
}

void Meeting::ConnectToMaster() {
  const SocketAddress& address =
      addresses_[next_address_++ % addresses_.size()];
  auto socket = ConnectTo(address);
  Status status = socket.status();
  if (socket.ok()) {
    auto channel = Channel::Create(
        loop_, *std::move(socket),
        {.identity = identity_,
         .role = Role::kMember,
         .peer = address.ToString(),
         .silence_seconds = silence_seconds_},
        {.on_open = [this] { HandleOpen(); },
         .on_frame =
             [this](uint32_t kind, Channel::Bytes body) {
               HandleFrame(static_cast<Kind>(kind), body);
             },
         .on_closed = [this](const Status& why) { HandleClosed(why); }});
    status = channel.status();
    if (channel.ok()) channel_ = *std::move(channel);
  }
  if (!status.ok()) HandleUnreached(status);
}

void Meeting::HandleUnreached(const Status& why) {
  last_error_ = why;
  if (folder_ != nullptr) {
    // Its master listened before it wrote the file.
    if (!give_up_) give_up_ = Deadline::After(silence_seconds_);
    if (give_up_->Expired()) return Finish(folder_->Stale(why.message()));
  }
  TryLater();
}

void Meeting::TryLater() {
  // The master in a folder may have changed.
  retry_ = loop_->At(Deadline::After(wait_seconds_),
                     [this] { folder_ != nullptr ? Resolve() : Try(); });
  wait_seconds_ = std::min(2 * wait_seconds_, kLongestWaitSeconds);
}

void Meeting::HandleOpen() {
  const MemberHello hello{
      .world_size = options_.world_size,
      .remaining_nanos = options_.deadline.Remaining().count(),
      .on_master = master_ != nullptr,
      .address = mesh_ != nullptr ? mesh_->address() : addresses_.front(),
      .name = options_.host_name,
  };
  channel_->set_peer(StrCat("the master at ", channel_->peer()));
  SendToMaster(Kind::kHello, Write(hello).bytes());
  if (!failure_.ok()) {
    SendToMaster(Kind::kFailed, Write(failure_).bytes());
    return;
  }
  if (!ranks_.empty()) SendToMaster(Kind::kRanks, WriteNumbers(ranks_).bytes());
}

void Meeting::SendToMaster(Kind kind, Channel::Bytes body) {
  // An error shows as the end of the channel.
  (void)channel_->Send(static_cast<uint32_t>(kind), {body});
}

void Meeting::AddRank(int rank) {
  ranks_.push_back(rank);
  if (!connected() || !failure_.ok()) return;
  SendToMaster(Kind::kRanks, WriteNumbers({&ranks_.back(), 1}).bytes());
}

void Meeting::Fail(const Status& why) {
  if (!failure_.ok() || finishing_) return;
  failure_ = why;
  if (connected()) {
    SendToMaster(Kind::kFailed, Write(failure_).bytes());
  }
  const double wait = std::max(silence_seconds_, 2 * Master::kLingerSeconds);
  fail_timer_ = loop_->At(Deadline::After(wait), [this] { Finish(failure_); });
}

void Meeting::HandleFrame(Kind kind, Channel::Bytes body) {
  if (finishing_) return;
  if (kind == Kind::kMasterRank) {
    if (const auto ranks = ReadNumbers(body); ranks && ranks->size() == 1) {
      master_rank_ = (*ranks)[0];
    }
  } else if (kind == Kind::kTable) {
    HandleTable(body);
  } else if (kind == Kind::kVerdict) {
    const auto verdict = ReadStatus(body);
    const bool right = verdict && (meshed_ || !verdict->ok());
    Finish(right ? *verdict : Internal(where_, ": a wrong verdict"));
  } else {
    Finish(
        Internal(where_, ": the master sent a frame of the wrong kind ", kind));
  }
}

void Meeting::HandleTable(Channel::Bytes body) {
  int self = -1;
  auto table = ReadTable(body, &self);
  if (!table || mesh_ == nullptr || mesh_->has_table()) {
    return Finish(Internal(where_, ": the master sent a wrong table"));
  }
  mesh_->Connect(*std::move(table), self);
}

void Meeting::HandleMeshed(const Status& status) {
  if (finishing_) return;
  if (!status.ok()) return Fail(status);
  meshed_ = true;
  if (connected()) SendToMaster(Kind::kMeshed, {});
}

void Meeting::HandleClosed(const Status& why) {
  const bool was_member = channel_->was_open();
  const Refusal refusal = channel_->refusal();
  if (finishing_) return;
  if (was_member) {
    Finish(RankLost(master_rank_, where_,
                    ": the master has left: ", why.message()));
    return;
  }
  if (refusal == Refusal::kNone) return HandleUnreached(why);
  last_error_ = why;
  const Status hopeless = HandleRefused(refusal, why);
  if (!hopeless.ok()) return Finish(hopeless);
  TryLater();
}

Status Meeting::HandleRefused(Refusal refusal, const Status& why) {
  const bool may_end = refusal == Refusal::kStranger ||
                       refusal == Refusal::kJob || refusal == Refusal::kRole ||
                       (refusal == Refusal::kRestart &&
                        channel_->peer_restart() < identity_->restart);
  if (!may_end) return why;
  // It may be a job, or a program, that is about to end.
  if (!give_up_) give_up_ = Deadline::After(silence_seconds_);
  if (!give_up_->Expired()) return Status();
  if (folder_ != nullptr) return folder_->Stale(why.message());
  if (refusal != Refusal::kStranger) return why;
  return AlreadyExists("the port of ", where_,
                       " is taken by a program that is not libshard (`ss -ltnp "
                       "'sport = :",
                       options_.port,
                       "'` on that host names it): ", why.message());
}

void Meeting::HandleDeadline() {
  if (finishing_) return;
  if (connected()) {
    // The master has the same deadline, or an earlier one, and knows more.
    deadline_timer_ = loop_->At(Deadline::After(kGraceSeconds), [this] {
      Finish(DeadlineExceeded("the master at ", where_,
                              " did not answer in time"));
    });
    return;
  }
  // This host knows why it does not meet the others.
  if (!failure_.ok()) return Finish(failure_);
  const double waited = std::round(options_.deadline.seconds() * 10) / 10;
  std::string why = last_error_.ok() ? "" : "; the last attempt: ";
  if (!last_error_.ok()) why += last_error_.message();
  Finish(DeadlineExceeded(
      "nobody of this job was reached at ", where_, " within ", waited, " s",
      why,
      folder_ != nullptr ? "; all hosts must share that folder"
                         : "; one host of the job must have that address"));
}

void Meeting::Finish(const Status& status) {
  if (finishing_) return;
  finishing_ = true;
  retry_.Reset();
  fail_timer_.Reset();
  deadline_timer_.Reset();
  finish_ = loop_->Soon([this, status] {
    channel_ = nullptr;
    resolution_ = nullptr;
    const Done done = std::exchange(done_, nullptr);
    if (status.ok()) {
      Mesh mesh = mesh_->Take();
      mesh_ = nullptr;
      done(std::move(mesh));
    } else {
      mesh_ = nullptr;
      done(status);
    }
  });
}

}  // namespace shard::network
