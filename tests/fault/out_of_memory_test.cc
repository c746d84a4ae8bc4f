// SPDX-License-Identifier: Apache-2.0
//
// Memory that runs out: in each flow of a host the n-th allocation fails, alone
// or with all that follow, for every n (SHARD_TEST_LONG) or some. Each time the
// calls return RESOURCE_EXHAUSTED, the free functions succeed while memory is
// still out, and everything that was allocated is given back.
//
// Where several ranks run, one of them says RESOURCE_EXHAUSTED; to the others
// it is that error, where they agree on one, or POISONED, or a rank that was
// lost. What runs out in the background is POISONED, with the reason, for all.
// No rank waits for its deadline, but for one that did not come to open the
// communicator.
//
// An allocation may fail without an error of the call, such as one of a warning
// or of a buffer that only saves time: then the result must be right.
//
// Each flow runs in a child process, so that one that ends it is counted, and
// the next allocation's turn comes.
//
// SHARD_TEST_TRACE=N prints where allocation N of a flow is made, and the
// numbers of those that leak; with --gtest_filter for one flow.

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
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"
#include "tests/fault/failing_allocator.h"
#include "tests/fault/host_flows.h"

namespace shard {
namespace {

constexpr int kMaxRanks = 2;

// What a child tells its parent, in memory that both see.
struct Tally {
  std::atomic<int64_t> at;  // The allocation whose turn it is.
  std::atomic<bool> done;
  int64_t allocations;  // Of the flow when none fails.
  int64_t stride;
  int64_t runs;
  int64_t tolerated;  // Runs without an error.
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
};

const char* NameOf(Outage outage) {
  return outage == Outage::kOnce ? "once" : "for good";
}

// The ranks of a world, each a thread, the first the one that is here. Runs in
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

  void Run(void (*prepare)(HostRank*), void (*run)(HostRank*), Outage outage,
           int64_t at) {
    prepare_ = prepare;
    run_ = run;
    outage_ = outage;
    at_ = at;
    Meet();
    RunRank(0);
  }

  void SaveOnce() {
    Run([](HostRank*) {}, SaveForFlows, Outage::kNone, 0);
  }
  void RunFlow(Outage outage, int64_t at) {
    std::filesystem::remove_all(folder_ + "/new");
    Run(flow_.prepare, flow_.run, outage, at);
  }

  int ranks() const { return world_.ranks; }
  HostRank& rank(int r) { return ranks_[r]; }
  int64_t allocations() const { return allocations_; }

 private:
  void Meet() { ::pthread_barrier_wait(&barrier_); }

