// SPDX-License-Identifier: Apache-2.0
//
// Writes the ranks' output, line by line, to shardctl's own streams.
//
// A LineSplitter makes whole lines of one rank's stream; a Screen writes the
// lines of all of them, each in one piece, with "[rank] " in front. On a
// terminal, a line that rank 0 redraws with '\r' (a progress bar) stays the
// last one on the screen, below the output of the others.

#ifndef SHARD_SDK_CLI_OUTPUT_H_
#define SHARD_SDK_CLI_OUTPUT_H_

#include <functional>
#include <string>
#include <string_view>

namespace shardctl {

class LineSplitter {
 public:
  using LineSink = std::function<void(std::string_view line)>;

  // With `redraws`, '\r' begins the line anew; else it is a byte like others.
  explicit LineSplitter(bool redraws) : redraws_(redraws) {}

  // Calls `sink` with each line that is complete, without its '\n'.
  void Feed(std::string_view bytes, const LineSink& sink);

  // Calls `sink` with an incomplete last line, if there is one.
  void Finish(const LineSink& sink);

  // Returns the part of the incomplete line that a terminal would show, if it
  // was redrawn with '\r'; else "".
  std::string_view bar() const;

 private:
  // A longer line is broken, so that memory stays bounded.
  static constexpr size_t kMaxLine = size_t{1} << 20;

  void End(const LineSink& sink);

  const bool redraws_;
  bool redrawn_ = false;  // A '\r' came since the last '\n'.
  std::string line_;      // Since the last '\r' or '\n'.
  std::string previous_;  // Between the last two '\r'.
};

class Screen {
 public:
  // Writes text to stdout, or to stderr.
  using Sink = std::function<void(bool error, std::string_view text)>;

  // Writes to descriptor `out` (stdout) and `error` (stderr) through `sink`, by
  // default WriteAll. REQUIRES: SIGPIPE is ignored.
  Screen(int out, int error, Sink sink = nullptr);

  bool IsTerminal(bool error) const {
    return error ? error_is_terminal_ : out_is_terminal_;
  }

  void Line(bool error, std::string_view prefix, std::string_view line);

  // Shows a bar below all lines, or none. REQUIRES: IsTerminal(error).
  void Bar(bool error, std::string_view prefix, std::string_view bar);

 private:
  const Sink sink_;
  const bool out_is_terminal_;
  const bool error_is_terminal_;
  std::string bar_;  // On the screen now, with its prefix.
  bool bar_on_error_ = false;
};

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_OUTPUT_H_
