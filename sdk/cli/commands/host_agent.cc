// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/host_agent.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/cli/commands/host_wire.h"
#include "sdk/cli/commands/local_ranks.h"
#include "sdk/cli/commands/ranks.h"
#include "sdk/cli/commands/run.h"
#include "sdk/cli/output_queue.h"

namespace shardctl {

namespace {

// The seconds for the job to come. It is sent before the agent starts.
constexpr double kJobSeconds = 60;

int Complain(const std::string& text) {
  const std::string line = "shardctl agent: " + text + "\n";
  std::fputs(line.c_str(), stderr);
  return kCannotRun;
}

class Agent {
 public:
  Agent() : to_launcher_(STDOUT_FILENO) {}

  int Run() {
    sigset_t signals;
    ::sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
      ::sigaddset(&signals, signal);
    }
    ::sigprocmask(SIG_BLOCK, &signals, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
    // The end of the launcher comes by stdin, which leaves time to end the
    // processes that ranks have started.
    ::prctl(PR_SET_PDEATHSIG, 0);
    signals_ = ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals_ < 0)
      return Complain(std::string("signalfd: ") + ::strerror(errno));
    // A shell may have left a line without an end.
    to_launcher_.Append("\n" + std::string(kGreeting) + "\n");
    silent_at_ = After(kJobSeconds);
    while (!has_job_) {
      Wait();
      ReadSignals();
      ReadMessages();
      if (kill_at_) {
        return Complain(
            "no job came by stdin: `shardctl run --hosts` starts this program, "
            "through a command that passes stdin on, as `docker exec -i`");
      }
    }
    while (ranks_.alive() > 0) {
      Wait();
      ReadSignals();
      ReadMessages();
      ReadOutput(/*all=*/false);
      SendEnds();
      KeepTime();
    }
    ranks_.KillAndReap();
    if (is_alone_) return kHostLost;
    ReadOutput(/*all=*/true);
    Send(Message::kDone);
    // The launcher takes all of it, and then closes stdin.
    while (!is_alone_) {
      Wait();
      ReadSignals();
      ReadMessages();
      KeepTime();
    }
    return 0;
  }

 private:
  // One of the two pipes of a rank.
  struct Pipe {
    int rank;
    bool error;
    int fd;
  };

  void Send(Message message, std::string_view body = "") {
    if (!is_alone_) to_launcher_.Append(Frame(message, body));
  }

  bool may_read_output() const { return !paused_ && !to_launcher_.full(); }

  // Waits for a message, a signal, output, room for it, or the next time limit.
  void Wait() {
    std::vector<pollfd> entries{{signals_, POLLIN, 0},
                                {to_launcher_.progress_fd(), POLLIN, 0}};
    if (!is_alone_) entries.push_back({STDIN_FILENO, POLLIN, 0});
    if (may_read_output()) {
      for (const Pipe& pipe : pipes_) entries.push_back({pipe.fd, POLLIN, 0});
    }
    int millis = -1;
    for (const auto& at : {silent_at_, kill_at_}) {
      if (!at) continue;
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(*at - Clock::now());
      const int wait =
          static_cast<int>(std::clamp<int64_t>(left.count(), 0, 3600 * 1000));
      millis = millis < 0 ? wait : std::min(millis, wait);
    }
    ::poll(entries.data(), entries.size(), millis);
    to_launcher_.TakeProgress();
    if (!silent_at_ || Clock::now() < *silent_at_) return;
    Complain("`shardctl run` is silent; ending the ranks of this host");
    BeAlone();
  }

