// SPDX-License-Identifier: Apache-2.0

#include "tests/fake_nccl/state.h"

#include <algorithm>

namespace shard::testing::fake_nccl {

State* TheState() {
  static auto* const state = new State();
  return state;
}

int VersionOf(const Options& options) {
  return options.version == 0 ? LibraryVersion() : options.version;
}

std::shared_ptr<Comm> State::Find(const Comm* handle) {
  const std::lock_guard<std::mutex> lock(records_mutex);
  const auto found = comms.find(handle);
  return found == comms.end() ? nullptr : found->second;
}

void State::Add(ViolationKind kind, const std::string& text) {
  const std::lock_guard<std::mutex> lock(records_mutex);
  violations.push_back({kind, text});
}

std::optional<Fault> State::Meets(FaultKind kind, const Comm* comm,
                                  const std::string& symbol) {
  const std::lock_guard<std::mutex> lock(records_mutex);
  std::optional<Fault> met;
  for (Fault& it : faults) {
    if (it.kind != kind || it.left == 0) continue;
    if (!it.symbol.empty() && it.symbol != symbol) continue;
    if (comm != nullptr && !comm->Is(it.target)) continue;
    if (--it.left != 0) continue;
    met = it;
    it.left = it.every;
    ++num_faults;
  }
  return met;
}

bool State::IsDead(const Comm& comm) {
  const std::lock_guard<std::mutex> lock(records_mutex);
  if (dead.count(comm.world_rank) == 0) return false;
  if (dead_met.insert(comm.world_rank).second) ++num_faults;
  return true;
}

bool State::Hangs(const std::string& symbol, const Comm* comm) {
  const std::lock_guard<std::mutex> lock(records_mutex);
  return std::any_of(hangs.begin(), hangs.end(), [&](const auto& it) {
    return it.first == symbol && (comm == nullptr || comm->Is(it.second));
  });
}

void State::CountLaunch(const Comm& comm) {
  const std::lock_guard<std::mutex> lock(records_mutex);
  ++counts[&comm].launches;
}

void State::CountEnd(const Comm& comm) {
  const std::lock_guard<std::mutex> lock(records_mutex);
  ++counts[&comm].ended;
}

bool State::IsRegistered(const void* memory) {
  const std::lock_guard<std::mutex> lock(records_mutex);
  for (const auto& [handle, comm] : comms) {
    for (const auto& [registration, it] : comm->registrations) {
      if (it.first == memory) return true;
    }
  }
  return false;
}

void State::SetLastError(const std::string& text) {
  const std::lock_guard<std::mutex> lock(records_mutex);
  last_error = text;
}

}  // namespace shard::testing::fake_nccl
