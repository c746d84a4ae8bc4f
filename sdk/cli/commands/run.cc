// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/run.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sdk/cli/commands/rank_output.h"
#include "sdk/cli/commands/ranks.h"
#include "sdk/cli/commands/remote_ranks.h"

namespace shardctl {

namespace {

// Ranks of an earlier start, which may be late, must not meet those of a later
// one.
std::string NameOfStart(const std::string& name, int restart) {
  return restart == 0 ? name : name + "-r" + std::to_string(restart);
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
        name_(options.name.empty() ? "shardctl-" + RandomHex(8) : options.name),
        detached_(options.ranks > 1 || !options.hosts.empty()),
        meeting_(options.hosts.empty() ? Meeting() : ChooseMeeting(options)) {}

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
    for (int restart = 0; !exit_code_; ++restart) {
      RunOnce(restart);
      if (restart == options_.restarts || !MayRestart()) break;
      output_.Say("restart " + std::to_string(restart + 1) + " of " +
                  std::to_string(options_.restarts));
      exit_code_.reset();
      failure_.reset();
    }
    Drain();
    return exit_code_.value_or(0);
  }

 private:
  void RunOnce(int restart) {
    if (options_.hosts.empty()) {
      ranks_ = std::make_unique<OwnHostRanks>(OwnSetup(restart), &output_);
    } else {
      ranks_ = std::make_unique<RemoteRanks>(options_, meeting_, name_, restart,
                                             Columns(), &output_);
    }
    NoticeFailures();
    while (!ranks_->done()) {
      WaitForSomething();
      ReadSignals();
      output_.Read();
      NoticeFailures();
      output_.NoticeLostOutput();
      KeepTime();
    }
    ranks_->Clear();
    // The last output of an ended rank is in its pipes by now.
    output_.Finish();
    ranks_.reset();
    kill_at_.reset();
    decide_at_.reset();
  }

  bool MayRestart() const {
    return failure_ && failure_->order != kStartFailed &&
           signals_received_ == 0 && !timed_out_;
  }

  // Returns the width of the terminal for rank 0's lines; 0: there is none.
  int Columns() const {
    return output_.IsTerminal(/*error=*/false) ? TerminalColumns() : 0;
  }

  RankSetup OwnSetup(int restart) const {
    RankSetup setup;
    setup.ranks = options_.ranks;
    setup.world_size = options_.ranks;
    setup.detached = detached_;
    setup.command = options_.command;
    setup.environment = options_.environment;
    setup.environment.emplace_back("SHARD_RENDEZVOUS",
                                   NameOfStart(name_, restart));
    setup.environment.emplace_back("SHARD_RESTART_COUNT",
                                   std::to_string(restart));
    if (const int columns = Columns(); columns > 0) {
      constexpr int kPrefix = 4;  // "[0] "
      setup.columns = std::max(20, columns - (detached_ ? kPrefix : 0));
    }
    setup.binding = options_.binding;
    return setup;
  }

  // Waits for a signal, output, room for output, or the next time limit.
  void WaitForSomething() {
    std::vector<pollfd> entries{{signals_, POLLIN, 0}};
    output_.AddToPoll(&entries);
    std::optional<Clock::time_point> next;
    if (ranks_ != nullptr) {
      ranks_->AddToPoll(&entries);
      next = ranks_->NextTime();
    }
    int millis = -1;
    for (const auto& at : {timeout_, kill_at_, decide_at_, give_up_at_, next}) {
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
      if (signal == SIGCHLD) continue;  // Advance handles it.
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

  void NoticeFailures() {
    for (RankFailure& failure : ranks_->Advance()) {
      const bool is_final = failure.order == kStartFailed;
      if (!failure_ || failure.order < failure_->order) {
        failure_ = std::move(failure);
      }
      if (is_final) {
        Decide();
      } else if (!decide_at_) {
        decide_at_ = After(kSettleSeconds);
      }
    }
    if (failure_ && ranks_->alive() == 0) Decide();
  }

  // Says which rank failed, and ends the others. REQUIRES: failure_.
  void Decide() {
    decide_at_.reset();
    if (exit_code_) return;
    // The rank's last output comes before our message.
    output_.ReadNow();
    output_.Say(failure_->text + (alive() > 0 ? "; ending the others" : ""));
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
                    (alive() > 0 ? " s; ending the ranks"
                                 : " s: its output is not read"));
        End(kTimedOut, SIGTERM);
      }
    }
    if (kill_at_ && now >= *kill_at_) {
      kill_at_.reset();
      if (alive() > 0) {
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
    if (alive() == 0) return;
    if (!kill_at_) kill_at_ = After(kGraceSeconds);
    SendToAll(signal);
  }

  int alive() const { return ranks_ == nullptr ? 0 : ranks_->alive(); }

  void SendToAll(int signal) {
    if (ranks_ != nullptr) ranks_->Signal(signal);
  }

  const RunOptions& options_;
  const std::string name_;
  const bool detached_;
  const Meeting meeting_;
  RankOutput output_;
  int signals_ = -1;
  std::unique_ptr<Ranks> ranks_;  // Of the start in progress.
  int signals_received_ = 0;      // Signals to stop.
  int last_signal_ = 0;
  bool timed_out_ = false;
  bool progress_ = false;  // A reader took output.
  // The one that explains most, of this start, so far.
  std::optional<RankFailure> failure_;
  std::optional<int> exit_code_;
  std::optional<Clock::time_point> timeout_;
  std::optional<Clock::time_point> kill_at_;
  std::optional<Clock::time_point> decide_at_;
  std::optional<Clock::time_point> give_up_at_;
};

}  // namespace

int Run(const RunOptions& options) { return Launcher(options).Run(); }

}  // namespace shardctl
