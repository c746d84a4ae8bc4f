// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/master.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/base/strings.h"

namespace shard::network {

namespace {

// The most bytes of tables that wait to be sent, over all members: that of a
// large job is sent to one part of the hosts after the other.
constexpr size_t kMostPublishing = size_t{32} << 20;

// Frames of members are small but for the ranks of a large host.
size_t MaxFrame(int world_size) {
  return (size_t{64} << 10) + sizeof(int32_t) * static_cast<size_t>(world_size);
}

}  // namespace

StatusOr<std::unique_ptr<Master>> Master::Create(Loop* loop, Fd listening,
                                                 MasterOptions options) {
  std::unique_ptr<Master> master(new Master(loop, std::move(options)));
  Master* const self = master.get();
  const MasterOptions& mine = self->options_;
  SHARD_ASSIGN_OR_RETURN(
      self->listener_,
      Listener::Create(
          loop, std::move(listening),
          {.channel = {.identity = mine.identity,
                       .role = Role::kMaster,
                       .silence_seconds = mine.silence_seconds,
                       .max_frame_bytes = MaxFrame(mine.world_size)},
           .warn = mine.warn},
          [self](std::unique_ptr<Channel> channel) {
            self->Admit(std::move(channel));
          },
          [self](const Channel& channel, Refusal refusal, const Status& why) {
            self->HandleRefused(channel, refusal, why);
          }));
  self->SetDeadline(mine.deadline);
  return master;
}

Master::Master(Loop* loop, MasterOptions options)
    : loop_(loop),
      options_(std::move(options)),
      roster_(options_.world_size, options_.most_hosts),
      deadline_(options_.deadline) {}

Master::~Master() = default;

uint64_t Master::bytes_sent() const {
  uint64_t bytes = bytes_sent_;
  for (const auto& [id, member] : members_)
    bytes += member.channel->bytes_sent();
  return bytes;
}

uint64_t Master::bytes_received() const {
  uint64_t bytes = bytes_received_;
  for (const auto& [id, member] : members_) {
    bytes += member.channel->bytes_received();
  }
  return bytes;
}

void Master::Admit(std::unique_ptr<Channel> channel) {
  // Each host has a rank, so that a job has no more hosts than ranks; a few
  // more are a mistake that is worth an error.
  if (members_.size() > static_cast<size_t>(options_.world_size) + 16) return;
  const uint64_t id = next_id_++;
  channel->SetHandlers(
      {.on_frame =
           [this, id](uint32_t kind, Channel::Bytes body) {
             HandleFrame(id, static_cast<Kind>(kind), body);
           },
       .on_closed = [this, id](const Status&) { HandleClosed(id); },
       .on_drained = [this, id] { HandleDrained(id); }});
  members_[id].channel = std::move(channel);
}

void Master::HandleRefused(const Channel& channel, Refusal refusal,
                           const Status& why) {
  // Both have proved the job's secret: the job cannot become complete.
  const bool newer = refusal == Refusal::kRestart &&
                     channel.peer_restart() > options_.identity->restart;
  if (refusal == Refusal::kLibrary || newer) EndWith(why);
}

void Master::HandleFrame(uint64_t id, Kind kind, Channel::Bytes body) {
  if (phase_ == Phase::kEnding && kind != Kind::kHello) return;
  Status status;
  switch (kind) {
    case Kind::kHello:
      status = HandleHello(id, body);
      break;
    case Kind::kRanks:
      status = HandleRanks(id, body);
      break;
    case Kind::kMeshed:
      status = HandleMeshed(id);
      break;
    case Kind::kFailed: {
      const auto theirs = ReadStatus(body);
      status = theirs && !theirs->ok() ? *theirs : Internal("a wrong error");
      status =
          status.WithContext(StrCat("host ", members_.at(id).channel->peer()));
      break;
    }
    default:
      status = Internal(members_.at(id).channel->peer(),
                        " sent a frame of the wrong kind ", kind);
  }
  if (!status.ok()) EndWith(std::move(status));
}

Status Master::HandleHello(uint64_t id, Channel::Bytes body) {
  Member& member = members_.at(id);
  auto hello = ReadHello(body);
  if (!hello || member.has_greeted) {
    return Internal(member.channel->peer(), " sent a wrong Hello");
  }
  member.has_greeted = true;
  member.on_master = hello->on_master;
  member.world_size = hello->world_size;
  const auto peer = SocketAddress::OfPeer(member.channel->socket());
  const SocketAddress& address = peer.ok() ? *peer : hello->address;
  member.channel->set_peer(StrCat(hello->name, " (", address.HostText(), ")"));
  if (phase_ == Phase::kEnding) {
    if (!member.on_master) Tell(&member);
    TellOwnWhenOthersHaveGone();
    return Status();
  }
  roster_.AddHost(id, std::move(hello->name), hello->address);
  if (phase_ == Phase::kCollecting) {
    const Deadline theirs =
        Deadline::After(static_cast<double>(hello->remaining_nanos) * 1e-9);
    if (theirs.Remaining() < deadline_.Remaining()) SetDeadline(theirs);
  }
  return member.channel->Send(static_cast<uint32_t>(Kind::kMasterRank),
                              {WriteNumbers({&master_rank_, 1}).bytes()});
}

Status Master::HandleRanks(uint64_t id, Channel::Bytes body) {
  Member& member = members_.at(id);
  const auto ranks = ReadNumbers(body);
  if (!ranks || !member.has_greeted) {
    return Internal(member.channel->peer(), " sent wrong ranks");
  }
  SHARD_RETURN_IF_ERROR(roster_.AddRanks(id, *ranks, member.world_size));
  if (member.on_master && roster_.first_rank(id) != master_rank_) {
    master_rank_ = roster_.first_rank(id);
    TellMasterRank();
  }
  const bool is_complete = phase_ == Phase::kCollecting && roster_.whole();
  return is_complete ? Publish() : Status();
}

void Master::TellMasterRank() {
  const FrameWriter frame = WriteNumbers({&master_rank_, 1});
  for (auto& [id, member] : members_) {
    // A member that cannot take it is being lost.
    if (member.has_greeted) {
      (void)member.channel->Send(static_cast<uint32_t>(Kind::kMasterRank),
                                 {frame.bytes()});
    }
  }
}

Status Master::Publish() {
  SHARD_ASSIGN_OR_RETURN(table_, roster_.MakeTable(&hosts_));
  table_frame_ = WriteTable(table_, 0);
  phase_ = Phase::kMeshing;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    members_.at(hosts_[i]).index = static_cast<int>(i);
  }
  PublishSome();
  return Status();
}

