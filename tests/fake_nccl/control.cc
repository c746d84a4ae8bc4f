// SPDX-License-Identifier: Apache-2.0

#include <mutex>
#include <string>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_nccl/entry.h"
#include "tests/fake_nccl/fake_nccl.h"
#include "tests/fake_nccl/state.h"

namespace shard::testing::fake_nccl {

namespace {

using Lock = std::lock_guard<std::mutex>;

void AddFault(const Fault& fault) {
  State* const state = TheState();
  const Lock lock(state->records_mutex);
  state->faults.push_back(fault);
}

void AddTo(std::map<std::string, uint64_t>* sums,
           const std::map<std::string, uint64_t>& counts) {
  for (const auto& [name, count] : counts) (*sums)[name] += count;
}

}  // namespace

void Reset(const Options& options) {
  State* const state = TheState();
  const Lock lock(state->mutex);
  const Lock records(state->records_mutex);
  state->allocations.clear();
  state->used_ids.clear();
  state->options = options;
  for (const auto& [handle, comm] : state->comms) {
    comm->is_stopped = true;
    // It may hold the communicator itself.
    comm->job = nullptr;
    comm->held_launch = nullptr;
  }
  state->comms.clear();
  state->faults.clear();
  state->dead.clear();
  state->dead_met.clear();
  state->num_faults = 0;
  state->hangs.clear();
  state->violations.clear();
  state->log.clear();
  state->counts.clear();
  state->last_error.clear();
  state->last_id = 0;
  ++state->generation;
}

void FailCall(const std::string& symbol, uint64_t call, Result result,
              const Target& target, const std::string& text) {
  AddFault({FaultKind::kCall, target, call, result, symbol, 0, text});
}

void FailEveryCall(const std::string& symbol, uint64_t every, Result result,
                   const Target& target) {
  AddFault({FaultKind::kCall, target, every, result, symbol, 0, "", every});
}

void StickAt(uint64_t collective, const Target& target) {
  AddFault({FaultKind::kStuck, target, collective});
}

void FailAsyncAt(uint64_t collective, Result result, const Target& target) {
  AddFault({FaultKind::kAsync, target, collective, result});
}

void SwapAt(uint64_t launch, const Target& target) {
  AddFault({FaultKind::kSwap, target, launch});
}

void SlowCall(const std::string& symbol, uint64_t call, int polls,
              const Target& target) {
  AddFault({FaultKind::kSlow, target, call, Result::kSuccess, symbol, polls});
}

void Kill(int rank) {
  State* const state = TheState();
  const Lock lock(state->records_mutex);
  state->dead.insert(rank);
}

void HangCalls(const std::string& symbol, const Target& target) {
  State* const state = TheState();
  const Lock lock(state->records_mutex);
  state->hangs.emplace_back(symbol, target);
}

void ReleaseCalls() {
  State* const state = TheState();
  const Lock lock(state->records_mutex);
  state->hangs.clear();
}

size_t NumHanging() { return TheState()->num_hanging; }

void ClearFaults() {
  State* const state = TheState();
  const Lock lock(state->records_mutex);
  state->faults.clear();
  state->dead.clear();
  state->hangs.clear();
}

uint64_t NumFaults() {
  State* const state = TheState();
  const Lock lock(state->records_mutex);
  return state->num_faults;
}

Counts Count(const Target& target) {
  State* const state = TheState();
  const Lock lock(state->records_mutex);
  const bool all = target.rank < 0 && target.size == 0;
  Counts sum;
  for (const auto& [comm, counts] : state->counts) {
    if (comm == nullptr ? !all : !comm->Is(target)) continue;
    AddTo(&sum.calls, counts.calls);
    AddTo(&sum.bytes, counts.bytes);
    sum.launches += counts.launches;
    sum.ended += counts.ended;
  }
  return sum;
}

std::vector<CallRecord> Log() {
  State* const state = TheState();
  const Lock lock(state->records_mutex);
  return state->log;
}

std::vector<Violation> Violations() {
  State* const state = TheState();
  const Lock lock(state->records_mutex);
  return state->violations;
}

void ClearViolations() {
  State* const state = TheState();
  const Lock lock(state->records_mutex);
  state->violations.clear();
}

std::string ViolationText() {
  std::string text;
  for (const Violation& it : Violations()) text += it.text + "\n";
  return text;
}

Alive CountAlive() {
  State* const state = TheState();
  const Lock lock(state->mutex);
  const Lock records(state->records_mutex);
  Alive alive;
  for (const auto& [handle, comm] : state->comms) {
    if (comm->ended_by == nullptr) ++alive.comms;
    alive.registrations += comm->registrations.size();
  }
  alive.allocations = state->allocations.size();
  return alive;
}

std::string AliveText() {
  const Alive alive = CountAlive();
  std::string text;
  const auto add = [&](size_t count, const char* what) {
    if (count == 0) return;
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + what;
  };
  add(alive.comms, "communicators");
  add(alive.registrations, "registrations");
  add(alive.allocations, "allocations of ncclMemAlloc");
  return text;
}

}  // namespace shard::testing::fake_nccl
