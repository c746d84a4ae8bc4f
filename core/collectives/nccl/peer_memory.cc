// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/nccl/peer_memory.h"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/collectives/nccl/library.h"

namespace shard::nccl {

namespace {

constexpr std::string_view kWhat = "find the memory of other ranks";

// Returns why this rank cannot register windows; OK where it can.
Status FindReason(const NcclLibrary& library,
                  const Registration& registration) {
  if (!library.api.HasPeers()) {
    return NotFound("NCCL ", VersionText(library.version),
                    " does not tell where the memory of other ranks is; use ",
                    VersionText(kTellsPeersFrom), " or later");
  }
  if (registration.why_not().empty()) return Status();
  return NotFound("memory is not registered with NCCL: ",
                  registration.why_not());
}

// Finds the address of each rank's memory in a window. kNotFound where this
// rank does not reach it.
Status FindAddresses(RankComms* comms, NcclWindow window, std::byte* own,
                     const RankComms::Check& check,
                     std::vector<std::byte*>* addresses) {
  if (window == nullptr) {
    return NotFound(
        "NCCL makes no windows of this memory; unset NCCL_WIN_ENABLE and "
        "NCCL_CUMEM_ENABLE");
  }
  for (int rank = 0; rank < comms->world_size(); ++rank) {
    // NCCL may tell another address of the same memory.
    if (rank == comms->rank()) {
      addresses->push_back(own);
      continue;
    }
    void* address = nullptr;
    NcclResult result = NcclResult::kSuccess;
    // NCCL finds the communicator of all ranks, the first one, by the window.
    const Status status = comms->CallOn(
        0, "ncclGetPeerDevicePointer",
        [&](NcclComm) {
          return result = comms->library().api.GetPeerDevicePointer(
                     window, 0, rank, &address);
        },
        check);
    if (result != NcclResult::kSuccess) return NotFound(status.message());
    SHARD_RETURN_IF_ERROR(status);
    if (address == nullptr) {
      return NotFound("its GPU does not reach the memory of rank ", rank);
    }
    addresses->push_back(static_cast<std::byte*>(address));
  }
  return Status();
}

// Returns kDesync on all ranks where the memory of two of them differs.
Status CompareSizes(Communicator* control,
                    std::span<const DeviceMemory* const> memory,
                    const Deadline& deadline) {
  const auto ranks = static_cast<size_t>(control->world_size());
  const uint64_t count = memory.size();
  std::vector<uint64_t> counts(ranks);
  SHARD_RETURN_IF_ERROR(control->AllGather(kWhat, &count, sizeof(count),
                                           counts.data(), deadline));
  for (size_t r = 1; r < ranks; ++r) {
    if (counts[r] == counts[0]) continue;
    return Desync(static_cast<int>(r), kWhat, ": rank 0 has ", counts[0],
                  " allocations, rank ", r, " has ", counts[r]);
  }
  std::vector<uint64_t> sizes;
  for (const DeviceMemory* const it : memory) sizes.push_back(it->size());
  std::vector<uint64_t> all(ranks * count);
  SHARD_RETURN_IF_ERROR(control->AllGather(
      kWhat, sizes.data(), count * sizeof(sizes[0]), all.data(), deadline));
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == all[i % count]) continue;
    return Desync(static_cast<int>(i / count), kWhat, ": allocation ",
                  i % count, " of rank 0 has ", all[i % count],
                  " bytes, that of rank ", i / count, " has ", all[i]);
  }
  return Status();
}

}  // namespace

StatusOr<PeerMemory> FindPeerMemory(Communicator* control,
                                    const Notices& notices, RankComms* comms,
                                    Watchdog* watchdog,
                                    const Registration& registration,
                                    std::span<const DeviceMemory* const> memory,
                                    const Deadline& deadline) {
  PeerMemory peers;
  // Agrees on what this rank can. Returns whether all can.
  const auto agree = [&](const Status& mine) -> StatusOr<bool> {
    const Status agreed = AgreeOnStatus(control, kWhat, mine, deadline);
    if (agreed.code() == StatusCode::kNotFound) {
      peers.addresses.clear();
      peers.why_not = agreed.message();
      return false;
    }
    SHARD_RETURN_IF_ERROR(agreed);
    return true;
  };
  SHARD_ASSIGN_OR_RETURN(const bool registers,
                         agree(FindReason(comms->library(), registration)));
  if (!registers) return peers;
  SHARD_RETURN_IF_ERROR(CompareSizes(control, memory, deadline));
  std::vector<std::byte*> own;
  for (const DeviceMemory* const it : memory) own.push_back(it->data());
  const auto check = [&]() -> Status {
    // No notice has this number: only a rank that is gone ends the wait for it.
    constexpr uint64_t kLast = std::numeric_limits<uint64_t>::max();
    constexpr double kLong = 3600;
    SHARD_RETURN_IF_ERROR(notices.Check(kLast, kWhat, Deadline::After(kLong)));
    if (!deadline.Expired()) return Status();
    return DeadlineExceeded("NCCL has not made its windows within ",
                            deadline.seconds(),
                            " s; give a longer timeout, or run with "
                            "NCCL_DEBUG=INFO");
  };
  const auto opened = comms->OpenWindows(own, check);
  if (!opened.ok()) {
    // The first error is that of all ranks.
    watchdog->Report(opened.status());
    const Status first = notices.failure();
    return first.ok() ? opened.status() : first;
  }
  const auto find = [&]() -> Status {
    for (size_t i = 0; i < own.size(); ++i) {
      SHARD_RETURN_IF_ERROR(FindAddresses(comms, (*opened)[i], own[i], check,
                                          &peers.addresses.emplace_back()));
    }
    return Status();
  };
  SHARD_RETURN_IF_ERROR(agree(find()).status());
  return peers;
}

}  // namespace shard::nccl
