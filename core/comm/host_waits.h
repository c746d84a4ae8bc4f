// SPDX-License-Identifier: Apache-2.0
//
// HostWaits: tells the peers of a rank where its host waits.
//
// A host makes one call at a time on a communicator and its duplicates: to the
// host, a communicator and the engines on it are one handle (shard/base.h). A
// call that waits in one of them therefore keeps the host from the calls for
// which peers wait in another one, and ranks that wait for each other so wait
// for ever. Peers can tell when each rank publishes three things per
// communicator: whether its host waits in it, how much work the library's own
// threads have to do on it, for they enter collectives while the host waits
// elsewhere, and which work the host waits for.
//
// Only the thread of a host's call publishes; threads of the library and
// programs that use communicators without a HostCall do not, and no wait is
// ever blamed on them.
//
// A host that waits for a save in the background (shard_save_wait, or before
// the next save or load) publishes nothing, for that wait is in no deadlock:
// the ranks have begun the save together, and its threads, on a communicator of
// their own, end it whatever calls the hosts make.
//
// Publishing a wait takes some plain stores.

#ifndef SHARD_CORE_COMM_HOST_WAITS_H_
#define SHARD_CORE_COMM_HOST_WAITS_H_

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace shard {

// The wait of one rank in one communicator, in memory that its peers read.
// Zero at birth; holds no pointers. One thread at a time writes each word, with
// release order: a peer that has read a word finds all that was published
// before it.
struct HostWait {
  static constexpr size_t kCallWords = 8;

  // Odd while the host waits in the communicator. Grows with each change, so
  // that a wait which ended, and another one, never look like the first.
  std::atomic<uint64_t> number;
  // The number of the work for whose end the host waits; 0: the host's thread
  // is in a collective itself.
  std::atomic<uint64_t> until;
  // The host's call, padded with zeros. Valid while `number` stays.
  std::atomic<uint64_t> call[kCallWords];
  // The work on this communicator that threads of the library were given, and
  // that they have done.
  std::atomic<uint64_t> given;
  std::atomic<uint64_t> done;

  // Returns the name of the host's call.
  std::string Call() const;
};

// The call that the host of a rank is in; one for a communicator and its
// duplicates.
class HostCall {
 public:
  // The time of a call. `call` may be null; `name` must outlive the scope.
  class Scope {
   public:
    Scope(HostCall* call, const char* name) : call_(call) {
      if (call_ != nullptr) call_->Begin(name);
    }
    ~Scope() {
      if (call_ != nullptr) call_->End();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    HostCall* const call_;
  };

  // Returns the name of the call if this thread makes it, else null.
  const char* OfThisThread() const;

 private:
  void Begin(const char* name);
  void End();

  std::atomic<const char*> name_{nullptr};
  std::atomic<pthread_t> thread_{};
};

// The waits of one rank in one communicator.
class HostWaits {
 public:
  // `shared` is used until all work was finished, or its stream is gone.
  HostWaits(HostWait* shared, std::shared_ptr<HostCall> call)
      : shared_(shared), call_(std::move(call)) {}

  HostCall& call() { return *call_; }
  const std::shared_ptr<HostCall>& family_call() const { return call_; }
  // Returns the words that peers read; for tests.
  const HostWait& shared() const { return *shared_; }

  // Counts work that a thread of the library is about to be given, and returns
  // its number, from 1. The work is done in the order of these calls.
  uint64_t AddWork() { return Increment(&shared_->given); }
  // Called at the end of the work, before anyone who waits for it is woken.
  void FinishWork() { Increment(&shared_->done); }

  // Publishes a wait, from Begin to the end of the scope.
  class Scope {
   public:
    explicit Scope(HostWaits* waits) : waits_(waits) {}
    ~Scope() {
      if (begun_) waits_->End();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    // Publishes that the host waits in a collective, or for work `until`. Does
    // nothing a second time, and on a thread that is in no call of the host.
    void Begin(uint64_t until = 0) {
      if (!begun_) begun_ = waits_->Begin(until);
    }

   private:
    HostWaits* const waits_;
    bool begun_ = false;
  };

 private:
  // Returns the new value. REQUIRES: no other thread writes the word meanwhile.
  static uint64_t Increment(std::atomic<uint64_t>* word) {
    const uint64_t value = word->load(std::memory_order_relaxed) + 1;
    word->store(value, std::memory_order_release);
    return value;
  }

  bool Begin(uint64_t until);
  void End() { Increment(&shared_->number); }

  HostWait* const shared_;
  const std::shared_ptr<HostCall> call_;
};

}  // namespace shard

#endif  // SHARD_CORE_COMM_HOST_WAITS_H_
