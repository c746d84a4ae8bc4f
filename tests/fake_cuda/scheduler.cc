// SPDX-License-Identifier: Apache-2.0

#include "tests/fake_cuda/scheduler.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace shard::testing::fake_cuda {

namespace {

// The pauses between attempts of operations that wait while nothing moves here:
// other processes, and the host's threads, cannot notify this one. Each is
// twice as long as the one before, so that ranks which wait long leave the
// cores to the one that they wait for.
constexpr std::chrono::microseconds kShortestPause(50);
constexpr std::chrono::microseconds kLongestPause(1000);

}  // namespace

Scheduler::Scheduler(std::mutex* mutex, std::function<void(bool)> opened)
    : mutex_(mutex), opened_(std::move(opened)), pause_(kShortestPause) {}

void Scheduler::Reset(const Options& options,
                      std::unique_lock<std::mutex>* lock) {
  Drop();
  AwaitRunning(lock);
  streams_.clear();
  retired_.clear();
  host_ = Clock();
  next_id_ = Clock::kHost + 1;
  pause_at_.reset();
  is_lazy_ = options.lazy;
  max_delay_ = options.max_delay;
  random_.seed(options.seed);
  num_run_ = 0;
  lose_at_ = 0;
  lost_ = nullptr;
}

std::shared_ptr<Stream> Scheduler::AddStream(uint64_t context, int device,
                                             bool legacy, bool blocking) {
  const auto stream = std::make_shared<Stream>();
  stream->id = NextId();
  stream->context = context;
  stream->device = device;
  stream->is_legacy = legacy;
  stream->is_blocking = blocking;
  streams_.push_back(stream);
  return stream;
}

size_t Scheduler::NextId() {
  const auto known =
      std::find_if(retired_.begin(), retired_.end(), [&](const auto& it) {
        return it->last == nullptr || host_.Has(it->id, it->last->actor.number);
      });
  if (known == retired_.end()) return next_id_++;
  const size_t id = (*known)->id;
  retired_.erase(known);
  return id;
}

void Scheduler::Destroy(Stream* stream) {
  stream->is_destroyed = true;
  if (stream->is_blocking && stream->last != nullptr) {
    for (const auto& it : streams_) {
      if (it->is_legacy && it->context == stream->context) {
        it->destroyed.push_back(stream->last);
      }
    }
  }
  RemoveDestroyed();
}

void Scheduler::RemoveDestroyed() {
  const auto ended = std::stable_partition(
      streams_.begin(), streams_.end(), [this](const auto& it) {
        return !it->is_destroyed || !it->pending.empty() || it == running_;
      });
  retired_.insert(retired_.end(), ended, streams_.end());
  streams_.erase(ended, streams_.end());
}

std::shared_ptr<Operation> Scheduler::Enqueue(
    Stream* stream, const std::string& name, std::function<void()> run,
    const std::shared_ptr<Operation>& awaited) {
  const auto made = std::make_shared<Operation>();
  const auto run_after = [&](const std::shared_ptr<Operation>& it) {
    if (it == nullptr) return;
    stream->clock.Join(it->clock);
    if (!it->is_done) made->after.push_back(it);
  };
  stream->clock.Join(host_);
  run_after(awaited);
  for (const auto& it : stream->destroyed) run_after(it);
  stream->destroyed.clear();
  for (const auto& it : streams_) {
    if (it->context != stream->context || it->is_destroyed) continue;
    if (stream->is_legacy ? it->is_blocking
                          : stream->is_blocking && it->is_legacy) {
      run_after(it->last);
    }
  }
  made->actor.stream = stream->id;
  made->actor.number = stream->clock.Tick(stream->id);
  made->actor.name =
      name + " (no. " + std::to_string(made->actor.number) + " on " +
      (stream->is_legacy ? std::string("the legacy stream")
                         : "stream " + std::to_string(stream->id)) +
      " of device " + std::to_string(stream->device) + ")";
  made->clock = stream->clock;
  made->run = std::move(run);
  stream->last = made;
  stream->pending.push_back(made);
  if (!is_started_) {
    is_started_ = true;
    std::thread([this] { Loop(); }).detach();
  }
  // Where something else comes first, its end finds this operation.
  const bool is_first = stream->pending.size() == 1 && made->after.empty();
  if (is_first && !is_lazy_ && !is_paused()) work_.notify_one();
  return made;
}

