// SPDX-License-Identifier: Apache-2.0

#include "core/observe/trace.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/out_of_memory.h"
#include "core/observe/text_line.h"

namespace shard {

Trace::Trace(std::string path, int rank, int world_size)
    : path_(std::move(path)),
      rank_(rank),
      filling_(std::make_unique<char[]>(kBytes)),
      writing_(std::make_unique<char[]>(kBytes)) {
  TextLine name;
  name << ",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":" << rank
       << ",\"args\":{\"name\":\"rank " << rank << " of " << world_size
       << ", process " << ::getpid() << "\"}}";
  Append(name.view());
  TextLine order;
  order << ",\n{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":" << rank
        << ",\"args\":{\"sort_index\":" << rank << "}}";
  Append(order.view());
}

Status Trace::Start(int* number) {
  // Without a trace of rank 0 there is no number to join by.
  SHARD_ASSIGN_OR_RETURN(TraceFile file,
                         rank_ == 0
                             ? TraceFile::Begin(path_)
                             : TraceFile::Join(path_, std::max(*number, 1)));
  *number = file.number();
  file_.emplace(std::move(file));
  started_ = true;
  return Status();
}

pid_t Trace::NumberOfStream(const void* stream) {
  // Streams lie apart, and their addresses are those of one process.
  return kFirstStream +
         static_cast<pid_t>(reinterpret_cast<uintptr_t>(stream) / 16 %
                            static_cast<uintptr_t>(kFirstStream));
}

bool Trace::Append(std::string_view line) {
  const size_t used = used_.load(std::memory_order_relaxed);
  if (line.size() > kBytes - used) return false;
  std::memcpy(filling_.get() + used, line.data(), line.size());
  used_.store(used + line.size(), std::memory_order_relaxed);
  return true;
}

pid_t Trace::NumberOf(const DeviceTrack& track) {
  const pthread_t self = ::pthread_self();
  const bool is_thread = track.stream == nullptr;
  for (size_t t = 0; t < num_threads_; ++t) {
    const Thread& known = threads_[t];
    if (known.stream == track.stream &&
        (!is_thread || ::pthread_equal(known.handle, self))) {
      return known.number;
    }
  }
  const pid_t number = is_thread ? ::gettid() : NumberOfStream(track.stream);
  if (num_threads_ == kMostThreads) return number;
  threads_[num_threads_++] = {self, track.stream, number};
  char thread_name[16] = "";
  ::pthread_getname_np(self, thread_name, sizeof(thread_name));
  const std::string_view name = is_thread ? thread_name : track.name;
  TextLine line;
  line << ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":" << rank_
       << ",\"tid\":" << number << ",\"args\":{\"name\":";
  line.AppendQuoted(name) << "}}";
  Append(line.view());
  return number;
}

void Trace::Add(EventId event, const EventArguments& arguments, int64_t begin,
                int64_t end, std::string_view error, const DeviceTrack& track) {
  if (failed_.load(std::memory_order_relaxed)) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const EventType& type = TypeOf(event);
  const std::lock_guard<std::mutex> lock(mutex_);
  TextLine line;
  line << ",\n{\"name\":\"" << type.name << "\",\"cat\":\"" << type.category
       << "\",\"ph\":" << (begin == end ? "\"i\",\"s\":\"t\"" : "\"X\"")
       << ",\"pid\":" << rank_ << ",\"tid\":" << NumberOf(track) << ",\"ts\":";
  line.AppendFixed(begin, 3);
  if (begin != end) (line << ",\"dur\":").AppendFixed(end - begin, 3);
  line << ",\"args\":{";
  std::string_view comma;
  const auto key = [&](std::string_view name) -> TextLine& {
    line << std::exchange(comma, ",") << "\"" << name << "\":";
    return line;
  };
  if (!arguments.what.empty()) key("what").AppendQuoted(arguments.what);
  if (arguments.unit >= 0) key("unit") << arguments.unit;
  if (arguments.step >= 0) key("step") << arguments.step;
  if (arguments.bytes >= 0) key("bytes") << arguments.bytes;
  if (!error.empty()) key("error").AppendQuoted(error);
  line << "}}";
  if (Append(line.view())) {
    ++num_events_;
  } else {
    dropped_.fetch_add(1, std::memory_order_relaxed);
  }
}

StatusOr<bool> Trace::Flush(bool last) {
  if (failed_) return true;
  if (!started_) return false;
  std::unique_lock<std::mutex> flushing(flush_mutex_, std::defer_lock);
  if (last) {
    flushing.lock();
  } else if (!flushing.try_lock()) {
    return false;
  }
  bool locked = false;
  Status status = CatchOutOfMemory([&]() -> Status {
    SHARD_ASSIGN_OR_RETURN(locked, last ? file_->Lock() : file_->TryLock());
    return Status();
  });
  if (status.ok() && !locked && !last) return false;
  size_t size = 0;
  uint64_t num_events = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::swap(filling_, writing_);
    size = used_.exchange(0, std::memory_order_relaxed);
    num_events = std::exchange(num_events_, 0);
  }
  if (locked) {
    status = CatchOutOfMemory([&] {
      return size == 0 ? Status() : file_->Append({writing_.get(), size});
    });
    file_->Unlock();
  }
  if (!locked || !status.ok()) {
    dropped_.fetch_add(num_events, std::memory_order_relaxed);
  }
  if (status.ok()) return locked;
  failed_ = true;
  return status;
}

}  // namespace shard
