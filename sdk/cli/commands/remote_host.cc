// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/remote_host.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "sdk/cli/commands/process.h"
#include "sdk/cli/commands/run.h"

namespace shardctl {

namespace {

// The most that a shell may print before the agent starts.
constexpr size_t kMaxNoise = 1 << 16;

// Pings in the time of silence after which a host is lost.
constexpr double kPings = 4;

// The seconds for the command to end, once its output or its agent has.
constexpr double kCloseSeconds = 1;

std::string Seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g s", seconds);
  return text;
}

// The hint is for those who see the messages of ssh and of shells for the first
// time; these come before it.
std::string HowEnded(const std::string& program, const siginfo_t& end) {
  const std::string status = std::to_string(end.si_status);
  if (end.si_code != CLD_EXITED) {
    return program + " was ended by signal " + status;
  }
  return program + " ended with code " + status +
         (end.si_status == kNotFound
              ? "; shardctl is to be at the same path on all hosts, or at that "
                "of --shardctl"
              : "");
}

}  // namespace

RemoteHost::RemoteHost(const HostRanks& host,
                       const std::vector<std::string>& command,
                       const HostJob& job, double timeout, RankOutput* output)
    : host_(host),
      program_(command[0]),
      timeout_(timeout),
      output_(output),
      has_ended_(static_cast<size_t>(host.ranks)),
      alive_(host.ranks),
      answer_by_(After(timeout)) {
  const std::string prefix = "[" + host.name + ":";
  for (int r = host.first_rank; r < host.first_rank + host.ranks; ++r) {
    output->Add(r, prefix + std::to_string(r) + "] ", -1, -1);
  }
  SpawnOptions how;
  how.command = command;
  how.pipe_input = true;
  const Process process = Spawn(how);
  if (process.spawn_errno != 0) {
    done_ = true;  // Advance reports it.
    unsent_ = ::strerror(process.spawn_errno);
    return;
  }
  pid_ = process.pid;
  in_ = process.in;
  out_ = process.out;
  output->Add(kNoRank, "[" + host.name + "] ", -1, process.error);
  Send(Message::kJob, PackJob(job));
}

RemoteHost::~RemoteHost() { Close(); }

void RemoteHost::Advance(std::vector<RankFailure>* failures) {
  if (pid_ < 0 && alive_ > 0) {  // The command could not be started.
    alive_ = 0;
    failures->push_back({"cannot run '" + program_ + "' for host " +
                             host_.name + ": " + unsent_,
                         kCannotRun, kStartFailed});
  }
  if (closed()) return;
  Read(failures);
  Write();
  KeepTime(failures);
  NoticeEnd(failures);
}

void RemoteHost::Signal(int signal) {
  if (signal == SIGKILL && !killed_by_) killed_by_ = After(kGraceSeconds);
  Send(Message::kSignal, Packer().Int(signal).body());
}

void RemoteHost::Pause(bool pause) {
  Send(pause ? Message::kPause : Message::kGoOn);
}

void RemoteHost::AddToPoll(std::vector<pollfd>* entries) const {
  if (out_ >= 0) entries->push_back({out_, POLLIN, 0});
  if (in_ >= 0 && !unsent_.empty()) entries->push_back({in_, POLLOUT, 0});
}

std::optional<Clock::time_point> RemoteHost::NextTime() const {
  std::optional<Clock::time_point> next;
  if (closed()) return next;
  for (const auto& at : {answer_by_, ping_at_, killed_by_, close_by_}) {
    if (at && (!next || *at < *next)) next = at;
  }
  return next;
}

void RemoteHost::Send(Message message, std::string_view body) {
  if (in_ < 0) return;
  unsent_ += Frame(message, body);
  Write();
}

void RemoteHost::Write() {
  while (in_ >= 0 && !unsent_.empty()) {
    const ssize_t size = ::write(in_, unsent_.data(), unsent_.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    if (size < 0) {  // The command does not read any more: it is at its end.
      CloseInput();
      return;
    }
    unsent_.erase(0, static_cast<size_t>(size));
  }
}

void RemoteHost::Read(std::vector<RankFailure>* failures) {
  char buffer[65536];
  // A host that prints without end must not keep the others waiting.
  for (int i = 0; i < 16 && out_ >= 0; ++i) {
    const ssize_t size = ::read(out_, buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) break;
    if (size <= 0) {
      ::close(out_);
      out_ = -1;
      if (!close_by_) close_by_ = After(kCloseSeconds);
      break;
    }
    if (done_) continue;
    std::string_view bytes(buffer, static_cast<size_t>(size));
    if (!greeted_) bytes = TakeNoise(bytes);
    if (noise_bytes_ > kMaxNoise) {
      return Lose("'" + program_ + "' prints other text than shardctl's agent",
                  failures);
    }
    if (!greeted_) continue;
    answer_by_.reset();
    frames_.Feed(bytes);
    Message message;
    std::string_view body;
    while (!done_ && frames_.Next(&message, &body)) {
      Take(message, body, failures);
    }
    if (frames_.broken()) {
      return Lose("its agent sent what is no message of shardctl", failures);
    }
  }
}

std::string_view RemoteHost::TakeNoise(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    noise_ += bytes.substr(0, end);
    noise_bytes_ += end + 1;
    if (end == bytes.size() || noise_bytes_ > kMaxNoise) return "";
    bytes.remove_prefix(end + 1);
    greeted_ = noise_ == kGreeting;
    if (!greeted_ && !noise_.empty()) {
      output_->Say("host " + host_.name + " says: " + noise_);
    }
    noise_.clear();
    if (!greeted_) continue;
    ping_at_ = After(timeout_ / kPings);
    return bytes;
  }
  return "";
}

