// SPDX-License-Identifier: Apache-2.0

#include "core/comm/gather.h"

#include <algorithm>
#include <cstdint>

#include "core/base/host_memory.h"

namespace shard {

StatusOr<std::vector<std::vector<std::byte>>> GatherBytes(
    Communicator* comm, std::string_view what, std::span<const std::byte> mine,
    const Deadline& deadline) {
  const auto world_size = static_cast<size_t>(comm->world_size());
  const uint64_t size = mine.size();
  std::vector<uint64_t> sizes(world_size);
  SHARD_RETURN_IF_ERROR(
      comm->AllGather(what, &size, sizeof(size), sizes.data(), deadline));
  const uint64_t most = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::vector<std::byte>> all(world_size);
  if (most == 0) return all;
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(
      comm, what, CheckHostMemory(most * (2 * world_size + 1)), deadline));
  std::vector<std::byte> send(mine.begin(), mine.end());
  send.resize(most);
  std::vector<std::byte> received(most * world_size);
  SHARD_RETURN_IF_ERROR(
      comm->AllGather(what, send.data(), most, received.data(), deadline));
  for (size_t r = 0; r < world_size; ++r) {
    const std::byte* const from = received.data() + r * most;
    all[r].assign(from, from + sizes[r]);
  }
  return all;
}

StatusOr<std::string> BroadcastText(Communicator* comm, std::string_view what,
                                    std::string_view text,
                                    const Deadline& deadline) {
  uint64_t size = text.size();
  SHARD_RETURN_IF_ERROR(
      comm->Broadcast(what, 0, &size, sizeof(size), deadline));
  std::string received(size, '\0');
  if (comm->rank() == 0) received = text;
  SHARD_RETURN_IF_ERROR(
      comm->Broadcast(what, 0, received.data(), size, deadline));
  return received;
}

}  // namespace shard
