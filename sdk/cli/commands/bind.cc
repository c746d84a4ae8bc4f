// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/bind.h"

#include <dirent.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

namespace shardctl {

namespace {

// More than any kernel has.
constexpr int kMaxCpus = 1 << 16;
constexpr int kMaxNodes = 1 << 12;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The set of CPUs of a system call.
struct CpuSet {
  cpu_set_t* const set = CPU_ALLOC(kMaxCpus);
  const size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);

  CpuSet() {
    if (set != nullptr) CPU_ZERO_S(bytes, set);
  }
  ~CpuSet() { CPU_FREE(set); }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;
};

std::vector<int> AllowedCpus() {
  const CpuSet set;
  std::vector<int> cpus;
  if (set.set == nullptr || ::sched_getaffinity(0, set.bytes, set.set) != 0) {
    return cpus;
  }
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, set.bytes, set.set)) cpus.push_back(cpu);
  }
  return cpus;
}

bool RunOn(const std::vector<int>& cpus) {
  const CpuSet set;
  if (set.set == nullptr) return false;
  for (const int cpu : cpus) CPU_SET_S(cpu, set.bytes, set.set);
  return ::sched_setaffinity(0, set.bytes, set.set) == 0;
}

// -1: the system decides.
bool PreferMemoryOf(int node) {
  constexpr size_t kWordBits = CHAR_BIT * sizeof(unsigned long);
  std::vector<unsigned long> mask(kMaxNodes / kWordBits + 1);
  if (node >= 0) {
    const auto bit = static_cast<size_t>(node);
    mask[bit / kWordBits] |= 1ul << (bit % kWordBits);
  }
  return ::syscall(SYS_set_mempolicy, node < 0 ? MPOL_DEFAULT : MPOL_PREFERRED,
                   node < 0 ? nullptr : mask.data(), kMaxNodes) == 0;
}

std::vector<int> AllowedMemoryNodes() {
  constexpr std::string_view kName = "Mems_allowed_list:";
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(kName, 0) != 0) continue;
    return ReadCpuList(
        line.substr(line.find_first_not_of(" \t", kName.size())));
  }
  return {};
}

std::string TooFew(int ranks, size_t has, const char* what) {
  return "--bind " + std::string(what) + ": " + std::to_string(ranks) +
         " ranks are to run on this host, and there are " +
         std::to_string(has) + " " + what +
         " that this process may use (a cgroup, a job scheduler or taskset may "
         "hold back some); start fewer ranks here, or do without --bind";
}

std::vector<RankPlace> DivideCores(const std::vector<Cpu>& cpus, int ranks,
                                   std::string* problem) {
  std::map<std::pair<int, int>, std::vector<int>> cores;  // By node and core.
  for (const Cpu& cpu : cpus) {
    cores[{cpu.node, cpu.core}].push_back(cpu.cpu);
  }
  const size_t count = static_cast<size_t>(ranks);
  if (cores.size() < count) {
    *problem = TooFew(ranks, cores.size(), "cores");
    return {};
  }
  std::vector<std::vector<int>> in_order;
  for (auto& [key, core] : cores) in_order.push_back(std::move(core));
  std::vector<RankPlace> places(count);
  for (size_t r = 0; r < count; ++r) {
    // As many for all: the slowest rank decides how long a step takes.
    const size_t begin = r * in_order.size() / count;
    for (size_t c = begin; c < begin + in_order.size() / count; ++c) {
      places[r].cpus.insert(places[r].cpus.end(), in_order[c].begin(),
                            in_order[c].end());
    }
  }
  return places;
}

std::vector<RankPlace> DivideNodes(const std::vector<Cpu>& cpus,
                                   const std::vector<int>& memory_nodes,
                                   int ranks) {
  std::map<int, std::vector<int>> by_node;
  for (const Cpu& cpu : cpus) by_node[cpu.node].push_back(cpu.cpu);
  const std::vector<std::pair<int, std::vector<int>>> nodes(by_node.begin(),
                                                            by_node.end());
  const size_t count = static_cast<size_t>(ranks);
  std::vector<RankPlace> places(count);
  for (size_t r = 0; r < count; ++r) {
    const size_t begin = r * nodes.size() / count;
    const size_t end = std::max(begin + 1, (r + 1) * nodes.size() / count);
    for (size_t n = begin; n < end; ++n) {
      places[r].cpus.insert(places[r].cpus.end(), nodes[n].second.begin(),
                            nodes[n].second.end());
    }
    const bool has_memory = std::count(memory_nodes.begin(), memory_nodes.end(),
                                       nodes[begin].first) > 0;
    // With one node there is nothing to prefer.
    if (end == begin + 1 && has_memory && memory_nodes.size() > 1) {
      places[r].memory_node = nodes[begin].first;
    }
  }
  return places;
}

}  // namespace

