// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "sdk/cli/deferred_signals.h"
#include "sdk/cli/text.h"

namespace shardctl {

namespace {

constexpr int kBarCells = 20;

int ErrorColumns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
    return 80;
  }
  return size.ws_col;
}

}  // namespace

std::string BarText(const std::string& what, uint64_t done, uint64_t total,
                    double seconds, int columns) {
  done = std::min(done, total);
  const double part =
      total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total);
  char percent[16];
  // Rounded down: 100% is the end.
  std::snprintf(percent, sizeof(percent), " %3d%%",
                static_cast<int>(part * 100));
  const int cells = static_cast<int>(part * kBarCells);
  std::vector<std::string> parts = {
      what + percent,
      " [" + std::string(static_cast<size_t>(cells), '#') +
          std::string(static_cast<size_t>(kBarCells - cells), ' ') + "]",
      "  " + BytesText(done) + " of " + BytesText(total)};
  if (seconds > 0 && done > 0) {
    const double rate = static_cast<double>(done) / seconds;
    parts.push_back(", " + BytesText(static_cast<uint64_t>(rate)) + "/s");
    parts.push_back(
        ", " + SecondsText(static_cast<double>(total - done) / rate) + " left");
  }
  const auto width = [&] {
    size_t sum = 0;
    for (const std::string& text : parts) sum += text.size();
    return sum;
  };
  // The last column stays free: a terminal would wrap.
  const auto room = static_cast<size_t>(std::max(1, columns - 1));
  if (width() > room) parts[1].clear();
  while (parts.size() > 1 && width() > room) parts.pop_back();
  std::string text;
  for (const std::string& more : parts) text += more;
  return text.substr(0, room);
}

Progress::Progress(const std::string& what)
    : what_(what),
      screen_(STDOUT_FILENO, STDERR_FILENO),
      next_(begin_ + std::chrono::milliseconds(200)) {}

Progress::~Progress() {
  if (screen_.IsTerminal(true)) screen_.Bar(true, "", "");
}

void Progress::Set(uint64_t done, uint64_t total) {
  if (!screen_.IsTerminal(true)) return;
  const auto now = Clock::now();
  if (now < next_) return;
  next_ = now + std::chrono::milliseconds(100);
  const std::chrono::duration<double> seconds = now - begin_;
  screen_.Bar(true, "",
              BarText(what_, done, total, seconds.count(), ErrorColumns()));
}

int32_t Progress::Update(uint64_t done, uint64_t total, void* progress) {
  static_cast<Progress*>(progress)->Set(done, total);
  return DeferredSignals::HaveCome() ? 1 : 0;
}

}  // namespace shardctl
