// SPDX-License-Identifier: Apache-2.0
//
// ReplayMarks: two words in memory of the host, of which a graph takes one away
// where its collectives begin, and the other where it ends. So the host knows
// how far a replay is, though it neither launches the graph nor may record an
// event in it.
//
// A third word tells of a launch that nothing was set for: before its steps the
// graph copies there what the mark of its end is. A launch that has its marks
// leaves 1 and takes the marks away, so that another one, or one that came
// without them, leaves 0.
//
// Events of a replay may outlive the marks, and are then done. Thread-safe, but
// for the constructors and the destructor.

#ifndef SHARD_CORE_ENGINE_STEP_REPLAY_MARKS_H_
#define SHARD_CORE_ENGINE_STEP_REPLAY_MARKS_H_

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/device/event.h"

namespace shard {

class ReplayMarks {
 public:
  enum class Mark { kBegin, kEnd };
  static constexpr size_t kMarks = 2;
  // Behind the marks: what the last launch has found.
  static constexpr size_t kFound = kMarks;
  static constexpr size_t kWords = kMarks + 1;

  ReplayMarks() = default;
  // `words`: kWords, which outlive this.
  explicit ReplayMarks(uint32_t* words)
      : shared_(std::make_shared<Shared>(words)), owner_(::getpid()) {
    for (size_t i = 0; i < kMarks; ++i) std::atomic_ref(words[i]).store(0);
    std::atomic_ref(words[kFound]).store(1);
  }
  ReplayMarks(ReplayMarks&&) = default;
  ReplayMarks& operator=(ReplayMarks&&) = default;
  ~ReplayMarks() {
    // In a child of fork the mutex may be held for ever.
    if (shared_ != nullptr && ::getpid() == owner_) shared_->End();
  }

  // Sets both marks for the next replay. REQUIRES: no replay is on its way.
  void Set() { shared_->Set(1); }
  // Takes both away: the replay does not come. Its events are done.
  void Clear() { shared_->Set(0); }
  // Returns whether the last replay has ended, or does not come.
  bool HasEnded() const { return shared_->IsPast(Mark::kEnd, nullptr); }
  // Returns whether the last launch that has begun had no marks, and forgets
  // it.
  bool TakeStray() const { return shared_->TakeStray(); }
  // Returns when the last replay passes a mark.
  Event EventOf(Mark mark) const {
    return Event(std::make_shared<Passed>(shared_, mark));
  }

 private:
  struct Shared {
    explicit Shared(uint32_t* at) : words(at) {}

    void Set(uint32_t value) {
      const std::lock_guard<std::mutex> lock(mutex);
      ++number;
      for (size_t i = 0; i < kMarks; ++i) {
        std::atomic_ref(words[i]).store(value);
      }
    }
    void End() {
      const std::lock_guard<std::mutex> lock(mutex);
      words = nullptr;
    }
    uint64_t Number() {
      const std::lock_guard<std::mutex> lock(mutex);
      return number;
    }
    bool TakeStray() {
      const std::lock_guard<std::mutex> lock(mutex);
      return words != nullptr &&
             std::atomic_ref(words[kFound]).exchange(1) == 0;
    }
    // `of`: the replay; null: the last one.
    bool IsPast(Mark mark, const uint64_t* of) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (words == nullptr || (of != nullptr && *of != number)) return true;
      return std::atomic_ref(words[static_cast<size_t>(mark)]).load() == 0;
    }

    std::mutex mutex;
    uint32_t* words;      // GUARDED_BY(mutex); null: they are gone.
    uint64_t number = 0;  // GUARDED_BY(mutex); of the last replay.
  };

  class Passed final : public EventState {
   public:
    Passed(std::shared_ptr<Shared> shared, Mark mark)
        : shared_(std::move(shared)), mark_(mark), number_(shared_->Number()) {}
    bool IsDone() const override { return shared_->IsPast(mark_, &number_); }
    Status Synchronize(const Deadline&) const override {
      if (IsDone()) return Status();
      return Internal("a mark of a replay is polled, and not waited for");
    }

   private:
    const std::shared_ptr<Shared> shared_;
    const Mark mark_;
    const uint64_t number_;
  };

  std::shared_ptr<Shared> shared_;
  pid_t owner_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_REPLAY_MARKS_H_