  void ReadSignals() {
    signalfd_siginfo info;
    while (::read(signals_, &info, sizeof(info)) == sizeof(info)) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal != SIGCHLD) EndRanks(signal);
    }
  }

  void ReadMessages() {
    if (is_alone_) return;
    pollfd entry{STDIN_FILENO, POLLIN, 0};
    while (!is_alone_ && ::poll(&entry, 1, 0) == 1) {
      char buffer[65536];
      const ssize_t size = ::read(STDIN_FILENO, buffer, sizeof(buffer));
      if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (size <= 0) return BeAlone();
      if (has_job_) silent_at_ = After(silence_seconds_);
      frames_.Feed(std::string_view(buffer, static_cast<size_t>(size)));
      Message message;
      std::string_view body;
      while (!is_alone_ && frames_.Next(&message, &body)) Take(message, body);
      if (frames_.broken()) BeAlone();
    }
  }

  void Take(Message message, std::string_view body) {
    switch (message) {
      case Message::kJob:
        if (!has_job_) return StartRanks(body);
        break;
      case Message::kSignal: {
        Unpacker unpack(body);
        const int signal = unpack.Int(1, SIGRTMAX);
        if (!unpack.AtEnd()) break;
        return ranks_.Signal(signal);
      }
      case Message::kPause:
      case Message::kGoOn:
        paused_ = message == Message::kPause;
        return;
      case Message::kPing:
        return Send(Message::kPong);
      default:
        break;
    }
    BeAlone();
  }

  void StartRanks(std::string_view body) {
    const auto job = UnpackJob(body);
    if (!job) return BeAlone();
    has_job_ = true;
    silence_seconds_ = job->silence_seconds;
    silent_at_ = After(silence_seconds_);
    const RankSetup& setup = job->setup;
    std::optional<StartError> error;
    int next = setup.first_rank;
    if (::chdir(job->folder.c_str()) != 0) {
      error = StartError{kCannotRun,
                         "cannot enter the folder '" + job->folder + "' (" +
                             ::strerror(errno) +
                             "); start shardctl in one that all hosts have"};
    } else {
      error = ranks_.Start(setup, [&](int rank, int out, int err) {
        pipes_.push_back({rank, false, out});
        pipes_.push_back({rank, true, err});
        next = rank + 1;
      });
    }
    if (!error) return;
    Send(Message::kNotStarted,
         Packer().Int(error->code).Text(error->text).Int(next).body());
  }

  void ReadOutput(bool all) {
    char buffer[65536];
    for (Pipe& pipe : pipes_) {
      // A rank that prints without end must not keep the others waiting.
      for (int i = 0; i < 16 && pipe.fd >= 0; ++i) {
        if (!all && !may_read_output()) return;
        const ssize_t size = ::read(pipe.fd, buffer, sizeof(buffer));
        if (size < 0 && errno == EINTR) continue;
        if (size < 0 && errno == EAGAIN) break;
        if (size <= 0) {
          ::close(pipe.fd);
          pipe.fd = -1;
          break;
        }
        Send(Message::kOutput, Packer()
                                   .Int(pipe.rank)
                                   .Int(pipe.error ? 1 : 0)
                                   .Text({buffer, static_cast<size_t>(size)})
                                   .body());
      }
    }
  }

  void SendEnds() {
    const std::vector<RankEnd> ends = ranks_.TakeEnds();
    // The last output of a rank comes before its end.
    if (!ends.empty()) ReadOutput(/*all=*/true);
    for (const RankEnd& end : ends) {
      Send(Message::kEnded,
           Packer().Int(end.rank).Int(end.code).Int(end.status).body());
    }
  }

  // Ends the ranks: nobody is there who could.
  void BeAlone() {
    if (is_alone_) return;
    is_alone_ = true;
    silent_at_.reset();
    EndRanks(SIGTERM);
  }

  // The second time kills.
  void EndRanks(int signal) {
    ranks_.Signal(kill_at_ ? SIGKILL : signal);
    if (!kill_at_) kill_at_ = After(kGraceSeconds);
  }

  void KeepTime() {
    if (!kill_at_ || Clock::now() < *kill_at_) return;
    // Again and again, though once is enough.
    kill_at_ = After(kGraceSeconds);
    ranks_.Signal(SIGKILL);
  }

  OutputQueue to_launcher_;
  FrameReader frames_;
  LocalRanks ranks_;
  std::vector<Pipe> pipes_;
  int signals_ = -1;
  double silence_seconds_ = 0;
  bool has_job_ = false;
  bool paused_ = false;
  bool is_alone_ = false;  // Without a launcher.
  std::optional<Clock::time_point> silent_at_;
  std::optional<Clock::time_point> kill_at_;
};

}  // namespace

int RunAgent() { return Agent().Run(); }

}  // namespace shardctl
