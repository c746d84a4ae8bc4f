// SPDX-License-Identifier: Apache-2.0
//
// The ends of RankComms: by themselves, and by an abort.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/parallel.h"
#include "core/base/status.h"
#include "core/collectives/nccl/pause.h"
#include "core/collectives/nccl/rank_comms.h"
#include "core/device/work_queue/work_queue.h"

namespace shard::nccl {

namespace {

constexpr std::string_view kEnd = "end NCCL's communicators";

// Seconds for communicators to end by themselves. All ranks that end theirs at
// about the same time take much less; a rank that is alone aborts its own.
constexpr double kFinalizeSeconds = 2;

// The same where a rank is gone, or the family has ended: ranks that have come
// are about to end.
constexpr double kGoneSeconds = 0.1;

// Keeps what NCCL may still write, as long as the process lives.
void Keep(std::shared_ptr<void> slots) noexcept {
  struct Kept {
    std::shared_ptr<void> slots;
    Kept* before;
  };
  // Not destroyed: threads of NCCL may outlive main. A list that is reachable
  // is no leak to those who look for some.
  static std::atomic<Kept*> last = nullptr;
  auto* const kept = new (std::nothrow) Kept{std::move(slots), last};
  if (kept == nullptr) return;
  while (!last.compare_exchange_weak(kept->before, kept)) {
  }
}

}  // namespace

RankComms::~RankComms() {
  if (::getpid() != owner_) return;
  if (!Finalize()) Abort();
  if (state_->context->is_abandoned()) return;
  // Where an abort has failed, a kernel of NCCL may still write any of this
  // memory. It is not given to others, who would find NCCL's bytes in it.
  if (!state_->AllHaveEnded()) {
    Keep(state_->slots);
    return;
  }
  const cuda::Context::Current current(*state_->context);
  memory_.FreeRest();
}

Status RankComms::State::AbortOne(Opened* opened) const {
  NcclComm comm = nullptr;
  {
    // A call that another thread makes is not disturbed.
    const std::lock_guard<std::mutex> lock(opened->mutex);
    comm = std::exchange(opened->comm, nullptr);
    if (comm == nullptr && opened->is_left) {
      return Internal("ncclCommAbort has not ended a communicator before");
    }
    // NCCL has made nothing, or an abort has ended it.
    if (comm == nullptr) return Status();
    opened->is_left = true;
  }
  SHARD_RETURN_IF_ERROR(context->Run([&] {
    const NcclResult result = library.api.CommAbort(comm);
    if (result == NcclResult::kSuccess) return Status();
    return Internal("ncclCommAbort: ", static_cast<int>(result));
  }));
  const std::lock_guard<std::mutex> lock(opened->mutex);
  opened->is_left = false;
  return Status();
}

bool RankComms::State::AllHaveEnded() const {
  return std::all_of(comms.begin(), comms.end(), [](const auto& opened) {
    const std::lock_guard<std::mutex> lock(opened->mutex);
    return opened->comm == nullptr && !opened->is_left;
  });
}

Status RankComms::State::AbortAll() {
  // NCCL may write the handles of the others, which stay where they are.
  std::vector<Opened*> made;
  std::vector<Opened*> others;
  made.reserve(comms.size());
  others.reserve(comms.size());
  for (const auto& opened : comms) {
    (opened->is_made ? made : others).push_back(opened.get());
  }
  std::vector<Status> aborted(comms.size());
  // An abort may wait for all work of the device, and for a call that holds the
  // lock, so each has a thread: one thread would wait for the kernel of a
  // communicator whose abort comes later. Groups of aborts do the same, but
  // only from NCCL 2.22 on.
  std::vector<char> tried(made.size(), 0);
  const Status threads = ParallelFor(made.size(), static_cast<int>(made.size()),
                                     [&](size_t i, int) {
                                       tried[i] = 1;
                                       aborted[i] = AbortOne(made[i]);
                                       return Status();
                                     });
  // Without threads, one after the other.
  for (size_t i = 0; i < made.size(); ++i) {
    if (tried[i] == 0) aborted[i] = AbortOne(made[i]);
  }
  // The first has waited for a split that went on, which then gave a handle.
  for (size_t i = 0; i < others.size(); ++i) {
    aborted[made.size() + i] = AbortOne(others[i]);
  }
  for (const Status& status : aborted) SHARD_RETURN_IF_ERROR(status);
  return threads;
}

bool RankComms::Abort(double seconds) noexcept {
  state_->ended = true;
  try {
    // An abort hangs where the device or its driver does, and waits for a call
    // that another thread makes. So it has a thread that can be left to it.
    auto queue =
        WorkQueue::Start(std::make_shared<Monitor>(), "shard-abort", Pauses());
    const auto end_all = [state = state_] { return state->AbortAll(); };
    Status done;
    if (queue.ok()) {
      (*queue)->Push("abort", end_all);
      done = (*queue)->Synchronize(Deadline::After(seconds));
    } else {
      done = end_all();
    }
    // Work on the device ends otherwise, or does not: Stream::Settle tells.
    if (done.code() != StatusCode::kDeadlineExceeded) return done.ok();
    static_cast<void>(queue->release());
  } catch (...) {  // NOLINT: out of memory
  }
  state_->context->Abandon();
  return false;
}

bool RankComms::Finalize() noexcept {
  try {
    if (state_->ended) return true;
    if (!is_opened_ || !memory_.IsEmpty()) return false;
    const Comms& comms = state_->comms;
    const cuda::Context::Current current(*state_->context);
    Deadline deadline = Deadline::After(kFinalizeSeconds);
    // No rank posts a notice any more: one that is gone counts as lost.
    const auto is_over = [&, never = Deadline::After(3600)] {
      constexpr uint64_t kLast = std::numeric_limits<uint64_t>::max();
      return !notices_->Check(kLast, kEnd, never).ok();
    };
    bool waits_shorter = false;
    for (const auto& opened : comms) {
      const std::lock_guard<std::mutex> lock(opened->mutex);
      const NcclResult result = api_.CommFinalize(opened->comm);
      if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) {
        return false;
      }
    }
    for (const auto& opened : comms) {
      Pause pause = PauseOfCall();
      for (;;) {
        NcclResult state = NcclResult::kSuccess;
        {
          const std::lock_guard<std::mutex> lock(opened->mutex);
          if (api_.CommGetAsyncError(opened->comm, &state) !=
              NcclResult::kSuccess) {
            return false;
          }
        }
        if (state == NcclResult::kSuccess) break;
        if (!waits_shorter && is_over()) {
          waits_shorter = true;
          deadline = Deadline::After(kGoneSeconds);
        }
        if (state != NcclResult::kInProgress || deadline.Expired()) {
          return false;
        }
        pause.Take();
      }
    }
    state_->ended = true;
    for (auto it = comms.rbegin(); it != comms.rend(); ++it) {
      const std::lock_guard<std::mutex> lock((*it)->mutex);
      api_.CommDestroy(std::exchange((*it)->comm, nullptr));
    }
    return true;
  } catch (...) {  // NOLINT: out of memory
    return false;
  }
}

}  // namespace shard::nccl
