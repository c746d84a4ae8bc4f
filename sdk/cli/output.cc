// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace shardctl {

namespace {

// Back to the first column, and erase the line.
constexpr std::string_view kErase = "\r\x1b[K";

void WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = ::write(fd, bytes.data(), bytes.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      // Whoever shares the file with us has made it non-blocking: a slow reader
      // slows us down, as it would otherwise, and loses nothing.
      pollfd entry{fd, POLLOUT, 0};
      ::poll(&entry, 1, -1);
      continue;
    }
    if (size < 0) return;  // Nobody reads; the ranks go on.
    bytes.remove_prefix(static_cast<size_t>(size));
  }
}

}  // namespace

void LineSplitter::Feed(std::string_view bytes, const LineSink& sink) {
  for (const char c : bytes) {
    if (c == '\n') {
      End(sink);
    } else if (c == '\r' && redraws_) {
      redrawn_ = true;
      if (!line_.empty()) previous_.swap(line_);
      line_.clear();
    } else {
      line_.push_back(c);
      if (line_.size() >= kMaxLine) End(sink);
    }
  }
}

void LineSplitter::End(const LineSink& sink) {
  // "done\r\n" shows "done".
  sink(line_.empty() && redrawn_ ? previous_ : line_);
  line_.clear();
  previous_.clear();
  redrawn_ = false;
}

void LineSplitter::Finish(const LineSink& sink) {
  if (!line_.empty() || !previous_.empty()) End(sink);
}

std::string_view LineSplitter::bar() const {
  if (!redrawn_) return "";
  return line_.empty() ? previous_ : line_;
}

Screen::Screen(int out, int error)
    : out_(out),
      error_(error),
      out_is_terminal_(::isatty(out) == 1),
      error_is_terminal_(::isatty(error) == 1) {}

void Screen::Line(bool error, std::string_view prefix, std::string_view line) {
  std::string text;
  const bool over_bar = IsTerminal(error) && !bar_.empty();
  if (over_bar) text += kErase;
  text += prefix;
  text += line;
  text += '\n';
  // One write, so that other writers to the same file cannot come between.
  WriteAll(Descriptor(error), text);
  if (over_bar) WriteAll(Descriptor(bar_on_error_), bar_);
}

void Screen::Bar(bool error, std::string_view prefix, std::string_view bar) {
  std::string text;
  if (!bar.empty()) {
    text += prefix;
    text += bar;
  }
  if (text == bar_) return;
  bar_ = text;
  bar_on_error_ = error;
  WriteAll(Descriptor(error), std::string(kErase) + text);
}

}  // namespace shardctl
