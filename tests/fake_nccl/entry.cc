// SPDX-License-Identifier: Apache-2.0

#include "tests/fake_nccl/entry.h"

#include <chrono>
#include <thread>
#include <utility>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_nccl/group.h"

namespace shard::testing::fake_nccl {

namespace {

constexpr std::chrono::microseconds kPause(50);

}  // namespace

Entry::Entry(const char* symbol, const Comm* comm, bool takes_comm, int since)
    : state_(TheState()), symbol_(symbol) {
  record_.symbol = symbol;
  record_.in_group = TheGroup()->depth > 0;
  if (takes_comm) comm_ = state_->Find(comm);
  {
    const std::lock_guard<std::mutex> lock(state_->records_mutex);
    options_ = state_->options;
    if (comm_ != nullptr) {
      record_.comm = comm_->id;
      record_.rank = comm_->world_rank;
      record_.size = comm_->size;
      record_.index = comm_->rank;
      Mark(comm_);
    }
  }
  if (comm_ != nullptr && options_.call_delay.count() != 0) {
    std::this_thread::sleep_for(options_.call_delay);
  }
  lock_ = std::unique_lock<std::mutex>(state_->mutex);
  if (since > VersionOf(options_)) {
    state_->Add(ViolationKind::kNotInVersion,
                record_.symbol + " is called, which version " +
                    std::to_string(VersionOf(options_)) + " does not have");
  }
  if (comm_ != nullptr || !takes_comm) {
    HangWhile([&] { return state_->Hangs(symbol, comm_.get()); });
  }
  if (const auto fault = state_->Meets(FaultKind::kCall, comm_.get(), symbol)) {
    Fail(fault->result, fault->text.empty()
                            ? record_.symbol + " fails, as the test wants"
                            : fault->text);
  } else if (takes_comm && comm_ == nullptr) {
    state_->Add(ViolationKind::kAfterEnd,
                record_.symbol + " is called without a communicator");
    Fail(Result::kInvalidArgument,
         record_.symbol + " : comm argument is NULL or unknown");
  } else if (comm_ != nullptr && comm_->ended_by != nullptr) {
    state_->Add(ViolationKind::kAfterEnd,
                record_.symbol + " of " + comm_->Describe() +
                    " is called after " + comm_->ended_by);
    Fail(Result::kInvalidArgument, "comm has already been destroyed");
  }
}

Result Entry::HangWhile(const std::function<bool()>& condition) {
  if (!condition()) return Result::kSuccess;
  ++state_->num_hanging;
  const Result waited = WaitUntil([&] { return !condition(); });
  --state_->num_hanging;
  return waited;
}

void Entry::Mark(const std::shared_ptr<Comm>& comm) {
  if (comm->called == nullptr) {
    comm->called = symbol_;
    comm->caller = std::this_thread::get_id();
    marked_.push_back(comm);
  } else if (comm->caller != std::this_thread::get_id()) {
    state_->violations.push_back(
        {ViolationKind::kConcurrent,
         std::string(symbol_) + " of " + comm->Describe() +
             " is called while another thread is in " + comm->called});
  }
}

void Entry::Uses(const std::shared_ptr<Comm>& comm) {
  const std::lock_guard<std::mutex> lock(state_->records_mutex);
  Mark(comm);
}

void Entry::EndUses(Group* group) {
  marked_.insert(marked_.end(), group->used.begin(), group->used.end());
}

Entry::~Entry() {
  if (lock_.owns_lock()) lock_.unlock();
  Group* const group = TheGroup();
  if (group->depth > 0) {
    group->used.insert(group->used.end(), marked_.begin(), marked_.end());
    marked_.clear();
  }
  record_.result = result_;
  const std::lock_guard<std::mutex> lock(state_->records_mutex);
  Counts& counts = state_->counts[comm_.get()];
  ++counts.calls[record_.symbol];
  if (bytes_ != 0) counts.bytes[record_.symbol] += bytes_;
  for (const auto& it : marked_) it->called = nullptr;
  if (record_.symbol != "ncclCommGetAsyncError") {
    state_->log.push_back(std::move(record_));
  }
}

Result Entry::Fail(Result result, const std::string& text) {
  // The end of a group returns the first error in it.
  Group* const group = TheGroup();
  if (group->depth > 0 && group->error == Result::kSuccess) {
    group->error = result;
  }
  state_->SetLastError(text);
  return Return(result);
}

Result Entry::CheckReady() {
  const Result error = comm_->async_error;
  if (error != Result::kSuccess) return Return(error);
  if (comm_->result == Result::kInProgress) {
    return Fail(Result::kInvalidArgument,
                "Attempt to use communicator before the previous operation "
                "returned ncclSuccess");
  }
  return Return(comm_->result);
}

void Entry::CheckContext(const Comm& comm) {
  int device = -1;
  if (fake_cuda::CurrentContext(&device) == comm.context) return;
  state_->Add(
      ViolationKind::kWrongContext,
      record_.symbol + " of " + comm.Describe() + " on device " +
          std::to_string(comm.device) + " is called in " +
          (device < 0 ? std::string("no context")
                      : "a context of device " + std::to_string(device)));
}

Result Entry::Begin(const std::shared_ptr<Comm>& comm, int polls,
                    const Job& job) {
  Group* const group = TheGroup();
  if (group->depth == 0) return BeginNow(comm, polls, job);
  group->jobs.push_back({comm, polls, job});
  return Return(comm->is_blocking ? Result::kSuccess : Result::kInProgress);
}

int Entry::PollsOf(const Comm& comm, int polls) {
  const auto fault = state_->Meets(FaultKind::kSlow, &comm, symbol_);
  return fault ? fault->polls : polls;
}

Result Entry::BeginNow(const std::shared_ptr<Comm>& comm, int polls,
                       const Job& job) {
  polls = PollsOf(*comm, polls);
  if (comm->is_blocking) return Return(Wait({comm}, {job}));
  Result result = job();
  if (result == Result::kInProgress && polls == 0) result = job();
  if (result != Result::kInProgress && polls == 0) {
    comm->result = result;
    return Return(result);
  }
  comm->job = job;
  comm->early = result;
  comm->polls = polls;
  comm->result = Result::kInProgress;
  return Return(Result::kInProgress);
}

Result Advance(Comm* comm) {
  const Result error = comm->async_error;
  if (error != Result::kSuccess) return error;
  if (comm->result != Result::kInProgress) return comm->result;
  if (comm->polls > 0) {
    --comm->polls;
    return Result::kInProgress;
  }
  const Job job = comm->job;
  const Result result =
      comm->early != Result::kInProgress ? comm->early : job();
  if (result == Result::kInProgress) return result;
  comm->job = nullptr;
  comm->early = Result::kInProgress;
  if (!comm->error_text.empty()) TheState()->SetLastError(comm->error_text);
  comm->error_text.clear();
  return comm->result = result;
}

Result Entry::Wait(const std::vector<std::shared_ptr<Comm>>& comms,
                   std::vector<Job> jobs) {
  Result first = Result::kSuccess;
  const Result waited = WaitUntil([&] {
    bool all = true;
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (jobs[i] == nullptr) continue;
      const Result result =
          comms[i]->ended_by != nullptr ? Result::kInternalError : jobs[i]();
      if (result == Result::kInProgress) {
        all = false;
        continue;
      }
      if (comms[i]->result == Result::kSuccess) comms[i]->result = result;
      if (first == Result::kSuccess) first = result;
      jobs[i] = nullptr;
    }
    return all;
  });
  return waited == Result::kSuccess ? first : waited;
}

