// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/nccl/peer_memory.h"

#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "core/collectives/nccl/library.h"
#include "core/collectives/nccl/windows.h"

namespace shard::nccl {

namespace {

constexpr std::string_view kFindMemory = "find the memory of other ranks";

// Finds the address of each rank's memory in the window that `own` is in.
// kNotFound where this rank does not reach it.
Status FindAddresses(RankComms* comms, std::byte* own,
                     const RankComms::Check& check,
                     std::vector<std::byte*>* addresses) {
  const NcclWindow window = comms->FindWindow(own);
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

}  // namespace

StatusOr<PeerMemory> FindPeerMemory(Communicator* control, RankComms* comms,
                                    Watchdog* watchdog,
                                    const Registration& registration,
                                    std::span<const DeviceMemory* const> memory,
                                    const Deadline& deadline) {
  PeerMemory peers;
  auto opened = OpenWindows(control, comms, registration, memory, deadline);
  if (opened.ok() && !opened->has_aborted) {
    peers.why_not = opened->why_not.message();
    if (!peers.why_not.empty()) return peers;
  } else {
    const Status failed = opened.ok() ? opened->why_not : opened.status();
    watchdog->Report(failed);
    return failed;
  }
  const auto check = [&]() -> Status {
    if (!deadline.Expired()) return Status();
    return DeadlineExceeded("NCCL has not told where memory is within ",
                            deadline.seconds(), " s");
  };
  const auto find = [&]() -> Status {
    for (const DeviceMemory* const it : memory) {
      SHARD_RETURN_IF_ERROR(FindAddresses(comms, it->data(), check,
                                          &peers.addresses.emplace_back()));
    }
    return Status();
  };
  const Status found = AgreeOnStatus(control, kFindMemory, find(), deadline);
  if (found.code() == StatusCode::kNotFound) {
    peers.addresses.clear();
    peers.why_not = found.message();
    return peers;
  }
  SHARD_RETURN_IF_ERROR(found);
  return peers;
}

}  // namespace shard::nccl
