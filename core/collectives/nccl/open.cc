// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/nccl/open.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/collectives/nccl/library.h"
#include "core/collectives/nccl/nccl_collectives.h"
#include "core/collectives/nccl/rank_comms.h"
#include "core/collectives/nccl/registration.h"
#include "core/collectives/nccl/watchdog.h"
#include "core/comm/host_ranks.h"

namespace shard::nccl {

namespace {

constexpr std::string_view kOpen = "open collectives by NCCL";

// The UUID of a GPU, or of a part of one. No two GPUs have the same, on
// whatever hosts they are; but containers that are hosts of their own may have
// one GPU.
using Gpu = std::array<char, 16>;

// Returns two ranks that have one GPU, or nothing.
std::optional<std::pair<size_t, size_t>> FindShared(
    const std::vector<Gpu>& gpus) {
  for (size_t r = 0; r < gpus.size(); ++r) {
    for (size_t other = 0; other < r; ++other) {
      if (gpus[other] == gpus[r]) return std::pair(other, r);
    }
  }
  return std::nullopt;
}

// Returns how sums begin to be told: those of one set of ranks, or of each set,
// with the hosts that a set is on, where there are several.
std::string TextOf(std::span<const RankSet> sets, const HostRanks& hosts,
                   int world_size) {
  std::string sizes;
  std::string on;
  int count = 0;
  for (const RankSet& set : sets) {
    if (set.count == 1) continue;
    const char* const comma = count == 0 ? "" : ", ";
    StrAppend(&sizes, comma, set.count);
    StrAppend(&on, comma, hosts.MostOf(set));
    ++count;
  }
  const int all = hosts.CountOf(RankSet::All(world_size));
  if (count < 2) return all == 1 ? "," : StrCat(" between ", all, " hosts,");
  return StrCat(" in sets of ", sizes, " ranks",
                all == 1 ? "" : StrCat(" on at most ", on, " hosts"),
                "; in each of these");
}

// Returns why the ranks cannot use NCCL of their versions; "" where they can.
std::string WhyNot(const std::vector<int32_t>& versions,
                   const std::optional<std::pair<size_t, size_t>>& shared) {
  for (size_t r = 0; r < versions.size(); ++r) {
    if (versions[r] == versions[0]) continue;
    return StrCat("rank 0 has NCCL ", VersionText(versions[0]), ", rank ", r,
                  " has ", VersionText(versions[r]),
                  "; install one version on all hosts");
  }
  if (!shared) return "";
  // NCCL refuses them before 2.30, and later unless the environment has
  // NCCL_MULTI_RANK_GPU_ENABLE=1. Its collectives wait for each other on the
  // GPU, which need not run them at once.
  return StrCat(
      "ranks ", shared->first, " and ", shared->second,
      " have one GPU, for which libshard does not use NCCL; give each rank a "
      "GPU of its own, or use collectives=staged");
}

}  // namespace

StatusOr<NcclLibrary> FindNccl(Communicator* control, Device* device,
                               Transport transport, const Deadline& deadline) {
  // A device that does not work leaves time for its error.
  const double half =
      std::chrono::duration<double>(deadline.Remaining()).count() / 2;
  const auto room = device->FindMemoryRoom(Deadline::After(half));
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(control, kOpen, room.status(), deadline));
  const auto world_size = static_cast<size_t>(control->world_size());
  std::vector<Gpu> gpus(world_size);
  SHARD_RETURN_IF_ERROR(control->AllGather(kOpen, &room->id, sizeof(room->id),
                                           gpus.data(), deadline));
  const auto shared = FindShared(gpus);
  if (shared && transport == Transport::kAuto) {
    return NotFound("ranks ", shared->first, " and ", shared->second,
                    " have one GPU");
  }
  auto library = OpenNccl();
  const Status found =
      AgreeOnStatus(control, kOpen, library.status(), deadline);
  if (found.code() == StatusCode::kBackendUnavailable) {
    return NotFound(found.message());
  }
  SHARD_RETURN_IF_ERROR(found);
  const int32_t version = library->version;
  std::vector<int32_t> versions(world_size);
  SHARD_RETURN_IF_ERROR(control->AllGather(kOpen, &version, sizeof(version),
                                           versions.data(), deadline));
  const std::string why = WhyNot(versions, shared);
  if (!why.empty()) return NotFound(why);
  return library;
}

StatusOr<std::shared_ptr<Collectives>> OpenCollectives(
    Communicator* control, Device* device,
    const std::shared_ptr<cuda::Context>& context,
    std::span<const RankSet> sets, const CollectivesOptions& options,
    const Deadline& deadline) {
  auto library = FindNccl(control, device, options.transport, deadline);
  if (library.status().code() == StatusCode::kNotFound) {
    const std::string& why = library.status().message();
    if (options.transport == Transport::kNccl) {
      return BackendUnavailable("collectives=nccl: ", why);
    }
    if (control->rank() == 0) {
      control->observer()->Log(EventId::kTransport,
                               "tensors pass through the host's memory: ", why);
    }
    return std::shared_ptr<Collectives>();
  }
  SHARD_RETURN_IF_ERROR(library.status());
  if (control->world_size() == 1) return std::shared_ptr<Collectives>();
  const std::string version = VersionText(library->version);
  SHARD_ASSIGN_OR_RETURN(const HostRanks hosts,
                         HostRanks::Gather(control, kOpen, deadline));

  SHARD_ASSIGN_OR_RETURN(auto opened,
                         control->OpenNotices("NCCL's collectives",
                                              sizeof(Announcement), deadline));
  const std::shared_ptr<Notices> notices = std::move(opened);
  SHARD_ASSIGN_OR_RETURN(
      auto made, RankComms::Open(control, notices, context, *std::move(library),
                                 sets, deadline));
  NcclCollectives::Parts parts;
  parts.comms = std::move(made);
  parts.comms->SetObserver(control->observer());
  parts.notices = notices;
  parts.sets.assign(sets.begin(), sets.end());
  parts.hosts = hosts;
  parts.observer = control->observer();
  parts.why_not_shared = options.why_not_shared;
  parts.order = options.order;
  parts.timeout = options.timeout;
  parts.rank = control->rank();
  SHARD_ASSIGN_OR_RETURN(parts.registration,
                         Registration::Agree(control, parts.comms, deadline));
  const Registration& registration = *parts.registration;
  const auto finish = [&]() -> Status {
    if (options.reduce.blocks > 0) {
      SHARD_ASSIGN_OR_RETURN(
          parts.blocks,
          registration.Allocate(device, options.reduce.blocks,
                                "gradients of the other ranks", deadline));
      SHARD_ASSIGN_OR_RETURN(parts.zeros,
                             registration.Allocate(device, options.reduce.zeros,
                                                   "zeros", deadline));
    }
    SHARD_ASSIGN_OR_RETURN(
        parts.watchdog, Watchdog::Start(notices, parts.comms, options.timeout));
    return Status();
  };
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(control, kOpen, finish(), deadline));
  if (control->rank() == 0) {
    const std::string& why_not = registration.why_not();
    control->observer()->Log(
        EventId::kTransport, "tensors are moved by NCCL ", version,
        TextOf(sets, hosts, control->world_size()),
        options.order == SumOrder::kLibrary
            ? " f32 gradients are summed by NCCL in its own order, others in "
              "fp32 in the order of ranks"
            : " gradients are summed in the order of ranks",
        why_not.empty() ? ", their memory is registered"
                        : ", their memory is not registered: ",
        why_not);
  }
  return std::shared_ptr<Collectives>(
      std::make_shared<NcclCollectives>(std::move(parts)));
}

}  // namespace shard::nccl
