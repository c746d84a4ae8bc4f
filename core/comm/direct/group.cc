// SPDX-License-Identifier: Apache-2.0

#include "core/comm/direct/group.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/direct/call.h"
#include "core/comm/direct/futex.h"

namespace shard::direct {

namespace {

// The longest time for which a dead peer goes unnoticed.
constexpr auto kSlice = std::chrono::milliseconds(50);

// Number of spins, a few us: enough for ranks that arrive together. More cost
// time where the CPUs are shared after all: on a busy machine with 2 CPUs a
// barrier of 2 takes 4.4 us with 0 spins, 5.5 with 50, 9 with 200 and 30 with
// 1000.
constexpr int kSpins = 100;

void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spinning pays only when every rank has a CPU of its own; otherwise it takes
// the CPU from the rank that is waited for.
int SpinsFor(int world_size) {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 0;
  return world_size <= CPU_COUNT(&set) ? kSpins : 0;
}

// Returns the error of a failed group as the result of a later call.
// kFailedPrecondition is the error of a duplicate whose origin was shut down.
Status Sticky(const Status& first) {
  if (first.code() == StatusCode::kRankLost ||
      first.code() == StatusCode::kPoisoned ||
      first.code() == StatusCode::kFailedPrecondition) {
    return first;
  }
  return Status(StatusCode::kPoisoned,
                StrCat("an earlier error ended the group: ", first.ToString()),
                first.rank());
}

}  // namespace

Group::Group(std::shared_ptr<ControlBlock> block, Membership membership,
             int world_size, std::shared_ptr<const Liveness> liveness,
             bool find_deadlocks_at_once, std::shared_ptr<const Bell> bell)
    : block_(std::move(block)),
      view_{block_.get(), world_size},
      membership_(std::move(membership)),
      rank_(membership_.rank()),
      world_size_(world_size),
      liveness_(std::move(liveness)),
      bell_(std::move(bell)),
      spins_(SpinsFor(world_size)),
      find_deadlocks_at_once_(find_deadlocks_at_once),
      owner_(::getpid()),
      family_(std::make_shared<Family>()),
      host_waits_(&slot(rank_).host_wait, std::make_shared<HostCall>()) {
  family_->blocks.push_back(view_);
}

Group::Group(std::shared_ptr<ControlBlock> block,
             const std::shared_ptr<Group>& group)
    : Group(std::move(block), group, kRoundCells, nullptr) {}

Group::Group(std::shared_ptr<ControlBlock> block,
             const std::shared_ptr<Group>& group, const CellRing& ring)
    : Group(std::move(block), group, ring, group) {}

Group::Group(std::shared_ptr<ControlBlock> block,
             const std::shared_ptr<Group>& group, const CellRing& ring,
             std::shared_ptr<Group> worker)
    : origin_(group->origin_ != nullptr ? group->origin_ : group),
      worker_(std::move(worker)),
      block_(std::move(block)),
      view_{block_.get(), group->world_size_, ring,
            worker_ != nullptr ? worker_->block_.get() : nullptr},
      rank_(group->rank_),
      world_size_(group->world_size_),
      liveness_(group->liveness_),
      bell_(group->bell_),
      spins_(group->spins_),
      find_deadlocks_at_once_(group->find_deadlocks_at_once_),
      owner_(::getpid()),
      family_(group->family_),
      host_waits_(&slot(rank_).host_wait, group->host_waits_.family_call()) {
  const std::lock_guard<std::mutex> lock(family_->mutex);
  family_->blocks.push_back(view_);
}

Group::~Group() {
  // In a child of fork, another thread may have held the mutex.
  if (::getpid() != owner_) return;
  const std::lock_guard<std::mutex> lock(family_->mutex);
  std::erase_if(family_->blocks, [this](const BlockView& view) {
    return view.block == block_.get();
  });
}

State Group::state() const {
  return State::Unpack(block_->state.load(std::memory_order_seq_cst));
}

bool Group::failed() const {
  return state().failer >= 0 || origin().state().failer >= 0;
}

Status Group::failure() const {
  const State now = state();
  return now.failer >= 0 ? Recorded(now) : OriginFailure();
}

bool Group::is_shut_down() const { return shut_down_ || origin().shut_down_; }

Status Group::Begin(const Call& call, const void* send, size_t bytes,
                    const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(Meet(call, send, bytes, deadline));
  return CompareCalls(round_);
}

Status Group::Meet(const Call& call, const void* send, size_t bytes,
                   const Deadline& deadline) {
  mine_ = FingerprintOf(call, calls_++);
  return Round(call, send, bytes, deadline);
}

Status Group::Continue(const Call& call, const void* send, size_t bytes,
                       const Deadline& deadline) {
  return Round(call, send, bytes, deadline);
}

Status Group::Post(const Call& call, const void* send, size_t bytes,
                   const Deadline& deadline) {
  mine_ = FingerprintOf(call, calls_++);
  return PostNext(call, send, bytes, deadline);
}

Status Group::PostNext(const Call& call, const void* send, size_t bytes,
                       const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(Enter(call, send, bytes, deadline));
  // Ranks may wait for this one, which does not stay to complete the round.
  block_->Announce();
  return Status();
}

void Group::Announce() {
  block_->Announce();
  if (bell_ != nullptr) bell_->Ring();
}

Status Group::Round(const Call& call, const void* send, size_t bytes,
                    const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(Enter(call, send, bytes, deadline));
  return Await(call, deadline);
}

Status Group::Enter(const Call& call, const void* send, size_t bytes,
                    const Deadline& deadline) {
  if (const State now = state(); now.failer >= 0) return Sticky(Failure(now));
  if (const Status first = OriginFailure(); !first.ok()) return Sticky(first);
  // This rank's cell of the next round is free once all ranks have entered this
  // one: see control_block.h.
  const uint64_t needed = round_ + 2 - std::min(round_ + 2, view_.ring.count);
  if (needed > met_) {
    if (!AllArrived(needed)) {
      SHARD_RETURN_IF_ERROR(Wait(call, needed, deadline));
    }
    met_ = needed;
  }
  if (bell_ != nullptr && round_ + 1 > view_.ring.count) {
    SHARD_RETURN_IF_ERROR(
        AwaitMirror(call, round_ + 1 - view_.ring.count, deadline));
  }
  ++round_;
  StoreCall(mine_, &cell(rank_));
  cell(rank_).payload_bytes = bytes;
  if (bell_ != nullptr) {
    // Nothing fails from here to the store: a number without a round would keep
    // the mirror from the rounds after it.
    cell(rank_).order =
        family_->entered.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  StoreWords(send, bytes, cell(rank_).payload());
  // seq_cst here and in AllArrived: of two ranks that arrive last together,
  // at least one sees both.
  slot(rank_).arrived.store(round_, std::memory_order_seq_cst);
  if (bell_ != nullptr) bell_->Ring();
  return Status();
}

Status Group::AwaitMirror(const Call& call, uint64_t round,
                          const Deadline& deadline) {
  for (;;) {
    const uint32_t event = block_->event.load(std::memory_order_seq_cst);
    if (slot(rank_).mirrored.load(std::memory_order_acquire) >= round) {
      return Status();
    }
    if (const State now = state(); now.failer >= 0) return Failure(now);
    // A mirror that died leaves ranks that will never enter another round.
    Status error = FindLost(call, UINT64_MAX);
    if (error.ok()) error = OriginFailure();
    if (error.ok() && deadline.Expired()) {
      error = DeadlineExceeded("'", call.what, "': the ", deadline.seconds(),
                               " s have passed, and round ", round,
                               " has not been sent to the other hosts yet");
    }
    if (!error.ok()) {
      Fail(error);
      return Recorded(state());
    }
    bell_->Ring();
    block_->waiters.fetch_add(1, std::memory_order_seq_cst);
    FutexWait(&block_->event, event,
              std::min<std::chrono::nanoseconds>(
                  kSlice, deadline.Remaining() + std::chrono::microseconds(1)));
    block_->waiters.fetch_sub(1, std::memory_order_seq_cst);
  }
}

Status Group::Wait(const Call& call, uint64_t round, const Deadline& deadline) {
  int spins = spins_;
  // A wait is published after one interval, so that short ones cost nothing,
  // and compared with those of other ranks after two: ranks that came together
  // are then all published, and all are named.
  HostWaits::Scope published(&host_waits_);
  int intervals = find_deadlocks_at_once_ ? 2 : 0;
  for (;;) {
    // Read before the checks, so that a change after them ends the sleep at
    // once.
    const uint32_t event = block_->event.load(std::memory_order_seq_cst);
    State now = state();
    if (now.completed >= round) {
      met_ = std::max(met_, round);
      return Status();
    }
    if (now.failer >= 0) return Failure(now);
    if (AllArrived(round)) {
      uint64_t expected = now.Pack();
      if (block_->state.compare_exchange_strong(expected,
                                                State{round, -1}.Pack())) {
        block_->Announce();
      }
      continue;
    }
    if (spins > 0) {
      --spins;
      CpuRelax();
      continue;
    }
    Status error = FindLost(call, round);
    if (intervals >= 1) {
      slot(rank_).awaited.store(round, std::memory_order_release);
      published.Begin();
      if (bell_ != nullptr) bell_->Ring();
    }
    if (error.ok() && intervals >= 2) error = CheckForDeadlock(round);
    if (error.ok() && deadline.Expired())
      error = DescribeLate(call, round, deadline);
    // Checked after the ranks: a rank that fails the origin may leave at once.
    const Status first = OriginFailure();
    if (!first.ok()) return FailRound(round, first);
    if (!error.ok()) return FailRound(round, error);
    block_->waiters.fetch_add(1, std::memory_order_seq_cst);
    FutexWait(&block_->event, event,
              std::min<std::chrono::nanoseconds>(
                  kSlice, deadline.Remaining() + std::chrono::microseconds(1)));
    block_->waiters.fetch_sub(1, std::memory_order_seq_cst);
    if (intervals < 2) ++intervals;
  }
}

Status Group::Check(const Call& call, uint64_t round,
                    const Deadline& deadline) const {
  if (const State now = state(); now.failer >= 0) return Recorded(now);
  const Status lost = FindLost(call, round);
  // Checked after the ranks, as in Wait.
  const Status first = OriginFailure();
  if (!first.ok()) return first;
  if (!lost.ok()) return lost;
  return deadline.Expired() ? DescribeLate(call, round, deadline) : Status();
}

// Compares the ranks' calls. Every rank reads the same cells, so all return the
// same.
Status Group::CompareCalls(uint64_t round) {
  const Fingerprint first = LoadCall(view_.cell(0, round));
  for (int r = 0; r < world_size_; ++r) {
    const Fingerprint other = LoadCall(view_.cell(r, round));
    Status desync;
    if (!SameCall(first, other)) {
      desync =
          Desync(r, "the ranks called different things: rank 0 called ",
                 Format(first), ", rank ", r, " called ", Format(other),
                 " (collective ", first.number,
                 "); every rank must make the same calls in the same order");
    } else if (const std::string why = WhyWrong(other, r, world_size_);
               !why.empty()) {
      desync = Desync(r, "rank ", r, " called ", Format(other), " (collective ",
                      first.number, "), ", why);
    } else {
      continue;
    }
    Fail(desync);
    return desync;
  }
  return Status();
}

Status Group::SleepUntil(const Call& call, const Deadline& end,
                         const Deadline& deadline) {
  for (;;) {
    const uint32_t event = block_->event.load(std::memory_order_seq_cst);
    // Checked first: an error of the group now belongs to a later call, of a
    // peer that was done sooner.
    if (end.Expired()) return Status();
    if (const State now = state(); now.failer >= 0) return Failure(now);
    Status error = OriginFailure();
    if (error.ok() && deadline.Expired()) {
      error = DeadlineExceeded("'", call.what, "': the simulated link takes ",
                               end.seconds(), " s, longer than the ",
                               deadline.seconds(), " s that this rank waits");
    }
    if (!error.ok()) {
      Fail(error);
      return Recorded(state());
    }
    block_->waiters.fetch_add(1, std::memory_order_seq_cst);
    FutexWait(&block_->event, event,
              std::min<std::chrono::nanoseconds>(
                  kSlice, std::min(end.Remaining(), deadline.Remaining()) +
                              std::chrono::microseconds(1)));
    block_->waiters.fetch_sub(1, std::memory_order_seq_cst);
  }
}

bool Group::AllArrived(uint64_t round) const {
  for (int r = 0; r < world_size_; ++r) {
    if (slot(r).arrived.load(std::memory_order_seq_cst) < round) return false;
  }
  return true;
}

void Group::ShutDown() {
  shut_down_ = true;
  membership_.ShutDown();
}

}  // namespace shard::direct