Actor Scheduler::HostActor(const std::string& name) {
  return {name + " (by the host)", Clock::kHost, host_.Tick(Clock::kHost)};
}

void Scheduler::Need(const std::shared_ptr<Operation>& operation) {
  if (!is_lazy_) return;
  std::vector<std::shared_ptr<Operation>> open = {operation};
  while (!open.empty()) {
    const auto last = std::move(open.back());
    open.pop_back();
    const auto found = std::find_if(
        streams_.begin(), streams_.end(),
        [&](const auto& it) { return it->id == last->actor.stream; });
    if (found == streams_.end()) continue;
    const auto& pending = (*found)->pending;
    // Numbers of a stream follow one another.
    if (pending.empty() || last->actor.number < pending.front()->actor.number) {
      continue;
    }
    // Operations before one that is needed are needed, too.
    for (size_t i = last->actor.number - pending.front()->actor.number + 1;
         i-- > 0 && !pending[i]->is_needed;) {
      pending[i]->is_needed = true;
      open.insert(open.end(), pending[i]->after.begin(),
                  pending[i]->after.end());
    }
  }
  work_.notify_one();
}

void Scheduler::Drain(uint64_t context, std::unique_lock<std::mutex>* lock) {
  std::vector<std::shared_ptr<Operation>> awaited;
  const auto add = [&](const Stream& stream) {
    if (context != 0 && stream.context != context) return;
    if (stream.last == nullptr || stream.last->is_done) return;
    awaited.push_back(stream.last);
    Need(stream.last);
  };
  for (const auto& it : streams_) add(*it);
  const uint64_t drops = num_drops_;
  for (const auto& it : awaited) {
    it->ended.wait(*lock, [&] { return it->is_done; });
  }
  // What was dropped counts as done while work before it still runs.
  if (num_drops_ != drops) AwaitRunning(lock);
}

void Scheduler::Await(const std::shared_ptr<Operation>& operation,
                      std::unique_lock<std::mutex>* lock) {
  Need(operation);
  const uint64_t drops = num_drops_;
  operation->ended.wait(*lock, [&] { return operation->is_done; });
  if (num_drops_ == drops) {
    TellHost(*operation);
  } else {
    AwaitRunning(lock);
  }
}

void Scheduler::AwaitShortly(Operation* operation,
                             std::unique_lock<std::mutex>* lock) {
  constexpr std::chrono::milliseconds kMoment(1);
  if (is_paused() || (is_lazy_ && !operation->is_needed)) return;
  operation->ended.wait_for(*lock, kMoment,
                            [operation] { return operation->is_done; });
}

void Scheduler::Drop() {
  ++num_drops_;
  for (const auto& it : streams_) {
    for (const auto& operation : it->pending) End(operation.get());
    it->is_waiting = false;
    it->pending.clear();
  }
}

void Scheduler::End(Operation* operation) {
  operation->is_done = true;
  operation->end = std::chrono::steady_clock::now();
  operation->after.clear();
  operation->run = nullptr;
  operation->attempt = nullptr;
  operation->ended.notify_all();
}

void Scheduler::AwaitRunning(std::unique_lock<std::mutex>* lock) {
  idle_.wait(*lock, [this] { return running_ == nullptr; });
}

void Scheduler::PauseAfter(uint64_t operations) {
  pause_at_ = num_run_ + operations;
}

void Scheduler::Resume() {
  pause_at_.reset();
  work_.notify_one();
}

size_t Scheduler::num_pending() const {
  size_t sum = running_ == nullptr ? 0 : 1;
  for (const auto& it : streams_) sum += it->pending.size();
  return sum;
}

