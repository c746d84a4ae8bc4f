// SPDX-License-Identifier: Apache-2.0
//
// `shardctl run --bind`: which CPUs, and which memory, the ranks of a host get.
// Only CPUs that this process may use are given away, as a cgroup or taskset
// left them.

#ifndef SHARD_SDK_CLI_COMMANDS_BIND_H_
#define SHARD_SDK_CLI_COMMANDS_BIND_H_

#include <string>
#include <utility>
#include <vector>

namespace shardctl {

enum class Binding {
  kNone,
  // Each rank has as many cores of its own, with all their hyperthreads.
  kCores,
  // Each rank has the CPUs of a NUMA node, or an equal share of the nodes, and
  // its memory comes from its node as long as that has some.
  kNuma,
};

// A CPU that ranks may use.
struct Cpu {
  int cpu;
  int core;  // The first CPU of those that share its core.
  int node;
};

// The CPUs of a rank.
struct RankPlace {
  std::vector<int> cpus;
  int memory_node = -1;  // -1: the system decides.
};

// Reads numbers and ranges as the kernel writes them: "0-3,8". Returns none
// from the first mistake on.
std::vector<int> ReadCpuList(const std::string& text);

// Returns the core and node of each of the CPUs, from the files below `sys`,
// "/sys" but in tests. A CPU without files is a core of its own, of node 0.
std::vector<Cpu> ReadCpus(const std::string& sys,
                          const std::vector<int>& allowed);

// Divides the CPUs among `ranks` ranks. `memory_nodes`: those with memory that
// ranks may use. Sets *problem when there are too few; then returns none. A
// pure function. REQUIRES: `binding` is not kNone.
std::vector<RankPlace> DivideCpus(Binding binding, std::vector<Cpu> cpus,
                                  const std::vector<int>& memory_nodes,
                                  int ranks, std::string* problem);

// The places of the ranks of this host. Children inherit the place that the
// thread is in. Threads: one.
class Places {
 public:
  Places() = default;
  Places(std::vector<int> allowed, std::vector<RankPlace> ranks)
      : allowed_(std::move(allowed)), ranks_(std::move(ranks)) {}

  // Puts this thread in the place of the host's rank `local`. Returns what is
  // wrong, or "".
  std::string Enter(int local);

  // Puts this thread back.
  void Leave();

 private:
  std::vector<int> allowed_;      // Before.
  std::vector<RankPlace> ranks_;  // Empty: they are not bound.
  bool chose_memory_ = false;     // Of the place that the thread is in.
};

// Decides where the ranks of this host run. Sets *problem on an error.
Places PlaceRanks(Binding binding, int ranks, std::string* problem);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_BIND_H_