  void RunRank(int r) {
    HostRank& mine = ranks_[r];
    mine = HostRank();
    mine.world = &world_;
    mine.rank = r;
    mine.folder = folder_.c_str();
    // A rank that did not come is one that its peers wait for.
    const bool opens = std::string_view(flow_.name) == "open";
    mine.open_timeout = opens && outage_ != Outage::kNone ? 0.1 : 30;
    mine.retries = outage_ == Outage::kOnce;
    prepare_(&mine);
    prepared_[r] = mine.code == SHARD_OK;
    Meet();
    if (r == 0) ArmAllocator(outage_, at_);
    Meet();
    if (mine.code == SHARD_OK) run_(&mine);
    FreeAll(&mine);
    Meet();
    if (r == 0) allocations_ = DisarmAllocator();
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
  Outage outage_ = Outage::kNone;
  int64_t at_ = 0;
  int64_t allocations_ = 0;
  bool prepared_[kMaxRanks] = {};
  HostRank ranks_[kMaxRanks];
};

bool IsAllowed(const HostRank& rank) {
  const shard_code code = rank.code;
  if (code == SHARD_OK || code == SHARD_RESOURCE_EXHAUSTED) return true;
  if (code == SHARD_POISONED) return true;
  if (rank.world->ranks == 1) return false;
  // What a rank that met the others does, they hear of at once.
  return code == SHARD_RANK_LOST ||
         (code == SHARD_DEADLINE_EXCEEDED &&
          std::string_view(rank.call).starts_with("shard_comm_open"));
}

class OutOfMemory
    : public ::testing::TestWithParam<std::tuple<World, Flow, Outage>> {
 protected:
  const World& world() const { return world_; }
  const Flow& flow() const { return flow_; }

  // The child: from allocation tally->at on.
  void RunChild(const std::string& folder, Tally* tally) const;
  // Looks at how a run ended.
  void Judge(Host* host, const Allocated& before, const uint64_t* results,
             Tally* tally) const;

  const World world_ = std::get<0>(GetParam());
  const Flow flow_ = std::get<1>(GetParam());
  const Outage outage_ = std::get<2>(GetParam());
};

void OutOfMemory::Judge(Host* host, const Allocated& before,
                        const uint64_t* results, Tally* tally) const {
  const auto at = static_cast<long long>(tally->at.load());
  const Allocated after = AllocatedNow();
  if (after != before) {
    ++tally->leaks;
    tally->Add(
        "allocation %lld: %lld pieces and %lld mapped bytes stay", at,
        static_cast<long long>(after.pieces - before.pieces),
        static_cast<long long>(after.mapped_bytes - before.mapped_bytes));
    PrintLiveAllocations();
  }
  bool all_ok = true;
  bool allowed = true;
  bool exhausted = false;
  for (int r = 0; r < host->ranks(); ++r) {
    const HostRank& rank = host->rank(r);
    all_ok &= rank.code == SHARD_OK;
    exhausted |= rank.code == SHARD_RESOURCE_EXHAUSTED ||
                 (rank.code == SHARD_POISONED &&
                  std::strstr(rank.message, "RESOURCE_EXHAUSTED") != nullptr);
    allowed &= IsAllowed(rank);
    if (rank.code == SHARD_OK && rank.result != results[r]) {
      ++tally->wrong;
      tally->Add("allocation %lld: rank %d has another result", at, r);
    }
  }
  if (!allowed || (!all_ok && !exhausted)) {
    ++tally->wrong;
    for (int r = 0; r < host->ranks(); ++r) {
      const HostRank& rank = host->rank(r);
      tally->Add("allocation %lld: rank %d: %s: %s in %s", at, r,
                 shard_code_name(rank.code), rank.message, rank.call);
    }
  }
  if (!all_ok) return;
  ++tally->tolerated;
  HostRank check;
  check.folder = host->rank(0).folder;
  flow().check(&check);
  FreeAll(&check);
  if (check.code == SHARD_OK) return;
  ++tally->wrong;
  tally->Add("allocation %lld: no error, and then: %s", at, check.message);
}

void OutOfMemory::RunChild(const std::string& folder, Tally* tally) const {
  Host host(world(), flow(), folder);
  host.SaveOnce();
  // The second time everything is there that is made once.
  for (int i = 0; i < 3; ++i) host.RunFlow(Outage::kNone, 0);
  uint64_t results[kMaxRanks] = {};
  for (int r = 0; r < host.ranks(); ++r) {
    const HostRank& rank = host.rank(r);
    results[r] = rank.result;
    if (rank.code == SHARD_OK) continue;
    ++tally->wrong;
    tally->Add("the flow fails by itself: %s in %s", rank.message, rank.call);
    return;
  }
  tally->allocations = host.allocations();
  if (tally->stride == 0) {
    // What has no ranks takes no time.
    const int64_t wanted = kSanitized ? 3 : flow().of_ranks ? 16 : 1000;
    tally->stride = std::max<int64_t>(1, tally->allocations / wanted);
  }
  for (;; tally->at += tally->stride) {
    const Allocated before = AllocatedNow();
    host.RunFlow(outage_, tally->at);
    if (AllocationFailed()) {
      ++tally->runs;
      Judge(&host, before, results, tally);
      continue;
    }
    bool late = false;  // To open the communicator, in so short a time.
    for (int r = 0; r < host.ranks(); ++r) {
      late |= host.rank(r).code == SHARD_DEADLINE_EXCEEDED;
    }
    if (!late) break;
    tally->at -= tally->stride;
  }
}

TEST_P(OutOfMemory, IsAnErrorAndNothingStays) {
  const testing::TempFolder folder(testing::kMemoryFolder);
  void* const shared = ::mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* const tally = new (shared) Tally();
  tally->stride = std::getenv("SHARD_TEST_LONG") != nullptr ? 1 : 0;
  tally->at = 1;
  while (!tally->done) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      if (const char* trace = std::getenv("SHARD_TEST_TRACE")) {
        TraceAllocation(std::atoll(trace));
        tally->at = std::atoll(trace);
      }
      RunChild(folder.path(), tally);
      tally->done = true;
      ::_exit(0);
    }
    // Older libcs have no pidfd_open.
    pollfd ended = {static_cast<int>(::syscall(SYS_pidfd_open, child, 0)),
                    POLLIN, 0};
    int64_t at = 0;
    do {
      at = tally->at;
    } while (::poll(&ended, 1, 60000) == 0 && tally->at != at);
    const bool hangs = ::poll(&ended, 1, 0) == 0;
    if (hangs) ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ::close(ended.fd);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    ++(hangs ? tally->hangs : tally->aborts);
    tally->Add("allocation %lld: the process %s",
               static_cast<long long>(tally->at.load()),
               hangs ? "hangs" : ::strsignal(WTERMSIG(status)));
    tally->at += std::max<int64_t>(1, tally->stride);
  }
  std::printf(
      "%s, %s, %s: %lld allocations, %lld runs, %lld tolerated, %lld aborts, "
      "%lld hangs, %lld leaks, %lld wrong\n",
      world().name, flow().name, NameOf(outage_),
      static_cast<long long>(tally->allocations),
      static_cast<long long>(tally->runs),
      static_cast<long long>(tally->tolerated),
      static_cast<long long>(tally->aborts),
      static_cast<long long>(tally->hangs),
      static_cast<long long>(tally->leaks),
      static_cast<long long>(tally->wrong));
  // Whether a shutdown needs memory depends on which rank is first.
  if (std::string_view(flow().name) != "shutdown") {
    EXPECT_GT(tally->runs, 0);
  }
  EXPECT_EQ(tally->aborts + tally->hangs + tally->leaks + tally->wrong, 0);
  for (int i = 0; i < tally->lines; ++i) ADD_FAILURE() << tally->text[i];
  ::munmap(shared, sizeof(Tally));
}

