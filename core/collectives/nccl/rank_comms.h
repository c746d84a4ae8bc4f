// SPDX-License-Identifier: Apache-2.0
//
// RankComms: the communicators of NCCL that one rank has, one for each of its
// sets of ranks.
//
// They never block: a call that is in progress is waited for with a check of
// the caller's, which ends the wait. NCCL promises nothing for two threads in
// one communicator, so each communicator has a lock, under which all calls on
// it are made, and which is not held between the polls of a wait. A group of
// calls is of one communicator, and its lock is held until the group's end. A
// thread holds one of these locks at a time.
//
// A call that blocks inside NCCL all the same holds the lock of its
// communicator, and cannot be ended. Calls on the others go on, and those on
// the same one end as their checks say. An abort takes the communicator away
// under the lock, and aborts it without: nobody waits for an abort that hangs.
//
// Memory is registered with them so that NCCL moves it without copies of its
// own, and by NVLink's multicast. NCCL wants the buffers of a call to be
// registered on all ranks or on none (registration.h).
//
// Thread-safe, but for the destructor. In a child of fork they may be
// destroyed, and nothing else.

#ifndef SHARD_CORE_COLLECTIVES_NCCL_RANK_COMMS_H_
#define SHARD_CORE_COLLECTIVES_NCCL_RANK_COMMS_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/collectives/nccl/library.h"
#include "core/collectives/nccl/nccl_api.h"
#include "core/collectives/nccl/rank_memory.h"
#include "core/comm/communicator.h"
#include "core/comm/notices.h"
#include "core/comm/rank_set.h"
#include "core/device/cuda/context.h"
#include "core/observe/observer.h"

namespace shard::nccl {

class RankComms {
 public:
  // Returns why a wait is to end; OK: it goes on.
  using Check = std::function<Status()>;
  // The call of NCCL that a thread makes, from before it until it returns; else
  // null.
  using Calling = std::atomic<const char*>;
  // Calls of NCCL on a communicator.
  using Calls = std::function<NcclResult(const NcclApi& api, NcclComm comm)>;

  // Makes communicators of all ranks of `control` and of `sets`, those of this
  // rank. COLLECTIVE. `library` is kept open for good. `notices`, of which none
  // is posted yet, tell the ranks that one of them has failed, and end with its
  // error. Errors: NCCL's, on the rank that has it; those of the family.
  static StatusOr<std::unique_ptr<RankComms>> Open(
      Communicator* control, std::shared_ptr<Notices> notices,
      std::shared_ptr<cuda::Context> context, NcclLibrary library,
      std::span<const RankSet> sets, const Deadline& deadline);
  // Ends the communicators. What was enqueued on them must have run, or been
  // aborted. Waits for the other ranks to do the same, for 2 s at most, but not
  // for those of a family that has ended. Memory that is registered with a
  // communicator that did not end is kept for good: NCCL may still write there.
  ~RankComms();
  RankComms(const RankComms&) = delete;
  RankComms& operator=(const RankComms&) = delete;

  const NcclLibrary& library() const { return state_->library; }
  const cuda::Context& context() const { return *state_->context; }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  // Makes `calls`, in one group, on the communicator of a set, and waits until
  // NCCL has enqueued them. `what` names them in errors. `calling`: is set
  // while a call of NCCL has not returned, one of CallOn that holds the
  // communicator too, or null. REQUIRES: the context is current; the set was
  // opened.
  Status Enqueue(std::string_view what, const RankSet& set, const Calls& calls,
                 const Check& check, Calling* calling = nullptr);

  // Returns an error that a communicator has met on the device or in the
  // network. Does not wait for calls that other threads make, but passes their
  // communicators over.
  Status AsyncError();

  // Memory of ncclMemAlloc.
  using Allocated = RankMemory::Allocated;
  // Allocates memory, and registers it with all communicators. It is not
  // cleared. Errors: NCCL's; kResourceExhausted where there is no memory for
  // either, which names `what` the memory is for. REQUIRES:
  // NcclApi::HasRegistration().
  StatusOr<Allocated> Allocate(std::string_view what, size_t bytes,
                               const Check& check);
  // Registers memory of Allocate as a window with the communicator of a number,
  // until it is freed or its windows are closed. COLLECTIVE for the ranks of
  // the communicator. Returns the window; null: NCCL has none. After an error
  // the other ranks may wait in NCCL, and the communicator is of no use any
  // more. REQUIRES: NcclApi::HasWindows(); the same size on all ranks.
  StatusOr<NcclWindow> OpenWindow(size_t comm, std::byte* memory,
                                  const Check& check);
  // Ends all windows of an allocation.
  Status CloseWindows(std::byte* memory, const Check& check);
  // Returns the window of all ranks, or null.
  NcclWindow FindWindow(std::byte* memory) const {
    return memory_.FindWindow(memory);
  }
  // Deregisters memory that no work uses any more, and frees it. Where the
  // communicators were aborted, or do not deregister it, it is freed with them.
  // In a child of fork it does nothing.
  void Free(std::byte* memory) noexcept;
  // Logs to `observer`, until another one is set, or null, that memory is not
  // freed: the first time alone. In a child of fork it does nothing.
  void SetObserver(Observer* observer);
  // Returns the bytes of Allocate that are not freed yet.
  size_t registered_bytes() const { return memory_.bytes(); }
  // Returns those of them that are in windows.
  size_t window_bytes() const { return memory_.window_bytes(); }

