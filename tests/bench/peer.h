// SPDX-License-Identifier: Apache-2.0
//
// Peer: another system's ranks, each a process of its own, that do one
// measured operation whenever they are told to, so that it can be interleaved
// with ours. A rank's program is called as `argv... RANK WORLD_SIZE FOLDER`
// (FOLDER: empty, shared, for meeting); it prints "peer: ready", then for every
// line on its stdin, the name of a variant, does that and prints one line
// "peer: " with the milliseconds it took, or "peer: unavailable". Whatever else
// it prints is passed over: the systems have their own to say on stdout. It
// exits 77, with a reason on stderr, when the system is not installed.

#ifndef SHARD_TESTS_BENCH_PEER_H_
#define SHARD_TESTS_BENCH_PEER_H_

#include <optional>
#include <string>
#include <vector>

namespace shard::bench {

class Peer {
 public:
  // Starts the ranks and waits until all are ready. nullopt when one has ended
  // before, or is not after ten minutes: some compile first.
  static std::optional<Peer> Start(const std::vector<std::string>& argv,
                                   int world_size);

  Peer(Peer&&) = default;
  Peer& operator=(Peer&&) = delete;
  // Ends the processes and removes their folder.
  ~Peer();

  // Does `variant` once on all ranks; the slowest rank's milliseconds. nullopt
  // when a rank has ended, has it not, or takes ten minutes.
  std::optional<double> Go(const std::string& variant);

 private:
  struct Process {
    int pid;
    int to;
    int from;
  };

  Peer() = default;
  // The next line of the protocol, without "peer: ".
  static std::optional<std::string> ReadAnswer(int fd);

  std::vector<Process> processes_;
  std::string folder_;
};

}  // namespace shard::bench

#endif  // SHARD_TESTS_BENCH_PEER_H_
