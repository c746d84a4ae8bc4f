// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/host_helper.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/network/helper/meeting_options.h"
#include "core/comm/shm/memfd.h"

namespace shard::network {

namespace {

// The time that a helper whose ranks are gone waits for other hosts to read
// what they wrote last.
constexpr double kGoodbyeSeconds = 2;

direct::Hosts HostsOf(const std::vector<HostEntry>& table) {
  std::vector<int> begins = {0};
  for (const HostEntry& host : table) {
    begins.push_back(host.first_rank + host.ranks);
  }
  return direct::Hosts(std::move(begins));
}

}  // namespace

StatusOr<std::unique_ptr<HostHelper>> HostHelper::Create(
    Fd listening, Loop* loop, std::string version,
    std::function<void(std::string_view)> warn) {
  std::unique_ptr<HostHelper> helper(
      new HostHelper(loop, std::move(version), std::move(warn)));
  SHARD_ASSIGN_OR_RETURN(
      helper->local_end_,
      LocalEnd::Create(std::move(listening), loop, helper.get()));
  return helper;
}

// --- the meeting ---

void HostHelper::OnRank(const LocalEnd::Rank& rank) {
  if (links_ != nullptr) {
    // While the links open, before the Welcome frees the name.
    local_end_->SendVerdict(
        rank.rank, Status(StatusCode::kAlreadyExists,
                          StrCat("rank ", rank.rank,
                                 " comes after the ranks have met; start the "
                                 "job again, or give it another id"),
                          rank.rank));
    return;
  }
  if (has_failed_) return;  // The local end tells the rank why.
  if (meeting_ == nullptr) {
    if (const Status started = StartMeeting(rank); !started.ok()) {
      return FailMeeting(started);
    }
  }
  meeting_->AddRank(rank.rank);
}

Status HostHelper::StartMeeting(const LocalEnd::Rank& first) {
  deadline_ = first.deadline;
  SHARD_ASSIGN_OR_RETURN(
      MeetingOptions options,
      ReadMeetingOptions(first.options, first.world_size, first.deadline));
  options.timeout = first.timeout;
  options.identity.library_version = version_;
  options.warn = [this](const std::string& line) { warn_(line); };
  meeting_ = std::make_unique<Meeting>(
      loop_, std::move(options),
      [this](StatusOr<Mesh> mesh) { HandleMet(std::move(mesh)); });
  return Status();
}

void HostHelper::FailMeeting(const Status& why) {
  if (std::exchange(has_failed_, true)) return;
  if (links_ != nullptr) {
    links_->Fail(why);
  } else if (meeting_ != nullptr) {
    meeting_->Fail(why);
  }
  local_end_->FailMeeting(why);
}

void HostHelper::HandleMet(StatusOr<Mesh> mesh) {
  Status status = mesh.status();
  if (status.ok()) {
    auto links = MeshLinks::Create(
        loop_, *std::move(mesh), deadline_,
        {.on_ready = [this] { WelcomeRanks(); },
         // Ranks that have met learn by the end of the channel, which follows.
         .on_failed =
             [this](const Status& why) {
               if (!was_welcomed_) FailMeeting(why);
             },
         .on_message =
             [this](int host, std::span<const std::byte> message) {
               const Status received = mirror_->Receive(host, message);
               if (!received.ok()) links_->Lose(host, received);
             },
         .has_all_data =
             [this](int host) { return !mirror_->WaitsForData(host); },
         .on_lost = [this](int host,
                           const Status& why) { HandleLost(host, why); }});
    status = links.status();
    if (links.ok()) {
      links_ = *std::move(links);
      status = MakeMirror();
      if (!status.ok()) links_.reset();
    }
  }
  if (!status.ok()) FailMeeting(status);
}

Status HostHelper::MakeMirror() {
  const direct::Hosts hosts = HostsOf(links_->hosts());
  const size_t bytes = direct::ControlBlock::Bytes(hosts.world_size());
  SHARD_ASSIGN_OR_RETURN(control_memory_,
                         shm::CreateMemory("libshard-control", bytes));
  SHARD_ASSIGN_OR_RETURN(
      Mapping control, shm::MapMemory(control_memory_.get(), bytes, 0, bytes));
  control_ = std::make_shared<const Mapping>(std::move(control));
  bell_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell_.valid()) return ErrnoStatus("opening an eventfd", errno);
  SHARD_ASSIGN_OR_RETURN(
      bell_watch_,
      loop_->Add(bell_.get(), EPOLLIN, [this](uint32_t) { HandleBell(); }));
  mirror_ =
      std::make_unique<Mirror>(hosts, links_->host(), control_, links_.get());
  block()->mirror_sleeps.store(1, std::memory_order_seq_cst);
  return Status();
}

void HostHelper::WelcomeRanks() {
  if (has_failed_) return;
  was_welcomed_ = true;
  meeting_.reset();
  World world;
  for (const HostEntry& host : links_->hosts()) {
    world.hosts.push_back({host.name, host.first_rank, host.ranks});
    world.world_size += host.ranks;
  }
  const HostRanks& mine = world.hosts[static_cast<size_t>(links_->host())];
  world.first_rank = mine.first_rank;
  world.ranks = mine.ranks;
  for (const int rank : local_end_->ranks()) {
    // Others have had their verdict.
    if (!IsOfThisHost(rank)) continue;
    local_end_->SendWelcome(rank, world, control_memory_.get(), bell_.get());
  }
}

bool HostHelper::IsOfThisHost(int rank) const {
  if (links_ == nullptr) return true;
  const HostEntry& mine = links_->hosts()[static_cast<size_t>(links_->host())];
  return rank >= mine.first_rank && rank < mine.first_rank + mine.ranks;
}