std::vector<int> ReadCpuList(const std::string& text) {
  std::vector<int> numbers;
  const char* at = text.c_str();
  const auto number = [&at] {
    char* end = nullptr;
    const long value = std::strtol(at, &end, 10);
    if (end == at || value < 0 || value >= kMaxCpus) return -1;
    at = end;
    return static_cast<int>(value);
  };
  while (*at >= '0' && *at <= '9') {
    const int first = number();
    int last = first;
    if (*at == '-') {
      ++at;
      last = number();
    }
    if (first < 0 || last < first) break;
    for (int value = first; value <= last; ++value) numbers.push_back(value);
    if (*at != ',') break;
    ++at;
  }
  return numbers;
}

std::vector<Cpu> ReadCpus(const std::string& sys,
                          const std::vector<int>& allowed) {
  std::map<int, int> node_of;
  const std::string nodes = sys + "/devices/system/node";
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(nodes.c_str()),
                                                   ::closedir);
  while (folder != nullptr) {
    const dirent* const entry = ::readdir(folder.get());
    if (entry == nullptr) break;
    int node = 0;
    int size = 0;
    if (std::sscanf(entry->d_name, "node%9d%n", &node, &size) != 1 ||
        entry->d_name[size] != '\0' || node >= kMaxNodes) {
      continue;
    }
    for (const int cpu :
         ReadCpuList(FirstLine(nodes + "/" + entry->d_name + "/cpulist"))) {
      node_of[cpu] = node;
    }
  }
  std::vector<Cpu> cpus;
  for (const int cpu : allowed) {
    const auto siblings = ReadCpuList(
        FirstLine(sys + "/devices/system/cpu/cpu" + std::to_string(cpu) +
                  "/topology/thread_siblings_list"));
    const auto node = node_of.find(cpu);
    cpus.push_back({cpu, siblings.empty() ? cpu : siblings.front(),
                    node == node_of.end() ? 0 : node->second});
  }
  return cpus;
}

std::vector<RankPlace> DivideCpus(Binding binding, std::vector<Cpu> cpus,
                                  const std::vector<int>& memory_nodes,
                                  int ranks, std::string* problem) {
  if (cpus.empty()) {
    *problem = "--bind: the CPUs that this process may use are not known";
    return {};
  }
  return binding == Binding::kCores ? DivideCores(cpus, ranks, problem)
                                    : DivideNodes(cpus, memory_nodes, ranks);
}

std::string Places::Enter(int local) {
  if (ranks_.empty()) return "";
  const RankPlace& place = ranks_[static_cast<size_t>(local)];
  if (!RunOn(place.cpus)) {
    return std::string("--bind: cannot choose the CPUs of a rank: ") +
           ::strerror(errno);
  }
  chose_memory_ = place.memory_node >= 0;
  if (chose_memory_ && !PreferMemoryOf(place.memory_node)) {
    const std::string why = ::strerror(errno);
    chose_memory_ = false;
    Leave();
    return "--bind numa: cannot choose the memory of a rank: " + why +
           "; a container needs the capability SYS_NICE for it, and --bind "
           "cores does not";
  }
  return "";
}

void Places::Leave() {
  if (ranks_.empty()) return;
  RunOn(allowed_);
  if (chose_memory_) PreferMemoryOf(-1);
  chose_memory_ = false;
}

Places PlaceRanks(Binding binding, int ranks, std::string* problem) {
  if (binding == Binding::kNone) return Places();
  std::vector<int> allowed = AllowedCpus();
  auto places = DivideCpus(binding, ReadCpus("/sys", allowed),
                           AllowedMemoryNodes(), ranks, problem);
  return Places(std::move(allowed), std::move(places));
}

}  // namespace shardctl
