// SPDX-License-Identifier: Apache-2.0
//
// Runs flows of a host while memory or files fail: the ranks, each a thread,
// and child processes in which they run. A child that a fault ends is counted,
// and the next child goes on with the next fault.

#ifndef SHARD_TESTS_FAULT_HOST_H_
#define SHARD_TESTS_FAULT_HOST_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/fault/failing_allocator.h"
#include "tests/fault/failing_files.h"
#include "tests/fault/host_flows.h"

namespace shard {

inline constexpr int kMaxRanks = 2;

// The faults of one run of a flow.
struct Faults {
  Outage outage = Outage::kNone;
  int64_t at = 0;
  FileFault file;
};

// The results that a child reports to its parent, in memory that both map.
struct Tally {
  std::atomic<int64_t> at{1};      // The number of the next fault.
  std::atomic<int64_t> second{1};  // The number of the second fault beside it.
  std::atomic<bool> done;
  // The number of allocations of the flow when none fails.
  int64_t allocations;
  int64_t stride;
  int64_t runs;
  int64_t tolerated;  // The number of runs without an error.
  int64_t aborts;
  int64_t hangs;
  int64_t leaks;
  int64_t wrong;
  int lines;
  char text[8][512];  // The first findings.

  void Add(const char* format, ...) __attribute__((format(printf, 2, 3))) {
    if (lines == 8) return;
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text[lines++], sizeof(text[0]), format, arguments);
    va_end(arguments);
  }
  int64_t failures() const { return aborts + hangs + leaks + wrong; }
};

inline const char* NameOf(Outage outage) {
  return outage == Outage::kOnce ? "once" : "for good";
}

// The resources that are allocated and open now.
struct Held {
  Allocated allocated;
  int descriptors = 0;

  bool operator==(const Held&) const = default;
};

inline Held HeldNow() {
  Held held = {AllocatedNow()};
  for (int fd = 0; fd < 1024; ++fd) {
    held.descriptors += ::fcntl(fd, F_GETFD) >= 0;
  }
  return held;
}

// Counts resources that a run did not release as a leak.
inline void JudgeHeld(const Held& before, Tally* tally) {
  const Held after = HeldNow();
  if (after == before) return;
  ++tally->leaks;
  tally->Add(
      "fault %lld, %lld: %lld pieces, %lld mapped bytes, %d files stay",
      static_cast<long long>(tally->at.load()),
      static_cast<long long>(tally->second.load()),
      static_cast<long long>(after.allocated.pieces - before.allocated.pieces),
      static_cast<long long>(after.allocated.mapped_bytes -
                             before.allocated.mapped_bytes),
      after.descriptors - before.descriptors);
  PrintLiveAllocations();
}

// The ranks of a world, each a thread; the first is the calling thread. Runs in
// the child.
class Host {
 public:
  Host(const World& world, const Flow& flow, const std::string& folder)
      : world_(world), flow_(flow), folder_(folder) {
    const auto count = static_cast<unsigned>(world.ranks);
    ::pthread_barrier_init(&barrier_, nullptr, count);
    for (int r = 1; r < world.ranks; ++r) {
      threads_.emplace_back([this, r] {
        for (;;) {
          Meet();
          if (stop_) return;
          RunRank(r);
        }
      });
    }
  }

  ~Host() {
    stop_ = true;
    Meet();
    for (std::thread& thread : threads_) thread.join();
  }

  void SaveOnce() {
    Run([](HostRank*) {}, SaveForFlows, Faults());
  }
  void RunFlow(const Faults& faults) { Run(flow_.prepare, flow_.run, faults); }

  int ranks() const { return world_.ranks; }
  HostRank& rank(int r) { return ranks_[r]; }
  int64_t allocations() const { return allocations_; }

  // Returns true when no rank has an error.
  bool IsOk() const {
    return std::all_of(ranks_, ranks_ + world_.ranks, [](const HostRank& rank) {
      return rank.code == SHARD_OK;
    });
  }
  void TellErrors(Tally* tally) const {
    for (int r = 0; r < world_.ranks; ++r) {
      const HostRank& rank = ranks_[r];
      tally->Add("fault %lld, %lld: rank %d: %s: %s in %s",
                 static_cast<long long>(tally->at.load()),
                 static_cast<long long>(tally->second.load()), r,
                 shard_code_name(rank.code), rank.message, rank.call);
    }
  }

