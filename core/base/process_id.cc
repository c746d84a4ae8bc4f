// SPDX-License-Identifier: Apache-2.0

#include "core/base/process_id.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>

namespace shard {

namespace {

// A page that the kernel gives to children of fork as zeros: a whole one of the
// zeroed memory of this library, which no file is behind.
constexpr size_t kPage = 4096;
struct alignas(kPage) WipedPage {
  std::atomic<pid_t> id;  // 0: not known.
};
static_assert(sizeof(WipedPage) == kPage);
constinit WipedPage wiped_page = {};

enum class Wiping { kUnknown, kOn, kOff };
// No lock guards it, for a child could find the lock held by a thread that it
// does not have. To ask the kernel twice does no harm.
constinit std::atomic<Wiping> wiping = Wiping::kUnknown;

Wiping AskForWiping() {
  // A larger page would have other variables in it.
  const bool on = ::sysconf(_SC_PAGESIZE) == kPage &&
                  ::madvise(&wiped_page, kPage, MADV_WIPEONFORK) == 0;
  const Wiping answer = on ? Wiping::kOn : Wiping::kOff;
  wiping.store(answer, std::memory_order_release);
  return answer;
}

}  // namespace

pid_t ProcessId() {
  Wiping known = wiping.load(std::memory_order_acquire);
  if (known == Wiping::kUnknown) known = AskForWiping();
  if (known == Wiping::kOff) return ::getpid();
  const pid_t cached = wiped_page.id.load(std::memory_order_relaxed);
  if (cached != 0) return cached;
  const pid_t id = ::getpid();
  wiped_page.id.store(id, std::memory_order_relaxed);
  return id;
}

}  // namespace shard
