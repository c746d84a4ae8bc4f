// SPDX-License-Identifier: Apache-2.0

#include "core/comm/host_waits.h"

#include <cstring>

namespace shard {

std::string HostWait::Call() const {
  uint64_t words[kCallWords];
  for (size_t i = 0; i < kCallWords; ++i) {
    words[i] = call[i].load(std::memory_order_acquire);
  }
  char text[sizeof(words)];
  std::memcpy(text, words, sizeof(words));
  return std::string(text, ::strnlen(text, sizeof(text)));
}

void HostCall::Begin(const char* name) {
  thread_.store(::pthread_self(), std::memory_order_relaxed);
  name_.store(name, std::memory_order_release);
}

void HostCall::End() { name_.store(nullptr, std::memory_order_relaxed); }

const char* HostCall::OfThisThread() const {
  const char* const name = name_.load(std::memory_order_acquire);
  if (name == nullptr) return nullptr;
  return ::pthread_equal(thread_.load(std::memory_order_relaxed),
                         ::pthread_self()) != 0
             ? name
             : nullptr;
}

bool HostWaits::Begin(uint64_t until) {
  const char* const name = call_->OfThisThread();
  if (name == nullptr) return false;
  uint64_t words[HostWait::kCallWords] = {};
  std::memcpy(words, name, ::strnlen(name, sizeof(words)));
  for (size_t i = 0; i < HostWait::kCallWords; ++i) {
    shared_->call[i].store(words[i], std::memory_order_release);
  }
  shared_->until.store(until, std::memory_order_release);
  Increment(&shared_->number);
  return true;
}

}  // namespace shard