  // Makes a call that is never in progress on the communicator of a number,
  // once that is at no other call. While it has not returned, an error of a
  // wait for the communicator names it and this rank.
  Status CallOn(size_t comm, const char* call,
                const std::function<NcclResult(NcclComm comm)>& make,
                const Check& check);
  size_t num_comms() const { return state_->comms.size(); }
  const RankSet& set(size_t comm) const { return state_->comms[comm]->set; }
  // Returns whether only what ends communicators is called any more.
  bool has_ended() const { return state_->ended; }

  // Ends all that the communicators do on the device, and the communicators.
  // Returns whether they have ended: not where NCCL has an error, here or in an
  // abort before, or another thread's abort goes on; nor, with the context
  // abandoned, within `seconds`, or where memory runs out. Any later call on
  // them is kCancelled.
  static constexpr double kAbortSeconds = 10;
  bool Abort(double seconds = kAbortSeconds) noexcept;

 private:
  struct Opened {
    RankSet set;
    // Until then NCCL may write the handle. Constant once all are opened.
    bool is_made = false;
    std::mutex mutex;           // Held during each call on `comm`.
    NcclComm comm = nullptr;    // GUARDED_BY(mutex); null once it has ended.
    Calling calling = nullptr;  // Of CallOn.
    // Its abort has not ended it, or not yet. GUARDED_BY(mutex)
    bool is_left = false;
  };
  // The first is that of all ranks.
  using Comms = std::vector<std::unique_ptr<Opened>>;
  // Shared with an abort that does not end.
  struct State {
    State(std::shared_ptr<cuda::Context> of, NcclLibrary nccl)
        : context(std::move(of)), library(std::move(nccl)) {}
    // Aborts all communicators, at once. REQUIRES: `ended`.
    Status AbortAll();
    Status AbortOne(Opened* opened) const;
    // Returns whether all communicators have ended.
    bool AllHaveEnded() const;

    const std::shared_ptr<cuda::Context> context;
    const NcclLibrary library;
    Comms comms;  // Constant once all are opened.
    // Only what ends communicators is called from here on. Set before a handle
    // is taken away, so that whoever holds a lock and does not see it has one.
    std::atomic<bool> ended = false;
    // Memory that NCCL may write until the communicators have ended.
    std::shared_ptr<void> slots;
  };

  RankComms(std::shared_ptr<cuda::Context> context, NcclLibrary library,
            int rank, int world_size);

  Status OpenAll(const NcclId& id, std::span<const RankSet> sets,
                 const Check& check);
  Status Init(const NcclId& id, const RankSet& all, const Check& check);
  Status Split(const RankSet& set, const Check& check);
  // Takes the lock of a communicator, which a call that blocks may hold.
  // `calling`: is set meanwhile to such a call of CallOn, or null. Errors: the
  // check's, which then names it; kCancelled after the end.
  Status Lock(std::string_view call, const Opened& opened, const Check& check,
              std::unique_lock<std::mutex>* lock, Calling* calling = nullptr);
  // Waits until a call that gave `result` is no longer in progress. `lock`: of
  // the communicator, held but between polls, and maybe not after an error.
  Status Await(std::string_view call, NcclResult result, const Opened& opened,
               const Check& check, std::unique_lock<std::mutex>* lock);
  void LogUnfreed(const Status& why) noexcept;
  // Ends the communicators without an abort. Returns false where that takes too
  // long.
  bool Finalize() noexcept;
  Opened* Find(const RankSet& set) const;
  // As NcclLibrary's, with this rank: all ranks get the error.
  Status ToStatus(NcclResult result, std::string_view call,
                  NcclComm comm) const;

  const std::shared_ptr<State> state_;
  std::shared_ptr<const Notices> notices_;
  const NcclApi& api_ = state_->library.api;
  const int rank_;
  const int world_size_;
  const pid_t owner_;
  bool is_opened_ = false;  // All communicators, on this rank.
  // Held while the host's log function runs, so that the observer lives; that
  // function may come back here, since nothing is logged twice.
  std::mutex observer_mutex_;
  Observer* observer_ = nullptr;  // GUARDED_BY(observer_mutex_)
  std::atomic<bool> has_logged_unfreed_ = false;
  RankMemory memory_;
};

}  // namespace shard::nccl

#endif  // SHARD_CORE_COLLECTIVES_NCCL_RANK_COMMS_H_
