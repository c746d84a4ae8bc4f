// SPDX-License-Identifier: Apache-2.0
//
// Work of streams in which a rank meets other ranks.

#ifndef SHARD_CORE_COLLECTIVES_RANK_WORK_H_
#define SHARD_CORE_COLLECTIVES_RANK_WORK_H_

#include <cstdint>
#include <string_view>
#include <utility>

#include "core/comm/host_waits.h"
#include "core/device/stream.h"

namespace shard {

// Enqueues `work`, a Status(), as Stream::Call does, and counts it: a rank that
// was given the work needs nothing more of its host to do it. Returns the
// number of the work in `waits`. A stream that drops it leaves other ranks
// waiting: they must learn of that from Stream::OnError.
template <typename Work>
uint64_t EnqueueRankWork(HostWaits* waits, Stream* stream,
                         std::string_view what, Work work) {
  const uint64_t number = waits->AddWork();
  stream->Call(what, [waits, work = std::move(work)] {
    const Status done = work();
    // Work that failed stays counted: what ends the group then is its error,
    // and not that a rank's host has nothing under way.
    if (done.ok()) waits->FinishWork();
    return done;
  });
  return number;
}

}  // namespace shard

#endif  // SHARD_CORE_COLLECTIVES_RANK_WORK_H_
