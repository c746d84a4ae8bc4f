// SPDX-License-Identifier: Apache-2.0
//
// Peer: the ranks of another system, each in a process of its own. They make
// one measured operation per command, so that their operations can be
// interleaved with libshard's. A rank's program is called as `argv... RANK
// WORLD_SIZE FOLDER` (FOLDER: empty, shared, for meeting). The program prints
// "peer: ready". For every line on its stdin, the name of a variant, it then
// runs that variant and prints one line "peer: " with the milliseconds that the
// variant took, or "peer: unavailable". All its other output is ignored,
// because the systems print messages of their own. The program exits 77, with a
// reason on stderr, when the system is not installed.

#ifndef SHARD_TESTS_BENCH_PEER_H_
#define SHARD_TESTS_BENCH_PEER_H_

#include <optional>
#include <string>
#include <vector>

namespace shard::bench {

class Peer {
 public:
  // Starts the ranks and waits until all are ready. Returns nullopt when one
  // ends before it is ready, or is not ready after ten minutes: some systems
  // compile first.
  static std::optional<Peer> Start(const std::vector<std::string>& argv,
                                   int world_size);

  Peer(Peer&&) = default;
  Peer& operator=(Peer&&) = delete;
  // Ends the processes and removes their folder.
  ~Peer();

  // Runs `variant` once on all ranks and returns the slowest rank's
  // milliseconds. Returns nullopt when a rank has ended, does not have the
  // variant, or takes ten minutes.
  std::optional<double> Go(const std::string& variant);

 private:
  struct Process {
    int pid;
    int to;
    int from;
  };

  Peer() = default;
  // Returns the next line of the protocol, without "peer: ".
  static std::optional<std::string> ReadAnswer(int fd);

  std::vector<Process> processes_;
  std::string folder_;
};

}  // namespace shard::bench

#endif  // SHARD_TESTS_BENCH_PEER_H_
