// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/ranks.h"

#include <signal.h>
#include <string.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "sdk/cli/commands/run.h"

namespace shardctl {

Clock::time_point After(double seconds) {
  constexpr double kLongest = 30 * 365.0 * 24 * 3600;
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(
             std::chrono::duration<double>(std::min(seconds, kLongest)));
}

std::string RandomHex(size_t bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string random(bytes, '\0');
  // Up to 256 bytes come at once, once the system has been up for a moment.
  while (::getrandom(random.data(), bytes, 0) < 0 && errno == EINTR) {
  }
  std::string text;
  for (const char c : random) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::optional<RankFailure> FailureOf(const RankEnd& end,
                                     const std::string& host) {
  const std::string rank = "rank " + std::to_string(end.rank) +
                           (host.empty() ? "" : " (host " + host + ")");
  const std::string status = std::to_string(end.status);
  if (end.code == CLD_EXITED) {
    if (end.status == 0) return std::nullopt;
    return RankFailure{rank + " ended with code " + status, end.status,
                       end.status == kFollowed ? 2 : 1};
  }
  // A program may abort() when it is told of a lost rank, so SIGABRT may be a
  // consequence; other signals are causes.
  return RankFailure{rank + " was ended by signal " + status + " (" +
                         ::strsignal(end.status) + ")",
                     128 + end.status, end.status == SIGABRT ? 1 : 0};
}

RankFailure FailureOf(const StartError& error) {
  return {error.text, error.code, kStartFailed};
}

OwnHostRanks::OwnHostRanks(const RankSetup& setup, RankOutput* output) {
  const auto error = ranks_.Start(setup, [&](int rank, int out, int err) {
    const std::string prefix =
        setup.detached ? "[" + std::to_string(rank) + "] " : std::string();
    output->Add(rank, prefix, out, err);
  });
  if (error) failures_.push_back(FailureOf(*error));
}

std::vector<RankFailure> OwnHostRanks::Advance() {
  std::vector<RankFailure> failures = std::exchange(failures_, {});
  for (const RankEnd& end : ranks_.TakeEnds()) {
    if (auto failure = FailureOf(end)) failures.push_back(std::move(*failure));
  }
  return failures;
}

}  // namespace shardctl