// Else the flows would meet nothing of what stages 2 and 3 do.
TEST(HostFlows, ShardWhatTheirStagesShard) {
  for (const World& world : Worlds()) {
    HostRank rank;
    rank.world = &world;
    MakePlanForFlows(&rank);
    ASSERT_EQ(rank.code, SHARD_OK) << rank.message;
    char text[4096] = {};
    size_t length = 0;
    ASSERT_EQ(shard_plan_warnings(rank.plan, text, sizeof(text), &length),
              nullptr);
    EXPECT_EQ(std::strstr(text, " whole: with"), nullptr)
        << world.name << ": " << text;
    FreeAll(&rank);
  }
}

std::vector<std::tuple<World, Flow, Outage>> Cases() {
  std::vector<std::tuple<World, Flow, Outage>> cases;
  for (const World& world : Worlds()) {
    for (const Flow& flow : Flows()) {
      if (!flow.of_ranks && &world != &Worlds()[0]) continue;
      if (!flow.of_comm && world.comm_only) continue;
      for (const Outage outage : {Outage::kOnce, Outage::kForGood}) {
        cases.emplace_back(world, flow, outage);
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(
    All, OutOfMemory, ::testing::ValuesIn(Cases()), [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + "_" +
             std::get<1>(info.param).name +
             (std::get<2>(info.param) == Outage::kOnce ? "_once" : "_for_good");
    });

}  // namespace
}  // namespace shard
