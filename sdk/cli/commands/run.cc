// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/run.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sdk/cli/commands/process.h"
#include "sdk/cli/commands/rank_output.h"

namespace shardctl {

namespace {

using Clock = std::chrono::steady_clock;

// At most 30 years, so that no sum overflows.
Clock::time_point After(double seconds) {
  constexpr double kLongest = 30 * 365.0 * 24 * 3600;
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(
             std::chrono::duration<double>(std::min(seconds, kLongest)));
}

std::string UniqueName() {
  uint64_t word = 0;
  if (::getrandom(&word, sizeof(word), 0) != sizeof(word)) {
    word = static_cast<uint64_t>(::getpid());
  }
  char name[40];
  std::snprintf(name, sizeof(name), "shardctl-%016llx",
                static_cast<unsigned long long>(word));
  return name;
}

int CpuCount() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

int TerminalColumns() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
    return 80;
  }
  return size.ws_col;
}

class Launcher {
 public:
  explicit Launcher(const RunOptions& options)
      : options_(options),
        name_(options.name.empty() ? UniqueName() : options.name),
        detached_(options.ranks > 1) {}

  int Run() {
    // Signals come through a descriptor, in turn with the ranks' output.
    sigset_t signals;
    ::sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
      ::sigaddset(&signals, signal);
    }
    ::sigprocmask(SIG_BLOCK, &signals, nullptr);
    // The ranks go on when nobody reads what they print, as in `| head -1`.
    ::signal(SIGPIPE, SIG_IGN);
    signals_ = ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals_ < 0) {
      output_.Say(std::string("signalfd: ") + ::strerror(errno));
      exit_code_ = kCannotRun;
    }
    if (options_.timeout > 0) timeout_ = After(options_.timeout);
    for (int r = 0; r < options_.ranks && !exit_code_; ++r) Start(r);
    while (alive_ > 0) {
      WaitForSomething();
      ReadSignals();
      output_.Read();
      NoticeEnds();
      output_.NoticeLostOutput();
      KeepTime();
    }
    KillAndReapAll();
    // The last output of an ended rank is in its pipes by now.
    output_.Finish();
    ranks_.clear();
    Drain();
    return exit_code_.value_or(0);
  }

 private:
  struct Rank {
    int rank;
    pid_t pid;
    bool alive = true;
  };

  // The end of a rank that did not end with 0.
  struct Failure {
    int rank;
    int code;  // For shardctl.
    std::string how;
    int order;  // A failure of smaller order explains more.
  };

  void Start(int r) {
    SpawnOptions how;
    how.command = options_.command;
    how.detached = detached_;
    const std::string ranks = std::to_string(options_.ranks);
    how.environment = {{"SHARD_RANK", std::to_string(r)},
                       {"SHARD_WORLD_SIZE", ranks},
                       {"SHARD_LOCAL_RANK", std::to_string(r)},
                       {"SHARD_LOCAL_WORLD_SIZE", ranks},
                       {"SHARD_RENDEZVOUS", name_}};
    const std::string prefix =
        detached_ ? "[" + std::to_string(r) + "] " : std::string();
    if (r == 0 && output_.IsTerminal(/*error=*/false)) {
      const int columns =
          std::max(20, TerminalColumns() - static_cast<int>(prefix.size()));
      how.environment.emplace_back("SHARD_TERMINAL", "1");
      how.environment.emplace_back("COLUMNS", std::to_string(columns));
    }
    if (::getenv("OMP_NUM_THREADS") == nullptr && detached_) {
      how.environment.emplace_back(
          "OMP_NUM_THREADS",
          std::to_string(std::max(1, CpuCount() / options_.ranks)));
    }
    const Process process = Spawn(how);
    if (process.spawn_errno != 0) {
      output_.Say("cannot run '" + options_.command[0] + "': " +
                  (process.spawn_errno == ENOENT
                       ? "no such program"
                       : ::strerror(process.spawn_errno)));
      End(process.spawn_errno == ENOENT ? kNotFound : kCannotRun, SIGTERM);
      return;
    }
    output_.Add(r, prefix, process.out, process.error);
    ranks_.push_back({r, process.pid});
    ++alive_;
  }

  // Waits for a signal, output, room for output, or the next time limit.
  void WaitForSomething() {
    std::vector<pollfd> entries{{signals_, POLLIN, 0}};
    output_.AddToPoll(&entries);
    int millis = -1;
    for (const auto& at : {timeout_, kill_at_, decide_at_, give_up_at_}) {
      if (!at) continue;
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(*at - Clock::now());
      const int wait =
          static_cast<int>(std::clamp<int64_t>(left.count(), 0, 3600 * 1000));
      millis = millis < 0 ? wait : std::min(millis, wait);
    }
    ::poll(entries.data(), entries.size(), millis);
    // Taken before the queues are looked at, so that no progress is missed.
    progress_ = output_.TakeProgress();
  }

  void ReadSignals() {
    signalfd_siginfo info;
    while (::read(signals_, &info, sizeof(info)) == sizeof(info)) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) continue;  // NoticeEnds handles it.
      last_signal_ = signal;
      if (++signals_received_ > 1) {
        SendToAll(SIGKILL);  // The second signal.
        continue;
      }
      kill_at_ = After(kGraceSeconds);
      // The terminal has already sent the signal to the rank that shares it.
      if (!detached_ && info.ssi_code == SI_KERNEL) continue;
      SendToAll(signal);
    }
  }

  // Ended ranks stay zombies until KillAndReapAll: that keeps their process
  // ids, which name their groups, from naming someone else's.
  void NoticeEnds() {
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
      if (end.si_code == CLD_EXITED && end.si_status == 0) continue;
      Failure failure = FailureOf(rank.rank, end);
      if (!failure_ || failure.order < failure_->order) {
        failure_ = std::move(failure);
      }
      if (!decide_at_) decide_at_ = After(kSettleSeconds);
    }
    if (failure_ && alive_ == 0) Decide();
  }

  static Failure FailureOf(int rank, const siginfo_t& end) {
    if (end.si_code == CLD_EXITED) {
      return {rank, end.si_status,
              "ended with code " + std::to_string(end.si_status),
              end.si_status == kFollowed ? 2 : 1};
    }
    // A program may abort() when it is told of a lost rank, so SIGABRT may be a
    // consequence; other signals are causes.
    return {rank, 128 + end.si_status,
            "was ended by signal " + std::to_string(end.si_status) + " (" +
                ::strsignal(end.si_status) + ")",
            end.si_status == SIGABRT ? 1 : 0};
  }

  // Says which rank failed, and ends the others. REQUIRES: failure_.
  void Decide() {
    decide_at_.reset();
    if (exit_code_) return;
    // The rank's last output comes before our message.
    output_.ReadNow();
    output_.Say("rank " + std::to_string(failure_->rank) + " " + failure_->how +
                (alive_ > 0 ? "; ending the others" : ""));
    End(failure_->code, SIGTERM);
  }

  void KeepTime() {
    const auto now = Clock::now();
    if (decide_at_ && now >= *decide_at_) Decide();
    if (timeout_ && now >= *timeout_) {
      timeout_.reset();
      timed_out_ = true;
      if (failure_) {
        Decide();
      } else if (!exit_code_) {
        char seconds[32];
        std::snprintf(seconds, sizeof(seconds), "%g", options_.timeout);
        output_.Say("the run took longer than its timeout of " +
                    std::string(seconds) +
                    (alive_ > 0 ? " s; ending the ranks"
                                : " s: its output is not read"));
        End(kTimedOut, SIGTERM);
      }
    }
    if (kill_at_ && now >= *kill_at_) {
      kill_at_.reset();
      if (alive_ > 0) {
        output_.Say("ranks did not end within " +
                    std::to_string(static_cast<int>(kGraceSeconds)) +
                    " s; killing them");
        SendToAll(SIGKILL);
      }
    }
  }

  // Waits until the output is written, however long that takes; after a signal
  // or the timeout only while its reader reads; after a second signal not at
  // all. REQUIRES: all ranks have ended.
  void Drain() {
    kill_at_.reset();
    const int enough = std::max(signals_received_, 1);
    while (!output_.AllIsWritten()) {
      if ((signals_received_ > 0 || timed_out_) && !give_up_at_) {
        give_up_at_ = After(kStalledSeconds);
      }
      if (signals_received_ > enough ||
          (give_up_at_ && Clock::now() >= *give_up_at_)) {
        if (!exit_code_) exit_code_ = 128 + last_signal_;
        return;
      }
      WaitForSomething();
      if (progress_) give_up_at_.reset();
      ReadSignals();
      KeepTime();
    }
  }

  // The first reason decides the exit code.
  void End(int code, int signal) {
    if (!exit_code_) exit_code_ = code;
    if (alive_ == 0) return;
    if (!kill_at_) kill_at_ = After(kGraceSeconds);
    SendToAll(signal);
  }

  // Signals ended ranks as well: their groups may still have processes that
  // they have started.
  void SendToAll(int signal) {
    for (const Rank& rank : ranks_) {
      ::kill(detached_ ? -rank.pid : rank.pid, signal);
    }
  }

  // REQUIRES: all ranks have ended.
  void KillAndReapAll() {
    SendToAll(SIGKILL);
    for (const Rank& rank : ranks_) {
      while (::waitpid(rank.pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }

  const RunOptions& options_;
  const std::string name_;
  const bool detached_;
  RankOutput output_;
  int signals_ = -1;
  std::vector<Rank> ranks_;
  int alive_ = 0;
  int signals_received_ = 0;  // Signals to stop.
  int last_signal_ = 0;
  bool timed_out_ = false;
  bool progress_ = false;           // A reader took output.
  std::optional<Failure> failure_;  // The one that explains most, so far.
  std::optional<int> exit_code_;
  std::optional<Clock::time_point> timeout_;
  std::optional<Clock::time_point> kill_at_;
  std::optional<Clock::time_point> decide_at_;
  std::optional<Clock::time_point> give_up_at_;
};

}  // namespace

int Run(const RunOptions& options) { return Launcher(options).Run(); }

}  // namespace shardctl
