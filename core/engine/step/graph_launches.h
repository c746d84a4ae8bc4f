// SPDX-License-Identifier: Apache-2.0
//
// GraphLaunches: how often the graphs of an engine's captured step have begun,
// and how often they have ended, in two words of the host's memory to which the
// device writes. So the host knows how far a launch is, though it neither
// launches the graph nor may record an event in it.
//
// The engine expects a launch after each before_replay, and no other. One that
// nobody expected, a stray, has stepped with old values, and its collectives
// may wait for other ranks that never launch theirs. Launches of one engine are
// in the order of one stream: the next one begins after the end of the last.
//
// Copies are of the same launches. They may outlive the words, and then see
// none that runs. Thread-safe, but for the constructors and End.

#ifndef SHARD_CORE_ENGINE_STEP_GRAPH_LAUNCHES_H_
#define SHARD_CORE_ENGINE_STEP_GRAPH_LAUNCHES_H_

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/device/event.h"

namespace shard {

class GraphLaunches {
 public:
  static constexpr size_t kBegun = 0;
  static constexpr size_t kEnded = 1;
  static constexpr size_t kWords = 2;

  GraphLaunches() = default;
  // `words`: kWords, which outlive this until End.
  explicit GraphLaunches(uint32_t* words)
      : shared_(std::make_shared<Shared>(words)) {
    for (size_t i = 0; i < kWords; ++i) std::atomic_ref(words[i]).store(0);
  }
  // The words are used no more.
  void End() {
    // In a child of fork the mutex may be held for ever.
    if (shared_ == nullptr || ::getpid() != shared_->owner) return;
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->words = nullptr;
  }

  // Expects the next launch. REQUIRES: none that was expected runs.
  void Expect() {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->FindStray();
    shared_->expected = ++shared_->known;
  }
  // Does not expect it any more: if it comes it is a stray.
  void Forget() {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    if (!shared_->expected) return;
    if (!IsPast(shared_->Word(kBegun), *shared_->expected)) --shared_->known;
    shared_->expected.reset();
  }
  // Returns whether the launch that was expected last has ended, or is not
  // expected any more.
  bool ExpectedHasEnded() const {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    return !shared_->expected ||
           IsPast(shared_->Word(kEnded), *shared_->expected);
  }
  // Returns whether there was a stray since the last TakeStray. Only one that
  // has begun is known.
  bool HasStray() const {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->FindStray();
    return shared_->strayed;
  }
  bool TakeStray() {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->FindStray();
    return std::exchange(shared_->strayed, false);
  }
  // Makes the next TakeStray return true.
  void AddStray() {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->strayed = true;
  }

  // Returns the number of the launch that has begun last, from 1; 0: none.
  uint32_t Begun() const {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    return shared_->Word(kBegun);
  }
  // Returns whether launch `number`, which has begun, is one too many: a stray,
  // or one that a stray came before.
  bool IsTooMany(uint32_t number) const {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    return shared_->IsTooMany(number);
  }
  // Returns whether such a launch runs.
  bool OneTooManyRuns() const {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    const uint32_t begun = shared_->Word(kBegun);
    return begun != shared_->Word(kEnded) && shared_->IsTooMany(begun);
  }
  // Returns when launch `number` ends.
  Event EndOf(uint32_t number) const {
    return Event(std::make_shared<Ended>(shared_, number));
  }

 private:
  struct Shared {
    explicit Shared(uint32_t* at) : words(at) {}

    uint32_t Word(size_t word) const {
      return words == nullptr ? known : std::atomic_ref(words[word]).load();
    }
    void FindStray() {
      const uint32_t begun = Word(kBegun);
      if (begun == known || IsPast(known, begun)) return;
      known = begun;
      strayed = true;
    }
    bool IsTooMany(uint32_t number) {
      FindStray();
      // A launch that was expected has ended before the next one is.
      return strayed || number != expected;
    }

    const pid_t owner = ::getpid();
    std::mutex mutex;
    // GUARDED_BY(mutex), as all below.
    uint32_t* words;     // Null: they are gone.
    uint32_t known = 0;  // The last launch that was expected, or found.
    std::optional<uint32_t> expected;
    bool strayed = false;
  };

  class Ended final : public EventState {
   public:
    Ended(std::shared_ptr<Shared> shared, uint32_t number)
        : shared_(std::move(shared)), number_(number) {}
    bool IsDone() const override {
      const std::lock_guard<std::mutex> lock(shared_->mutex);
      return shared_->words == nullptr ||
             IsPast(shared_->Word(kEnded), number_);
    }
    Status Synchronize(const Deadline&) const override {
      if (IsDone()) return Status();
      return Internal("the end of a launch is polled, and not waited for");
    }

   private:
    const std::shared_ptr<Shared> shared_;
    const uint32_t number_;
  };

  // Returns whether a count has come to `number`. Counts begin again at 0 after
  // 2^32 launches.
  static bool IsPast(uint32_t count, uint32_t number) {
    return static_cast<int32_t>(count - number) >= 0;
  }

  std::shared_ptr<Shared> shared_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_GRAPH_LAUNCHES_H_
