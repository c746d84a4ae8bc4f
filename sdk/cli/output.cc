// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/output.h"

#include <unistd.h>

#include <utility>

#include "sdk/cli/output_queue.h"

namespace shardctl {

namespace {

// Returns to the first column and erases the line.
constexpr std::string_view kErase = "\r\x1b[K";

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

Screen::Screen(int out, int error, Sink sink)
    : sink_(sink != nullptr
                ? std::move(sink)
                : [out, error](
                      bool to_error,
                      std::string_view
                          text) { WriteAll(to_error ? error : out, text); }),
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
  sink_(error, text);
  if (over_bar) sink_(bar_on_error_, bar_);
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
  sink_(error, std::string(kErase) + text);
}

}  // namespace shardctl
