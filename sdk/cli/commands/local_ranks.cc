// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/local_ranks.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>

#include "sdk/cli/commands/process.h"

namespace shardctl {

namespace {

int CpuCount() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

bool HasName(const RankSetup& setup, const char* name) {
  return std::any_of(setup.environment.begin(), setup.environment.end(),
                     [&](const auto& each) { return each.first == name; });
}

}  // namespace

std::optional<StartError> LocalRanks::Start(const RankSetup& setup,
                                            const Started& started) {
  detached_ = setup.detached;
  std::string problem;
  Places places = PlaceRanks(setup.binding, setup.ranks, &problem);
  if (!problem.empty()) return StartError{kCannotRun, problem};
  const int cpus = CpuCount();
  for (int local = 0; local < setup.ranks; ++local) {
    const int rank = setup.first_rank + local;
    SpawnOptions how;
    how.command = setup.command;
    how.detached = setup.detached;
    how.environment = setup.environment;
    for (const auto& [name, value] :
         {std::pair("SHARD_RANK", rank),
          std::pair("SHARD_WORLD_SIZE", setup.world_size),
          std::pair("SHARD_LOCAL_RANK", local),
          std::pair("SHARD_LOCAL_WORLD_SIZE", setup.ranks)}) {
      how.environment.emplace_back(name, std::to_string(value));
    }
    if (rank == 0 && setup.columns > 0) {
      how.environment.emplace_back("SHARD_TERMINAL", "1");
      how.environment.emplace_back("COLUMNS", std::to_string(setup.columns));
    }
    if (::getenv("OMP_NUM_THREADS") == nullptr &&
        !HasName(setup, "OMP_NUM_THREADS") && setup.world_size > 1) {
      how.environment.emplace_back(
          "OMP_NUM_THREADS", std::to_string(std::max(1, cpus / setup.ranks)));
    }
    problem = places.Enter(local);
    if (!problem.empty()) return StartError{kCannotRun, problem};
    const Process process = Spawn(how);
    places.Leave();
    if (process.spawn_errno != 0) {
      const bool is_missing = process.spawn_errno == ENOENT;
      return StartError{is_missing ? kNotFound : kCannotRun,
                        "cannot run '" + setup.command[0] + "': " +
                            (is_missing ? "no such program"
                                        : ::strerror(process.spawn_errno))};
    }
    ranks_.push_back({rank, process.pid});
    ++alive_;
    started(rank, process.out, process.error);
  }
  return std::nullopt;
}

std::vector<RankEnd> LocalRanks::TakeEnds() {
  std::vector<RankEnd> ends;
  for (Rank& rank : ranks_) {
    siginfo_t end{};  // si_pid stays 0 when it has not ended.
    if (!rank.alive ||
        ::waitid(P_PID, static_cast<id_t>(rank.pid), &end,
                 WEXITED | WNOHANG | WNOWAIT) != 0 ||
        end.si_pid != rank.pid) {
      continue;
    }
    rank.alive = false;
    --alive_;
    ends.push_back({rank.rank, end.si_code, end.si_status});
  }
  return ends;
}

void LocalRanks::Signal(int signal) {
  for (const Rank& rank : ranks_) {
    ::kill(detached_ ? -rank.pid : rank.pid, signal);
  }
}

void LocalRanks::KillAndReap() {
  Signal(SIGKILL);
  for (const Rank& rank : ranks_) {
    while (::waitpid(rank.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  ranks_.clear();
}

}  // namespace shardctl
