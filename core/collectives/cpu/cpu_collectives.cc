// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/cpu/cpu_collectives.h"

namespace shard::cpu {

void CpuCollectives::ReduceScatter(std::string_view tag, const RankSet& set,
                                   const ReduceScatterArgs& args,
                                   Stream* stream) {
  Enqueue(tag, /*first=*/true, stream,
          [opened = CheckOpened(tag, set), tag, set, args](
              Exchange* exchange, const Deadline& deadline) {
            SHARD_RETURN_IF_ERROR(opened);
            return exchange->ReduceScatter(tag, set, args, deadline);
          });
}

void CpuCollectives::AllGatherBlocks(std::string_view tag, const RankSet& set,
                                     const void* send, size_t bytes, void* recv,
                                     Stream* stream) {
  Enqueue(tag, /*first=*/true, stream,
          [=, opened = CheckOpened(tag, set)](Exchange* exchange,
                                              const Deadline& deadline) {
            SHARD_RETURN_IF_ERROR(opened);
            return exchange->AllGatherBlocks(tag, set, send, bytes, recv,
                                             deadline);
          });
}

void CpuCollectives::Broadcast(std::string_view tag, int root, void* data,
                               size_t bytes, Stream* stream) {
  Enqueue(tag, /*first=*/true, stream,
          [=](Exchange* exchange, const Deadline& deadline) {
            return exchange->Broadcast(tag, root, data, bytes, deadline);
          });
}

void CpuCollectives::GatherOnHosts(std::string_view tag, const RankSet& set,
                                   const void* send, size_t bytes,
                                   int block_groups, void* recv,
                                   Stream* stream) {
  Enqueue(tag, /*first=*/true, stream,
          [=](Exchange* exchange, const Deadline& deadline) {
            return exchange->GatherOnHosts(tag, set, send, bytes, block_groups,
                                           recv, deadline);
          });
}

}  // namespace shard::cpu
