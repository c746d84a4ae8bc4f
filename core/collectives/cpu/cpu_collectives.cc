// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/cpu/cpu_collectives.h"

#include <algorithm>

#include "core/collectives/rank_work.h"

namespace shard::cpu {

template <typename Work>
void CpuCollectives::Enqueue(std::string_view tag, Stream* stream, Work work) {
  EnqueueRankWork(exchange_->host_waits(), stream, tag,
                  [exchange = exchange_, call = deadline_, timeout = timeout_,
                   work = std::move(work)] {
                    return work(exchange.get(),
                                call.value_or(Deadline::After(timeout)));
                  });
}

Status CpuCollectives::CheckOpened(std::string_view tag,
                                   const RankSet& set) const {
  if (std::find(sets_.begin(), sets_.end(), set) != sets_.end()) {
    return Status();
  }
  return InvalidArgument("'", tag, "' over ", set.count, " ranks from ",
                         set.first, " in steps of ", set.stride,
                         ", which OpenCollectives was not given; open every "
                         "set that a collective uses");
}

void CpuCollectives::ReduceScatter(std::string_view tag, const RankSet& set,
                                   const ReduceScatterArgs& args,
                                   Stream* stream) {
  Enqueue(tag, stream,
          [opened = CheckOpened(tag, set), tag, set, args](
              Exchange* exchange, const Deadline& deadline) {
            SHARD_RETURN_IF_ERROR(opened);
            return exchange->ReduceScatter(tag, set, args, deadline);
          });
}

void CpuCollectives::AllGatherBlocks(std::string_view tag, const RankSet& set,
                                     const void* send, size_t bytes, void* recv,
                                     Stream* stream) {
  Enqueue(tag, stream,
          [=, opened = CheckOpened(tag, set)](Exchange* exchange,
                                              const Deadline& deadline) {
            SHARD_RETURN_IF_ERROR(opened);
            return exchange->AllGatherBlocks(tag, set, send, bytes, recv,
                                             deadline);
          });
}

void CpuCollectives::Broadcast(std::string_view tag, int root, void* data,
                               size_t bytes, Stream* stream) {
  Enqueue(tag, stream, [=](Exchange* exchange, const Deadline& deadline) {
    return exchange->Broadcast(tag, root, data, bytes, deadline);
  });
}

}  // namespace shard::cpu