void RemoteHost::Take(Message message, std::string_view body,
                      std::vector<RankFailure>* failures) {
  Unpacker unpack(body);
  const int first = host_.first_rank;
  const int last = first + host_.ranks - 1;
  switch (message) {
    case Message::kPong:
      return;
    case Message::kOutput: {
      const int rank = unpack.Int(first, last);
      const bool error = unpack.Int(0, 1) != 0;
      const std::string_view bytes = unpack.Text();
      if (!unpack.AtEnd()) break;
      output_->Feed(rank, error, bytes);
      return;
    }
    case Message::kEnded: {
      RankEnd end{};
      end.rank = unpack.Int(first, last);
      end.code = unpack.Int(CLD_EXITED, CLD_DUMPED);
      end.status = unpack.Int(0, 255);
      if (!unpack.AtEnd()) break;
      const auto index = static_cast<size_t>(end.rank - first);
      if (has_ended_[index]) break;
      has_ended_[index] = true;
      --alive_;
      if (auto failure = FailureOf(end, host_.name)) {
        failures->push_back(std::move(*failure));
      }
      return;
    }
    case Message::kNotStarted: {
      StartError error;
      error.code = unpack.Int(1, 255);
      error.text = "host " + host_.name + ": ";
      error.text += unpack.Text();
      const int rank = unpack.Int(first, last);
      if (!unpack.AtEnd()) break;
      for (int r = rank; r <= last; ++r) {
        const auto index = static_cast<size_t>(r - first);
        if (!has_ended_[index]) --alive_;
        has_ended_[index] = true;
      }
      failures->push_back(FailureOf(error));
      return;
    }
    case Message::kDone:
      if (alive_ > 0 || !body.empty()) break;
      done_ = true;
      // The agent ends when its stdin does, and the command with it.
      CloseInput();
      close_by_ = After(kCloseSeconds);
      return;
    default:
      break;
  }
  Lose("its agent sent a wrong message", failures);
}

void RemoteHost::KeepTime(std::vector<RankFailure>* failures) {
  const auto now = Clock::now();
  if (done_) return;
  if (killed_by_ && now >= *killed_by_) {
    return Lose("its agent does not say that the ranks have ended", failures);
  }
  if (answer_by_ && now >= *answer_by_) {
    return Lose(greeted_ ? "there was no sign of life for " + Seconds(timeout_)
                         : "it did not answer within " + Seconds(timeout_),
                failures);
  }
  if (ping_at_ && now >= *ping_at_) {
    Send(Message::kPing);
    // Not since the last message: this process may have been stopped itself.
    if (!answer_by_) answer_by_ = After(timeout_);
    ping_at_ = After(timeout_ / kPings);
  }
}

void RemoteHost::Lose(const std::string& why,
                      std::vector<RankFailure>* failures) {
  if (done_) return;
  done_ = true;
  if (alive_ > 0) {
    failures->push_back({"host " + host_.name + " is lost: " + why, kHostLost,
                         /*order=*/0});
  }
  alive_ = 0;
  CloseInput();
  // An agent now ends its ranks, which takes as long as they may take.
  const bool may_have_ranks = greeted_ && !killed_by_;
  close_by_ = After(kCloseSeconds + (may_have_ranks ? kGraceSeconds : 0));
}

void RemoteHost::NoticeEnd(std::vector<RankFailure>* failures) {
  siginfo_t end{};  // si_pid stays 0 when it has not ended.
  const bool has_ended = ::waitid(P_PID, static_cast<id_t>(pid_), &end,
                                  WEXITED | WNOHANG | WNOWAIT) == 0 &&
                         end.si_pid == pid_;
  if (has_ended && !close_by_) close_by_ = After(kCloseSeconds);
  // A process that the command left behind may hold its output open.
  const bool is_late = close_by_ && Clock::now() >= *close_by_;
  if (!done_ && (is_late || (has_ended && out_ < 0))) {
    output_->ReadNow();  // The command's own messages come first.
    Lose(has_ended ? HowEnded(program_, end)
                   : program_ + " has closed its output",
         failures);
  }
  if (done_ && (is_late || has_ended)) Close();
}

void RemoteHost::CloseInput() {
  if (in_ >= 0) ::close(in_);
  in_ = -1;
}

void RemoteHost::Close() {
  CloseInput();
  if (out_ >= 0) ::close(out_);
  out_ = -1;
  if (pid_ < 0) return;
  ::kill(-pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

}  // namespace shardctl