void HostHelper::HandleLost(int host, const Status& why) {
  const HostEntry& entry = links_->hosts()[static_cast<size_t>(host)];
  if (!was_welcomed_) {
    return FailMeeting(RankLost(
        entry.first_rank, "host ", entry.name, " with rank ", entry.first_rank,
        entry.ranks > 1 ? StrCat(" and ", entry.ranks - 1, " more") : "",
        " was lost while the ranks met: ", why.message()));
  }
  // A host whose ranks have ended is not lost.
  bool is_in_use = false;
  for (int r = entry.first_rank; r < entry.first_rank + entry.ranks; ++r) {
    if (block()->slots()[r].presence.load(std::memory_order_acquire) ==
        direct::kPresent) {
      is_in_use = true;
    }
  }
  if (is_in_use) warn_(StrCat("host ", entry.name, ": ", why.message()));
  mirror_->LoseHost(host);
}

// --- the ranks ---

// The ranks ring only while the mirror sleeps.
void HostHelper::HandleBell() {
  block()->mirror_sleeps.store(0, std::memory_order_seq_cst);
  eventfd_t rings;
  ::eventfd_read(bell_.get(), &rings);
  mirror_->Scan();
  block()->mirror_sleeps.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  mirror_->Scan();
}

void HostHelper::OnGone(int rank, LocalEnd::End how, const Status& why) {
  if (!IsOfThisHost(rank)) return;
  if (!was_welcomed_) {
    return FailMeeting(Status(
        why.code(), StrCat(why.message(), " while the ranks met"), rank));
  }
  mirror_->Bury(rank,
                how == LocalEnd::End::kDied ? direct::kDied : direct::kLeft);
  for (auto at = regions_.begin(); at != regions_.end();) {
    DropRegion(at++, rank);
  }
}

void HostHelper::OnRefused(const Status& why) {
  warn_(why.message());
  if (!was_welcomed_) FailMeeting(why);
}

void HostHelper::OnEmpty() {
  if (links_ == nullptr) return loop_->Stop();
  links_->SayGoodbye(kGoodbyeSeconds, [this] { loop_->Stop(); });
}

// --- their memory ---

void HostHelper::OnRegionRequest(int rank, const LocalEnd::Request& request) {
  const auto memory = TakeRegion(rank, request);
  if (!memory.ok()) {
    local_end_->RefuseRegion(rank, request.number, memory.status());
    return;
  }
  local_end_->SendRegion(rank, request.number, request.bytes, *memory);
}

StatusOr<int> HostHelper::TakeRegion(int rank,
                                     const LocalEnd::Request& request) {
  if (!was_welcomed_) {
    return FailedPrecondition("rank ", rank,
                              " asks for memory before the ranks have met");
  }
  auto found = regions_.find(request.key);
  if (found == regions_.end()) {
    SharedRegion region = {.bytes = request.bytes, .layout = request.layout};
    // All ranks of this host ask for what one of them asks for, and are refused
    // what it is refused: memory that some of them lack would stay.
    for (const int each : local_end_->ranks()) {
      if (IsOfThisHost(each)) region.ranks.insert(each);
    }
    auto made = MakeRegion(request);
    region.refusal = made.status();
    if (made.ok()) region.memory = *std::move(made);
    found = regions_.emplace(request.key, std::move(region)).first;
  }
  const SharedRegion& region = found->second;
  SHARD_RETURN_IF_ERROR(region.refusal);
  if (region.bytes != request.bytes || !(region.layout == request.layout)) {
    return Status(StatusCode::kDesync,
                  StrCat("rank ", rank, " asks for ", request.bytes,
                         " bytes of memory '", request.key, "', others for ",
                         region.bytes, " bytes, or with another layout"),
                  rank);
  }
  return region.memory.get();
}

StatusOr<Fd> HostHelper::MakeRegion(const LocalEnd::Request& request) {
  SHARD_ASSIGN_OR_RETURN(Fd region,
                         shm::CreateMemory("libshard-net", request.bytes));
  if (request.layout.kind == RegionKind::kOfHost) return region;
  const bool is_block = request.layout.kind == RegionKind::kBlock;
  const direct::CellRing ring = {request.layout.cells,
                                 request.layout.payload_bytes};
  if (is_block &&
      (ring.count < 2 ||
       request.bytes < direct::ControlBlock::Bytes(
                           HostsOf(links_->hosts()).world_size(), ring))) {
    return InvalidArgument("memory '", request.key, "' of ", request.bytes,
                           " bytes is too small for a block with ", ring.count,
                           " cells of ", ring.payload_bytes, " bytes");
  }
  // A block's pages are written here too, so a lack of memory must be an error
  // now; those of tensors are committed as they are used.
  SHARD_ASSIGN_OR_RETURN(Mapping mapping,
                         shm::MapMemory(region.get(), request.bytes, 0,
                                        is_block ? request.bytes : 0));
  auto memory = std::make_shared<const Mapping>(std::move(mapping));
  SHARD_RETURN_IF_ERROR(
      is_block ? mirror_->AddBlock(request.key, std::move(memory), ring)
               : mirror_->AddStaging(request.layout.block, std::move(memory)));
  return region;
}

void HostHelper::OnRelease(int rank, std::string_view key) {
  const auto region = regions_.find(key);
  if (region != regions_.end()) DropRegion(region, rank);
}

void HostHelper::DropRegion(Regions::iterator region, int rank) {
  region->second.ranks.erase(rank);
  if (!region->second.ranks.empty()) return;
  if (region->second.refusal.ok() &&
      region->second.layout.kind == RegionKind::kBlock) {
    mirror_->RemoveBlock(region->first);
  }
  regions_.erase(region);
}

}  // namespace shard::network
