// SPDX-License-Identifier: Apache-2.0
//
// The entry points of the fake that end communicators, and that tell of them.

#include <string>

#include "tests/fake_nccl/entry.h"
#include "tests/fake_nccl/init.h"

namespace shard::testing::fake_nccl {

namespace {

bool HasWork(const Comm& comm) { return comm.ended < comm.begun; }

// Returns whether kernels of other communicators are on a device, where they
// end by themselves.
bool HasOtherWork(State* state, const Comm& comm) {
  const std::lock_guard<std::mutex> lock(state->records_mutex);
  for (const auto& [handle, it] : state->comms) {
    if (it->context != comm.context || it->is_stopped) continue;
    if (HasWork(*it)) return true;
  }
  return false;
}

// Waits for the kernels of this rank, and then for the other ranks.
Job FinalizeJob(const std::shared_ptr<Comm>& comm) {
  return [comm, begun = std::make_shared<bool>(false)]() {
    if (!*begun) {
      if (HasWork(*comm) || TheState()->IsDead(*comm)) {
        return Result::kInProgress;
      }
      *begun = true;
      comm->segment->Announce(++comm->rounds, comm->rank,
                              {RoundKind::kFinalize, {}});
      return Result::kInProgress;
    }
    if (AwaitRound(comm.get(), RoundKind::kFinalize).empty()) {
      return Result::kInProgress;
    }
    return Result::kSuccess;
  };
}

Result Destroy(Entry* entry) {
  const std::shared_ptr<Comm>& comm = entry->comm();
  if (entry->CheckReady() != Result::kSuccess) return entry->result();
  if (!comm->registrations.empty()) {
    entry->state()->Add(
        ViolationKind::kRegistered,
        comm->Describe() + " is destroyed with registered memory");
  }
  // NCCL waits as ncclCommFinalize does, but for no other rank.
  const Result waited = entry->WaitUntil(
      [&] { return !HasWork(*comm) || comm->ended_by != nullptr; });
  if (waited != Result::kSuccess || comm->ended_by != nullptr) {
    return entry->result();
  }
  Stop(comm.get());
  End(comm.get(), "ncclCommDestroy");
  return entry->Return(Result::kSuccess);
}

Result Tell(Entry* entry, int value, int* to) {
  if (entry->CheckReady() != Result::kSuccess) return entry->result();
  if (to == nullptr) return entry->Return(Result::kInvalidArgument);
  *to = value;
  return entry->Return(Result::kSuccess);
}

}  // namespace

Result ncclCommFinalize(Comm* comm) {
  SHARD_FAKE_NCCL_ENTER(ncclCommFinalize, comm);
  SHARD_FAKE_NCCL_READY();
  const std::shared_ptr<Comm>& it = entry.comm();
  entry.CheckContext(*it);
  if (it->is_finalized) {
    return entry.Fail(Result::kInvalidArgument,
                      "ncclCommFinalize is called again");
  }
  if (it->is_revoked) {
    return entry.Fail(Result::kInvalidUsage,
                      "ncclCommFinalize is called after ncclCommRevoke");
  }
  it->is_finalized = true;
  return entry.Begin(it, entry.options().polls.finalize, FinalizeJob(it));
}

Result ncclCommDestroy(Comm* comm) {
  if (comm == nullptr) return Result::kSuccess;
  SHARD_FAKE_NCCL_ENTER(ncclCommDestroy, comm);
  entry.CheckContext(*entry.comm());
  return Destroy(&entry);
}

Result ncclCommAbort(Comm* comm) {
  if (comm == nullptr) return Result::kSuccess;
  SHARD_FAKE_NCCL_ENTER(ncclCommAbort, comm);
  State* const state = entry.state();
  const std::shared_ptr<Comm>& it = entry.comm();
  Stop(it.get());
  const Result waited =
      entry.HangWhile([&] { return HasOtherWork(state, *it); });
  if (waited != Result::kSuccess) return waited;
  if (it->made_window != nullptr) *it->made_window = nullptr;
  End(it.get(), "ncclCommAbort");
  return entry.Return(Result::kSuccess);
}

Result ncclCommRevoke(Comm* comm, int flags) {
  SHARD_FAKE_NCCL_ENTER_SINCE(ncclCommRevoke, 22800, comm);
  if (flags != 0) return entry.Return(Result::kInvalidArgument);
  const std::shared_ptr<Comm>& it = entry.comm();
  Stop(it.get());
  it->is_revoked = true;
  it->held_launch = nullptr;
  it->async_error = Result::kSuccess;
  it->result = Result::kSuccess;
  return entry.Begin(it, entry.options().polls.finalize,
                     [] { return Result::kSuccess; });
}

Result ncclCommGetAsyncError(Comm* comm, Result* error) {
  SHARD_FAKE_NCCL_ENTER(ncclCommGetAsyncError, comm);
  if (error == nullptr) return entry.Return(Result::kInvalidArgument);
  *error = Advance(entry.comm().get());
  return entry.Return(Result::kSuccess);
}

Result ncclCommCount(const Comm* comm, int* count) {
  SHARD_FAKE_NCCL_ENTER(ncclCommCount, comm);
  return Tell(&entry, entry.comm()->size, count);
}

Result ncclCommCuDevice(const Comm* comm, int* device) {
  SHARD_FAKE_NCCL_ENTER(ncclCommCuDevice, comm);
  return Tell(&entry, entry.comm()->device, device);
}

Result ncclCommUserRank(const Comm* comm, int* rank) {
  SHARD_FAKE_NCCL_ENTER(ncclCommUserRank, comm);
  return Tell(&entry, entry.comm()->rank, rank);
}

const char* ncclGetErrorString(Result result) { return TextOf(result); }

const char* ncclGetLastError(const Comm* /*comm*/) {
  State* const state = TheState();
  // NCCL has one text for all threads, which a caller must not read while
  // another calls.
  thread_local std::string text;
  const std::lock_guard<std::mutex> lock(state->records_mutex);
  text = state->last_error;
  return text.c_str();
}

}  // namespace shard::testing::fake_nccl