Result Entry::WaitUntil(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + options_.deadline;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      state_->Add(ViolationKind::kDeadline,
                  record_.symbol + " has waited for " +
                      std::to_string(options_.deadline.count()) + " ms");
      return Fail(Result::kSystemError, "the deadline of the fake has passed");
    }
    lock_.unlock();
    std::this_thread::sleep_for(kPause);
    lock_.lock();
  }
  return Result::kSuccess;
}

std::shared_ptr<Comm> MakeComm(State* state) {
  const auto comm = std::make_shared<Comm>();
  const std::lock_guard<std::mutex> lock(state->records_mutex);
  comm->id = ++state->last_id;
  return comm;
}

void Publish(State* state, const std::shared_ptr<Comm>& comm) {
  {
    const std::lock_guard<std::mutex> lock(state->records_mutex);
    state->comms[comm.get()] = comm;
  }
  fake_cuda::CountLibraryObject(1);
}

void Stop(Comm* comm) {
  comm->is_stopped = true;
  // The caller may free what a kernel uses.
  while (comm->is_in_kernel) std::this_thread::yield();
}

void End(Comm* comm, const char* symbol) {
  comm->ended_by = symbol;
  comm->job = nullptr;
  comm->held_launch = nullptr;
  comm->registrations.clear();
  comm->windows.clear();
  fake_cuda::CountLibraryObject(-1);
}

const char* TextOf(Result result) {
  switch (result) {
    case Result::kSuccess:
      return "no error";
    case Result::kUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case Result::kSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case Result::kInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case Result::kInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case Result::kInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case Result::kRemoteError:
      return "remote process exited or there was a network error";
    case Result::kInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

}  // namespace shard::testing::fake_nccl
