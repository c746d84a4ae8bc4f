// SPDX-License-Identifier: Apache-2.0
//
// The messages between `shardctl run --hosts` and its agent on each host, over
// the agent's stdin and stdout.
//
// The agent first writes kGreeting, a line of its own: a shell may print text
// before it. All that follows, both ways, are frames:
//
//   4 bytes   size of the body, little-endian
//   1 byte    Message
//   body      integers of 8 bytes, little-endian, and texts: size, bytes
//
// A program's arguments travel in a frame, so no shell ever reads them.

#ifndef SHARD_SDK_CLI_COMMANDS_HOST_WIRE_H_
#define SHARD_SDK_CLI_COMMANDS_HOST_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sdk/cli/commands/local_ranks.h"

namespace shardctl {

// The number is that of the messages' form.
inline constexpr std::string_view kGreeting = "SHARDCTL-AGENT 1";

enum class Message : uint8_t {
  // To the agent.
  kJob = 1,     // HostJob
  kSignal = 2,  // The signal, for all ranks of the host.
  kPause = 3,   // Read no more of the ranks' output...
  kGoOn = 4,    // ... until now.
  kPing = 5,
  // From the agent.
  kPong = 16,
  kOutput = 17,      // The rank, 1 for stderr or 0, bytes.
  kEnded = 18,       // RankEnd
  kNotStarted = 19,  // StartError; no further rank starts.
  kDone = 20,        // All ranks of the host have ended; the last message.
};

// The ranks that an agent starts.
struct HostJob {
  RankSetup setup;
  std::string folder;  // The working directory.
  double silence_seconds =
      0;  // Without a message, after which ranks are ended.
};

// Makes the body of a message.
class Packer {
 public:
  Packer& Int(int64_t value);
  Packer& Text(std::string_view text);
  const std::string& body() const { return body_; }

 private:
  std::string body_;
};

// Reads the body of a message. A read beyond its end returns 0 or "", and
// ok() false from then on.
class Unpacker {
 public:
  explicit Unpacker(std::string_view body) : rest_(body) {}
  int64_t Int();
  // Reads an integer that must be between `least` and `most`.
  int Int(int64_t least, int64_t most);
  std::string_view Text();
  bool ok() const { return ok_; }
  // Returns whether the body had what was read and no more.
  bool AtEnd() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

std::string Frame(Message message, std::string_view body = "");

std::string PackJob(const HostJob& job);
std::optional<HostJob> UnpackJob(std::string_view body);

// Makes frames of a stream.
class FrameReader {
 public:
  // Longer bodies are no messages of shardctl. The arguments of a program have
  // at most 6 MiB, and so has its environment.
  static constexpr size_t kMaxBody = size_t{16} << 20;

  void Feed(std::string_view bytes);

  // Returns whether there was a whole frame, and takes it. `body` is valid
  // until the next Feed.
  bool Next(Message* message, std::string_view* body);

  // Returns whether the stream has no frames of shardctl.
  bool broken() const { return broken_; }

 private:
  std::string bytes_;
  size_t taken_ = 0;  // The first bytes, of frames that Next returned.
  bool broken_ = false;
};

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_HOST_WIRE_H_
