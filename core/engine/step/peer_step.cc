// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/peer_step.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/base/transport.h"
#include "core/engine/step/make_update_list.h"
#include "core/engine/transfer/collectives_memory.h"
#include "core/observe/observer.h"

namespace shard {

namespace {

constexpr std::string_view kWhat = "prepare steps of one kernel";

// A GPU that works leaves a kernel in less, also where a large range passes
// over PCIe. Then NCCL's abort unmaps the memory, for which there is the same
// time.
constexpr std::chrono::seconds kLongestEnd(10);

// Returns what of the plan and the options needs more than one launch; "" for
// nothing.
std::string FindReason(const PeerStep::Dependencies& deps) {
  const Plan& plan = *deps.plan;
  const PlanOptions& options = plan.options();
  if (plan.shards_params()) return "stage 3 gathers parameters unit by unit";
  if (plan.shards_grads()) {
    return "stage 2 reduces gradients unit by unit; use whole_grads, or stage "
           "1";
  }
  if (deps.device->offload() != nullptr) {
    return "offloaded states are updated by the host's processors";
  }
  if (deps.overlap) return "overlap sends parameters after the step";
  if (deps.allow_missing)
    return "missing_grads chooses parameters in each step";
  for (const GroupOptions& group : options.groups) {
    if (group.tensor == nullptr) continue;
    return StrCat("'", group.optimizer, "' updates whole tensors");
  }
  if (plan.RangeOf(1) != 1) {
    return "ranges of shard groups are not in the order of ranks";
  }
  // Ranks that share memory have none of their own, and another reason.
  if (!deps.comm->direct() &&
      (deps.memory->params().size() == 0 || deps.memory->grads().size() == 0)) {
    return "no parameter is trainable";
  }
  return "";
}

}  // namespace

StatusOr<std::unique_ptr<PeerStep>> PeerStep::Create(const Dependencies& deps,
                                                     const Deadline& deadline) {
  std::unique_ptr<PeerStep> made(new PeerStep);
  Communicator* const comm = deps.comm;
  made->why_not_ = FindReason(deps);
  if (made->why_not_.empty()) {
    const auto allocate = [&]() -> Status {
      const CollectivesMemory sizes =
          MeetingsMemory(comm->world_size(), Transport::kNccl);
      SHARD_ASSIGN_OR_RETURN(made->flags_, deps.collectives->Allocate(
                                               deps.device, sizes.device_bytes,
                                               "flags of the ranks"));
      SHARD_ASSIGN_OR_RETURN(
          made->waits_,
          deps.device->AllocateHost(sizes.host_bytes, "waits for other ranks"));
      *reinterpret_cast<PeerWaits*>(made->waits_.data()) = {};
      return Status();
    };
    SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm, kWhat, allocate(), deadline));
    const DeviceMemory* const memory[] = {&deps.memory->params(),
                                          &deps.memory->grads(), &made->flags_};
    SHARD_ASSIGN_OR_RETURN(
        const PeerMemory found,
        deps.collectives->FindPeerMemory(comm, memory, deadline));
    made->why_not_ = found.why_not;
    if (made->why_not_.empty()) {
      SHARD_RETURN_IF_ERROR(
          AgreeOnStatus(comm, kWhat, made->Prepare(deps, found), deadline));
      return made;
    }
  }
  made->flags_ = {};
  made->waits_ = {};
  if (comm->rank() == 0) {
    comm->observer()->Log(EventId::kTransport,
                          "a step is not one kernel: ", made->why_not_);
  }
  return made;
}

Status PeerStep::Prepare(const Dependencies& deps, const PeerMemory& found) {
  const auto rank = static_cast<size_t>(deps.comm->rank());
  const auto ranks = static_cast<size_t>(deps.comm->world_size());
  const std::vector<std::byte*>& params = found.addresses[0];
  const std::vector<std::byte*>& grads = found.addresses[1];
  const std::vector<std::byte*>& flags = found.addresses[2];
  SHARD_ASSIGN_OR_RETURN(
      list_, MakeUpdateList(*deps.plan, *deps.memory, deps.comm->rank(),
                            deps.memory->workspace()));
  UpdatePeers peers;
  peers.rank = deps.comm->rank();
  peers.waits = reinterpret_cast<PeerWaits*>(waits_.data());
  for (std::byte* const it : flags) {
    peers.flags.push_back(reinterpret_cast<uint64_t*>(it));
  }
  list_.sources.clear();
  size_t r = 0;
  for (const EngineBuffer& buffer : deps.memory->buffers()) {
    if (!buffer.plan->trainable) continue;
    UpdateRange& range = list_.ranges[r++];
    const int64_t begin = deps.plan->RangeOf(deps.comm->rank()) *
                          buffer.plan->layout.shard_numel();
    const auto* const own =
        static_cast<const std::byte*>(buffer.GradAt(deps.comm->rank(), begin));
    range.first_source = list_.sources.size();
    range.num_sources = ranks;
    range.source_dtype = buffer.plan->grad_dtype;
    range.keeps_sum = false;
    std::vector<void*>& copies = peers.params.emplace_back();
    for (size_t w = 0; w < ranks; ++w) {
      list_.sources.push_back(grads[w] + (own - grads[rank]));
      if (w == rank) continue;
      copies.push_back(params[w] +
                       (static_cast<std::byte*>(range.param) - params[rank]));
    }
  }
  list_.peers = std::move(peers);
  return WithNeededMemory(deps.device->Prepare(&list_), *deps.plan, *deps.comm,
                          *deps.device);
}

void PeerStep::EndWaits() noexcept {
  if (waits_.size() == 0) return;
  auto& waits = *reinterpret_cast<PeerWaits*>(waits_.data());
  const std::atomic_ref ended(waits.ended);
  const std::atomic_ref begun(waits.begun);
  const std::atomic_ref over(waits.over);
  ended.store(1);
  // A kernel that begins after this store sees `ended`, and uses no memory of
  // other ranks.
  const auto end = std::chrono::steady_clock::now() + kLongestEnd;
  while (begun.load() != over.load() &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace shard