void Master::PublishSome() {
  const auto table = table_frame_.bytes();
  const size_t most_taking =
      std::max<size_t>(1, kMostPublishing / std::max<size_t>(1, table.size()));
  while (phase_ == Phase::kMeshing && published_ < hosts_.size() &&
         taking_ < most_taking) {
    Member& member = members_.at(hosts_[published_++]);
    const int32_t index = member.index;
    // The tables of hosts differ in their first field alone.
    (void)member.channel->Send(
        static_cast<uint32_t>(Kind::kTable),
        {std::as_bytes(std::span(&index, 1)), table.subspan(sizeof(index))});
    member.takes_table = member.channel->queued_bytes() > 0;
    taking_ += member.takes_table;
  }
}

void Master::HandleDrained(uint64_t id) {
  Member& member = members_.at(id);
  if (!member.takes_table) return;
  member.takes_table = false;
  --taking_;
  PublishSome();
}

Status Master::HandleMeshed(uint64_t id) {
  Member& member = members_.at(id);
  if (phase_ != Phase::kMeshing || member.index < 0 || member.meshed) {
    return Internal(member.channel->peer(),
                    " says at a wrong time that it is connected");
  }
  member.meshed = true;
  if (++meshed_ == hosts_.size()) EndWith(Status());
  return Status();
}

void Master::HandleClosed(uint64_t id) {
  Status lost;
  if (phase_ != Phase::kEnding && members_.at(id).has_greeted) {
    lost = roster_.RemoveHost(id);
  }
  Drop(id);
  if (phase_ == Phase::kEnding) {
    TellOwnWhenOthersHaveGone();
  } else if (!lost.ok()) {
    EndWith(std::move(lost));
  }
}

void Master::Drop(uint64_t id) {
  const auto member = members_.extract(id);
  bytes_sent_ += member.mapped().channel->bytes_sent();
  bytes_received_ += member.mapped().channel->bytes_received();
}

void Master::SetDeadline(const Deadline& deadline) {
  deadline_ = deadline;
  timer_ = loop_->At(deadline, [this] { EndWith(DeadlineError()); });
}

Status Master::DeadlineError() const {
  const double waited =
      std::chrono::duration<double>(Deadline::Clock::now() - started_).count();
  if (phase_ == Phase::kMeshing) {
    for (const uint64_t host : hosts_) {
      const Member& member = members_.at(host);
      if (member.meshed) continue;
      return Status(StatusCode::kDeadlineExceeded,
                    StrCat("host ", member.channel->peer(),
                           " did not connect to all other hosts within ",
                           std::round(waited * 10) / 10, " s"),
                    table_[static_cast<size_t>(member.index)].first_rank);
    }
  }
  const Status status = roster_.MissingRanks(options_.where, waited);
  std::string hints;
  if (listener_->address().loopback()) {
    StrAppend(&hints, "; ", listener_->address().HostText(),
              " is a loopback address, which no other host reaches");
  }
  if (!listener_->last_refusal().ok()) {
    StrAppend(
        &hints, "; ", listener_->refused(),
        listener_->refused() == 1 ? " connection was" : " connections were",
        " refused, the last: ", listener_->last_refusal().message());
  }
  return Status(status.code(), status.message() + hints, status.rank());
}

void Master::EndWith(Status verdict) {
  if (phase_ == Phase::kEnding) return;
  // After an OK the hosts that have come are all there are.
  lingers_ = !verdict.ok() && !roster_.whole();
  waits_for_others_ = true;
  phase_ = Phase::kEnding;
  verdict_ = std::move(verdict);
  for (auto& [id, member] : members_) {
    if (member.has_greeted && !member.on_master) Tell(&member);
  }
  // Hosts that do not take the verdict do not keep this one waiting.
  timer_ = loop_->At(Deadline::After(kLingerSeconds), [this] {
    lingers_ = waits_for_others_ = false;
    TellOwnWhenOthersHaveGone();
  });
  TellOwnWhenOthersHaveGone();
}

void Master::Tell(Member* member) {
  if (std::exchange(member->told, true)) return;
  Status verdict = verdict_;
  if (verdict.ok() && member->index < 0) {
    verdict =
        InvalidArgument("the job is complete without host ",
                        member->channel->peer(), ", which has no rank of it");
  }
  (void)member->channel->Send(static_cast<uint32_t>(Kind::kVerdict),
                              {Write(verdict).bytes()});
}

void Master::TellOwnWhenOthersHaveGone() {
  if (lingers_) return;
  const auto is_other = [](const auto& entry) {
    return entry.second.has_greeted && !entry.second.on_master;
  };
  if (waits_for_others_ &&
      std::any_of(members_.begin(), members_.end(), is_other)) {
    return;
  }
  for (auto& [id, member] : members_) {
    if (member.has_greeted && member.on_master) Tell(&member);
  }
}

}  // namespace shard::network
