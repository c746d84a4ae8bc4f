// SPDX-License-Identifier: Apache-2.0

#include "core/comm/direct/group.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/comm/direct/futex.h"

namespace shard::direct {

namespace {

// How long a dead peer can go unnoticed.
constexpr auto kSlice = std::chrono::milliseconds(50);

// A few us: enough for ranks that arrive together. More is paid for where the
// CPUs are shared after all: on a busy machine with 2 CPUs a barrier of 2 takes
// 4.4 us with 0 spins, 5.5 with 50, 9 with 200 and 30 with 1000.
constexpr int kSpins = 100;

void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spinning pays only when every rank has a CPU of its own; else it keeps the
// one waited for from running.
int SpinsFor(int world_size) {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 0;
  return world_size <= CPU_COUNT(&set) ? kSpins : 0;
}

uint64_t HashOf(std::string_view text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

// Copies what fits, never half a UTF-8 character; returns the bytes copied.
template <size_t N>
uint32_t CopyText(std::string_view text, char (&to)[N]) {
  size_t size = std::min(text.size(), N);
  if (size < text.size()) {
    while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80)
      --size;
  }
  std::memcpy(to, text.data(), size);
  return static_cast<uint32_t>(size);
}

// Sizes in shared memory are checked: a peer may run other code than ours.
template <size_t N>
std::string_view TextOf(const char (&text)[N], uint32_t size) {
  return std::string_view(text, std::min<size_t>(size, N));
}

std::string_view OperationName(uint32_t operation) {
  switch (static_cast<Operation>(operation)) {
    case Operation::kBarrier:
      return "barrier";
    case Operation::kAllGather:
      return "all-gather";
    case Operation::kAllocatePerRank:
      return "allocation per rank";
    case Operation::kAllocatePerHost:
      return "allocation per host";
    case Operation::kShutdown:
      return "shutdown";
    case Operation::kReduceScatter:
      return "reduce-scatter";
    case Operation::kAllGatherBlocks:
      return "all-gather of blocks";
    case Operation::kBroadcast:
      return "broadcast";
  }
  return "unknown operation";
}

std::string Format(const Fingerprint& call) {
  std::string out = StrCat(OperationName(call.operation), " '",
                           TextOf(call.what, call.what_bytes), "'");
  const TensorCall& tensor = call.tensor;
  const auto over_set = [&] {
    StrAppend(&out, " over ", tensor.set.count, " ranks from ",
              tensor.set.first, " in steps of ", tensor.set.stride);
  };
  switch (static_cast<Operation>(call.operation)) {
    case Operation::kAllGather:
    case Operation::kAllocatePerRank:
    case Operation::kAllocatePerHost:
      StrAppend(&out, " of ", call.bytes, " bytes");
      break;
    case Operation::kReduceScatter:
      StrAppend(&out, " of ", call.bytes, " ",
                DTypeName(static_cast<DType>(tensor.dtype)),
                tensor.add != 0 ? " added to " : " to ",
                DTypeName(static_cast<DType>(tensor.recv_dtype)));
      over_set();
      break;
    case Operation::kAllGatherBlocks:
      StrAppend(&out, " of ", call.bytes, " bytes");
      over_set();
      break;
    case Operation::kBroadcast:
      StrAppend(&out, " of ", call.bytes, " bytes from rank ", tensor.root);
      break;
    default:
      break;
  }
  if (call.direct == 0) out += " with direct=0";
  return out;
}

bool HasSet(const Fingerprint& call) {
  const auto operation = static_cast<Operation>(call.operation);
  return operation == Operation::kReduceScatter ||
         operation == Operation::kAllGatherBlocks;
}

// A rank that gives up reads the last call of a peer that may just be moving
// on. The text can then be torn, but the round was decided and it is not used;
// relaxed words keep that race a defined one.
static_assert(sizeof(Fingerprint) % sizeof(uint64_t) == 0);
constexpr size_t kCallWords = sizeof(Fingerprint) / sizeof(uint64_t);

void StoreCall(const Fingerprint& from, Cell* to) {
  uint64_t words[kCallWords];
  std::memcpy(words, &from, sizeof(words));
  auto* target = reinterpret_cast<uint64_t*>(&to->call);
  for (size_t i = 0; i < kCallWords; ++i) {
    std::atomic_ref<uint64_t>(target[i]).store(words[i],
                                               std::memory_order_relaxed);
  }
}

Fingerprint LoadCall(Cell& from) {
  uint64_t words[kCallWords];
  auto* source = reinterpret_cast<uint64_t*>(&from.call);
  for (size_t i = 0; i < kCallWords; ++i) {
    words[i] =
        std::atomic_ref<uint64_t>(source[i]).load(std::memory_order_relaxed);
  }
  Fingerprint call;
  std::memcpy(&call, words, sizeof(call));
  return call;
}

bool SameCall(const Fingerprint& a, const Fingerprint& b) {
  const TensorCall& s = a.tensor;
  const TensorCall& t = b.tensor;
  return a.operation == b.operation && a.bytes == b.bytes &&
         a.number == b.number && a.what_hash == b.what_hash &&
         a.direct == b.direct && s.set.stride == t.set.stride &&
         s.set.count == t.set.count && s.root == t.root && s.dtype == t.dtype &&
         s.recv_dtype == t.recv_dtype && s.add == t.add;
}

}  // namespace

Group::Group(ControlBlock* block, int rank, int world_size,
             std::unique_ptr<Liveness> liveness)
    : block_(block),
      rank_(rank),
      world_size_(world_size),
      liveness_(std::move(liveness)),
      spins_(SpinsFor(world_size)) {}

State Group::state() const {
  return State::Unpack(block_->state.load(std::memory_order_seq_cst));
}

bool Group::failed() const { return state().failer >= 0; }

const std::byte* Group::payload(int rank) const {
  return slot(rank).cells[round_ & 1].payload;
}

Status Group::Begin(const Call& call, const void* send, size_t bytes,
                    const Deadline& deadline) {
  Fingerprint mine{};
  mine.operation = static_cast<uint32_t>(call.operation);
  mine.what_bytes = CopyText(call.what, mine.what);
  mine.what_hash = HashOf(call.what);
  mine.bytes = call.bytes;
  mine.number = calls_++;
  mine.tensor = call.tensor;
  mine.direct = call.direct ? 1 : 0;
  mine_ = mine;
  SHARD_RETURN_IF_ERROR(Round(call, send, bytes, deadline));
  return CompareCalls();
}

Status Group::Continue(const Call& call, const void* send, size_t bytes,
                       const Deadline& deadline) {
  return Round(call, send, bytes, deadline);
}

Status Group::Round(const Call& call, const void* send, size_t bytes,
                    const Deadline& deadline) {
  const State before = state();
  if (before.failer >= 0) return Sticky(before);
  ++round_;
  // This rank's cell of the new round is free: see control_block.h.
  Cell& cell = slot(rank_).cells[round_ & 1];
  StoreCall(mine_, &cell);
  if (bytes > 0) std::memcpy(cell.payload, send, bytes);
  // seq_cst here and in AllArrived: of two ranks that arrive last together,
  // at least one sees both.
  slot(rank_).arrived.store(round_, std::memory_order_seq_cst);
  return Wait(call, deadline);
}

Status Group::Wait(const Call& call, const Deadline& deadline) {
  int spins = spins_;
  for (;;) {
    // Before the checks, so that a change after them ends the sleep at once.
    const uint32_t event = block_->event.load(std::memory_order_seq_cst);
    State now = state();
    if (now.completed >= round_) return Status();
    if (now.failer >= 0) return Recorded(now);
    if (AllArrived()) {
      uint64_t expected = now.Pack();
      if (block_->state.compare_exchange_strong(expected,
                                                State{round_, -1}.Pack())) {
        Announce();
      }
      continue;
    }
    if (spins > 0) {
      --spins;
      CpuRelax();
      continue;
    }
    if (Status lost = FindLost(call); !lost.ok()) return FailRound(lost);
    if (deadline.Expired()) return FailRound(DescribeLate(call, deadline));
    block_->waiters.fetch_add(1, std::memory_order_seq_cst);
    FutexWait(&block_->event, event,
              std::min<std::chrono::nanoseconds>(
                  kSlice, deadline.Remaining() + std::chrono::microseconds(1)));
    block_->waiters.fetch_sub(1, std::memory_order_seq_cst);
  }
}

// Reads the same cells on every rank, so that every rank says the same.
Status Group::CompareCalls() {
  const Fingerprint first = LoadCall(slot(0).cells[round_ & 1]);
  for (int r = 0; r < world_size_; ++r) {
    const Fingerprint other = LoadCall(slot(r).cells[round_ & 1]);
    Status desync;
    if (!SameCall(first, other)) {
      desync =
          Desync(r, "the ranks called different things: rank 0 called ",
                 Format(first), ", rank ", r, " called ", Format(other),
                 " (collective ", first.number,
                 "); every rank must make the same calls in the same order");
    } else if (const RankSet& set = other.tensor.set;
               HasSet(other) &&
               (!set.Divides(world_size_) || set.IndexOf(r) < 0)) {
      desync = Desync(
          r, "rank ", r, " called ", Format(other), " (collective ",
          first.number, "), which is not its set of the ", world_size_,
          " ranks; every rank must be in one set, all of one stride and count");
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
    // First: what fails the group now is a later call's, for a peer that was
    // done sooner.
    if (end.Expired()) return Status();
    if (const State now = state(); now.failer >= 0) return Recorded(now);
    if (deadline.Expired()) {
      Fail(DeadlineExceeded("'", call.what, "': the simulated link takes ",
                            end.seconds(), " s, longer than the ",
                            deadline.seconds(), " s that this rank waits"));
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

bool Group::AllArrived() const {
  for (int r = 0; r < world_size_; ++r) {
    if (slot(r).arrived.load(std::memory_order_seq_cst) < round_) return false;
  }
  return true;
}

Status Group::FindLost(const Call& call) const {
  for (int r = 0; r < world_size_; ++r) {
    const auto absent = [&] {
      return slot(r).arrived.load(std::memory_order_acquire) < round_;
    };
    if (!absent()) continue;
    const bool left =
        slot(r).presence.load(std::memory_order_acquire) != kPresent;
    const bool dead = liveness_ != nullptr && liveness_->IsDead(r);
    // It may have arrived and then died: look again.
    if ((!left && !dead) || !absent()) continue;
    return RankLost(
        r, NameOf(r),
        left ? " left the group without Shutdown" : " died or was killed",
        " before it entered '", call.what, "'; ", LastCallOf(r));
  }
  return Status();
}

Status Group::DescribeLate(const Call& call, const Deadline& deadline) const {
  std::vector<int64_t> late;
  for (int r = 0; r < world_size_; ++r) {
    if (slot(r).arrived.load(std::memory_order_acquire) < round_) {
      late.push_back(r);
    }
  }
  if (late.empty()) return DeadlineExceeded("'", call.what, "' took too long");
  constexpr size_t kMost = 32;
  const size_t count = late.size();
  if (count > kMost) late.resize(kMost);
  return Status(
      StatusCode::kDeadlineExceeded,
      StrCat("'", call.what, "': ", count, " of ", world_size_,
             " ranks did not enter it within ", deadline.seconds(), " s: rank ",
             FormatList(late), count > kMost ? " and more; " : "; ",
             LastCallOf(static_cast<int>(late[0]))),
      static_cast<int>(late[0]));
}

Status Group::FailRound(const Status& error) {
  const std::lock_guard<std::mutex> lock(record_mutex_);
  State now = state();
  while (now.completed < round_ && now.failer < 0) {
    Record(error);
    uint64_t expected = now.Pack();
    if (block_->state.compare_exchange_strong(
            expected, State{now.completed, rank_}.Pack())) {
      Announce();
    }
    now = state();
  }
  return now.completed >= round_ ? Status() : Recorded(now);
}

void Group::Fail(const Status& error) {
  const std::lock_guard<std::mutex> lock(record_mutex_);
  State now = state();
  while (now.failer < 0) {
    Record(error);
    uint64_t expected = now.Pack();
    if (block_->state.compare_exchange_strong(
            expected, State{now.completed, rank_}.Pack())) {
      Announce();
      return;
    }
    now = State::Unpack(expected);
  }
}

void Group::Leave(Presence how) {
  slot(rank_).presence.store(how, std::memory_order_seq_cst);
  Announce();
}

void Group::Announce() {
  block_->event.fetch_add(1, std::memory_order_seq_cst);
  if (block_->waiters.load(std::memory_order_seq_cst) > 0) {
    FutexWakeAll(&block_->event);
  }
}

void Group::Record(const Status& error) {
  FailureRecord& record = slot(rank_).failure;
  record.code = static_cast<int32_t>(error.code());
  record.rank = error.rank();
  record.message_bytes = CopyText(error.message(), record.message);
}

Status Group::Recorded(const State& state) const {
  const FailureRecord& record = slot(state.failer).failure;
  return Status(static_cast<StatusCode>(record.code),
                std::string(TextOf(record.message, record.message_bytes)),
                record.rank);
}

Status Group::Sticky(const State& state) const {
  const Status first = Recorded(state);
  if (first.code() == StatusCode::kRankLost ||
      first.code() == StatusCode::kPoisoned) {
    return first;
  }
  return Status(StatusCode::kPoisoned,
                StrCat("an earlier error ended the group: ", first.ToString()),
                first.rank());
}

std::string Group::NameOf(int rank) const {
  return liveness_ != nullptr ? liveness_->Name(rank) : StrCat("rank ", rank);
}

// REQUIRES: `rank` has not arrived. Then it is one round behind, and its cell
// of that round stays as it is until this round is decided.
std::string Group::LastCallOf(int rank) const {
  if (round_ <= 1) return "it has entered no collective yet";
  return StrCat("the last it entered was ",
                Format(LoadCall(slot(rank).cells[(round_ - 1) & 1])));
}

}  // namespace shard::direct
