// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/rank_output.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace shardctl {

namespace {

// Returns whether two descriptors are the same terminal, pipe or file.
bool AreSame(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

}  // namespace

RankOutput::RankOutput()
    // One queue for both, where their order is seen.
    : one_queue_(AreSame(STDOUT_FILENO, STDERR_FILENO)),
      out_queue_(STDOUT_FILENO),
      error_queue_(STDERR_FILENO),
      screen_(STDOUT_FILENO, STDERR_FILENO,
              [this](bool error, std::string_view text) {
                Queue(error).Append(text);
              }) {}

void RankOutput::Add(int rank, const std::string& prefix, int out, int error) {
  for (const bool is_error : {false, true}) {
    pipes_.push_back({rank, is_error, is_error ? error : out, prefix,
                      LineSplitter(rank == 0 && IsTerminal(is_error))});
  }
}

void RankOutput::AddToPoll(std::vector<pollfd>* entries) const {
  for (const bool error : {false, true}) {
    const OutputQueue& queue = Queue(error);
    entries->push_back({queue.progress_fd(), POLLIN, 0});
    // The pipes of ranks fill, and they wait.
    if (queue.full()) continue;
    for (const Pipe& pipe : pipes_) {
      if (pipe.error == error) entries->push_back({pipe.fd, POLLIN, 0});
    }
  }
}

void RankOutput::ReadAll(bool as_queued) {
  for (Pipe& pipe : pipes_) Read(&pipe, as_queued);
}

void RankOutput::Read(Pipe* pipe, bool as_queued) {
  char buffer[65536];
  // A rank that prints without end must not keep the others waiting.
  for (int i = 0; i < 16 && pipe->fd >= 0; ++i) {
    if (as_queued && Queue(pipe->error).full()) break;
    const ssize_t size = ::read(pipe->fd, buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) break;
    if (size <= 0) {
      End(pipe);
      break;
    }
    Take(pipe, std::string_view(buffer, static_cast<size_t>(size)));
  }
}

void RankOutput::Feed(int rank, bool error, std::string_view bytes) {
  for (Pipe& pipe : pipes_) {
    if (pipe.rank == rank && pipe.error == error) return Take(&pipe, bytes);
  }
}

void RankOutput::Take(Pipe* pipe, std::string_view bytes) {
  LineSplitter& lines = pipe->lines;
  lines.Feed(bytes, [&](std::string_view line) {
    // Remove a bar that has become this line.
    if (lines.bar().size() > 0) screen_.Bar(pipe->error, "", "");
    screen_.Line(pipe->error, pipe->prefix, line);
  });
  if (pipe->rank == 0 && IsTerminal(pipe->error)) {
    screen_.Bar(pipe->error, pipe->prefix, lines.bar());
  }
}

void RankOutput::End(Pipe* pipe) {
  if (!pipe->lines.bar().empty()) screen_.Bar(pipe->error, "", "");
  pipe->lines.Finish([&](std::string_view line) {
    screen_.Line(pipe->error, pipe->prefix, line);
  });
  if (pipe->fd >= 0) ::close(pipe->fd);
  pipe->fd = -1;
}

void RankOutput::Finish() {
  ReadNow();
  for (Pipe& pipe : pipes_) End(&pipe);
  pipes_.clear();
}

bool RankOutput::TakeProgress() {
  const bool out = out_queue_.TakeProgress();
  const bool error = error_queue_.TakeProgress();
  return out || error;
}

bool RankOutput::AllIsWritten() {
  // The last write may have failed too: report the lost output before the end.
  if (out_queue_.empty()) NoticeLostOutput();
  return out_queue_.empty() && error_queue_.empty();
}

void RankOutput::NoticeLostOutput() {
  const int error = out_queue_.error();
  if (error == 0 || output_is_lost_) return;
  output_is_lost_ = true;
  Say(std::string("cannot write to stdout: ") + ::strerror(error) +
      "; lines of the ranks are lost, and the ranks go on");
}

}  // namespace shardctl