bool Scheduler::CanRun(const Stream& stream) const {
  if (stream.pending.empty()) return false;
  const Operation& next = *stream.pending.front();
  if (is_lazy_ && !next.is_needed) return false;
  return std::all_of(next.after.begin(), next.after.end(),
                     [](const auto& it) { return it->is_done; });
}

Stream* Scheduler::Choose() {
  if (is_paused()) return nullptr;
  std::vector<Stream*> able;
  for (const auto& it : streams_) {
    if (!it->is_waiting && CanRun(*it)) able.push_back(it.get());
  }
  return able.empty() ? nullptr : able[random_() % able.size()];
}

void Scheduler::NeedAttempts() {
  std::vector<std::shared_ptr<Operation>> needed;
  for (const auto& it : streams_) {
    const auto last = std::find_if(
        it->pending.rbegin(), it->pending.rend(),
        [](const auto& operation) { return operation->attempt != nullptr; });
    if (last != it->pending.rend()) needed.push_back(*last);
  }
  for (const auto& it : needed) Need(it);
}

void Scheduler::NoteProgress() {
  for (const auto& it : streams_) it->is_waiting = false;
  poll_at_.reset();
  pause_ = kShortestPause;
}

void Scheduler::AwaitWork(std::unique_lock<std::mutex>* lock) {
  const auto waits = [](const auto& it) { return it->is_waiting; };
  if (is_paused() || std::none_of(streams_.begin(), streams_.end(), waits)) {
    work_.wait(*lock);
    return;
  }
  if (is_lazy_) NeedAttempts();
  if (!poll_at_) poll_at_ = std::chrono::steady_clock::now() + pause_;
  if (work_.wait_until(*lock, *poll_at_) == std::cv_status::no_timeout) return;
  const auto next = std::min(2 * pause_, kLongestPause);
  NoteProgress();
  pause_ = next;
}

bool Scheduler::Run(Operation* operation, std::unique_lock<std::mutex>* lock) {
  Progress progress = Progress::kDone;
  const uint64_t drops = num_drops_;
  opened_(true);
  if (operation->attempt != nullptr) {
    const auto attempt = operation->attempt;
    lock->unlock();
    progress = attempt();
    lock->lock();
  } else if (operation->run != nullptr) {
    lock->unlock();
    operation->run();
    lock->lock();
  }
  opened_(false);
  if (progress == Progress::kWaits) {
    running_->is_waiting = true;
  } else {
    NoteProgress();
  }
  return progress == Progress::kDone || num_drops_ != drops;
}

void Scheduler::PutBack(std::shared_ptr<Operation> operation) {
  running_->pending.push_front(std::move(operation));
  running_ = nullptr;
  idle_.notify_all();
}

void Scheduler::Loop() {
  std::unique_lock<std::mutex> lock(*mutex_);
  for (;;) {
    Stream* const chosen = Choose();
    if (chosen == nullptr) {
      AwaitWork(&lock);
      continue;
    }
    running_ =
        *std::find_if(streams_.begin(), streams_.end(),
                      [&](const auto& it) { return it.get() == chosen; });
    auto operation = std::move(chosen->pending.front());
    chosen->pending.pop_front();
    const std::chrono::microseconds delay(
        max_delay_.count() == 0
            ? 0
            : random_() % static_cast<uint64_t>(max_delay_.count() + 1));
    const uint64_t drops = num_drops_;
    if (std::exchange(operation->is_begun, true)) {
      // It has had its delay.
    } else if (++num_run_ == lose_at_) {
      lost_();
    } else if (delay.count() != 0) {
      lock.unlock();
      std::this_thread::sleep_for(delay);
      lock.lock();
    }
    if (num_drops_ == drops && !Run(operation.get(), &lock)) {
      PutBack(std::move(operation));
      continue;
    }
    End(operation.get());
    running_ = nullptr;
    RemoveDestroyed();
    idle_.notify_all();
  }
}

}  // namespace shard::testing::fake_cuda