 private:
  void Meet() { ::pthread_barrier_wait(&barrier_); }

  void Run(void (*prepare)(HostRank*), void (*run)(HostRank*),
           const Faults& faults) {
    prepare_ = prepare;
    run_ = run;
    faults_ = faults;
    Meet();
    RunRank(0);
  }

  void RunRank(int r) {
    HostRank& mine = ranks_[r];
    mine = HostRank();
    mine.world = &world_;
    mine.rank = r;
    mine.folder = folder_.c_str();
    // The peers of a rank that failed to open the group wait until this
    // timeout.
    const bool opens = std::string_view(flow_.name) == "open";
    mine.open_timeout = opens && faults_.outage != Outage::kNone ? 0.1 : 30;
    mine.retries = faults_.outage == Outage::kOnce && faults_.file.at == 0;
    prepare_(&mine);
    Meet();
    if (r == 0) {
      ArmAllocator(faults_.outage, faults_.at);
      ArmFiles(faults_.file);
    }
    Meet();
    if (mine.code == SHARD_OK) run_(&mine);
    FreeAll(&mine);
    Meet();
    if (r == 0) {
      allocations_ = DisarmAllocator();
      DisarmFiles();
    }
    Meet();
  }

  const World& world_;
  const Flow& flow_;
  const std::string folder_;
  pthread_barrier_t barrier_;
  std::vector<std::thread> threads_;
  bool stop_ = false;
  void (*prepare_)(HostRank*) = nullptr;
  void (*run_)(HostRank*) = nullptr;
  Faults faults_;
  int64_t allocations_ = 0;
  HostRank ranks_[kMaxRanks];
};

// Runs `child` in child processes until one returns. The next child starts
// where one was ended or makes no progress. `skip` advances past the fault that
// ended a child. Fails the test for each finding.
inline void RunInChildren(const std::string& name,
                          const std::function<void(Tally*)>& child,
                          const std::function<void(Tally*)>& skip,
                          const std::function<void(const Tally&)>& judge) {
  void* const shared = ::mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* const tally = new (shared) Tally();
  const auto unmap = [](Tally* mapped) { ::munmap(mapped, sizeof(Tally)); };
  const std::unique_ptr<Tally, decltype(unmap)> owner(tally, unmap);
  tally->stride = std::getenv("SHARD_TEST_LONG") != nullptr ? 1 : 0;
  while (!tally->done) {
    const pid_t process = ::fork();
    ASSERT_GE(process, 0);
    if (process == 0) {
      child(tally);
      tally->done = true;
      ::_exit(0);
    }
    // The system call is made by number, because older libcs have no
    // pidfd_open.
    pollfd ended = {static_cast<int>(::syscall(SYS_pidfd_open, process, 0)),
                    POLLIN, 0};
    int64_t runs = 0;
    do {
      runs = tally->runs;
    } while (::poll(&ended, 1, 60000) == 0 && tally->runs != runs);
    const bool hangs = ::poll(&ended, 1, 0) == 0;
    if (hangs) ::kill(process, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(process, &status, 0), process);
    ::close(ended.fd);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    ++(hangs ? tally->hangs : tally->aborts);
    tally->Add("fault %lld, %lld: the process %s",
               static_cast<long long>(tally->at.load()),
               static_cast<long long>(tally->second.load()),
               hangs ? "hangs" : ::strsignal(WTERMSIG(status)));
    skip(tally);
  }
  std::printf(
      "%s: %lld allocations, %lld runs, %lld tolerated, %lld aborts, "
      "%lld hangs, %lld leaks, %lld wrong\n",
      name.c_str(), static_cast<long long>(tally->allocations),
      static_cast<long long>(tally->runs),
      static_cast<long long>(tally->tolerated),
      static_cast<long long>(tally->aborts),
      static_cast<long long>(tally->hangs),
      static_cast<long long>(tally->leaks),
      static_cast<long long>(tally->wrong));
  EXPECT_EQ(tally->failures(), 0);
  for (int i = 0; i < tally->lines; ++i) ADD_FAILURE() << tally->text[i];
  judge(*tally);
}

}  // namespace shard

#endif  // SHARD_TESTS_FAULT_HOST_H_
