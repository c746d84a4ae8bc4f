// SPDX-License-Identifier: Apache-2.0
//
// The ZeRO-1 step of GPT-2 124M between two hosts: fp32 AdamW, one rank on
// each, hosts as network namespaces with a veth pair each. Beside it the step
// that one writes without libshard over the same Gloo (clone, all-reduce,
// update, broadcast), and the roof: the same bytes over a plain TCP connection,
// which are 4 per parameter, sent and received by each host. First as fast as
// the kernel copies, then with links held to 1 Gbit/s. The bytes are counted on
// the links; CPU time is that of both ranks and both helpers. With --peers,
// PyTorch's ZeroRedundancyOptimizer is measured between the same two hosts,
// with three forms of all-reduce: zero1_torch.py. torch_over_ours is that of
// the plain form.
//
// All are interleaved; ratios are medians over the rounds.

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "tests/bench/bench.h"
#include "tests/bench/network_roof.h"
#include "tests/bench/peer.h"
#include "tests/bench/ranks.h"
#include "tests/namespaces/namespaces.h"

namespace shard::bench {
namespace {

using testing::Namespaces;

constexpr const char* kName = "network_step";

// Returns the CPU seconds of this host: those of this rank and of the helper.
double CpuSeconds(const Namespaces& hosts, int rank) {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_usec) * 1e-6;
  };
  double sum = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  for (const pid_t pid : hosts.Processes(rank)) {
    if (pid == ::getpid()) continue;
    std::ifstream file(StrCat("/proc/", int64_t{pid}, "/stat"));
    std::string line;
    std::getline(file, line);
    const size_t name = line.rfind(')');
    if (name == std::string::npos) continue;
    // Fields 14 and 15, of which the 3rd comes after the name.
    std::istringstream fields(line.substr(name + 1));
    std::string skipped;
    for (int i = 3; i < 14; ++i) fields >> skipped;
    double user = 0;
    double system = 0;
    fields >> user >> system;
    sum += (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  }
  return sum;
}

struct TorchVariant {
  const char* name;
  const char* milliseconds;
  const char* ratio;
};
constexpr TorchVariant kTorchVariants[] = {
    {"plain", "torch_ms", "torch_over_ours"},
    {"bucketed", "torch_bucketed_ms", "torch_bucketed_over_ours"},
    {"async", "torch_async_ms", "torch_async_over_ours"},
};

struct Samples {
  std::vector<double> ours, gloo, raw;              // Milliseconds.
  std::vector<double> ours_cpu, gloo_cpu, raw_cpu;  // Of both hosts.
  std::vector<double> sent;  // Bytes of host 0 in our step.
  std::vector<double> torch[std::size(kTorchVariants)];
};

class Rank {
 public:
  Rank(int rank, const Namespaces& hosts, const std::string& folder)
      : hosts_(hosts),
        rank_(rank),
        comm_(OpenRank(StrCat("tcp://", Namespaces::Address(0),
                              ":7070?trust=network&job=bench"),
                       rank)),
        engine_(Require(Engine::Create(WholePlan(), comm_,
                                       EngineOptions{.timeout = kTimeout}))),
        gloo_(rank, Namespaces::Address(rank), folder, numel()),
        raw_(rank, Namespaces::Address(0)) {
    std::mt19937 generator(static_cast<uint32_t>(rank));
    std::uniform_real_distribution<float> uniform(-1e-3f, 1e-3f);
    for (const EngineBuffer& buffer : engine_->memory().buffers()) {
      auto* grads = static_cast<float*>(buffer.GradAt(rank, 0));
      for (int64_t i = 0; i < buffer.plan->layout.padded_numel(); ++i) {
        grads[i] = uniform(generator);
      }
    }
    Require(engine_->BroadcastParams(kTimeout));
  }

  // Makes one round of all; `kept`: whether it counts. `peer`: that of rank 0.
  void Round(bool kept, std::optional<Peer>* peer, Samples* samples) {
    const uint64_t before = Sent();
    Measure([this] { Require(engine_->Step(StepOptions(), &report_)); },
            kept ? &samples->ours : nullptr, &samples->ours_cpu);
    if (kept) samples->sent.push_back(static_cast<double>(Sent() - before));
    Measure([this] { gloo_.Step(); }, kept ? &samples->gloo : nullptr,
            &samples->gloo_cpu);
    Measure([this] { raw_.Exchange(bytes()); }, kept ? &samples->raw : nullptr,
            &samples->raw_cpu);
    // The other rank waits for this one meanwhile.
    for (size_t v = 0; *peer && v < std::size(kTorchVariants); ++v) {
      const auto milliseconds = (*peer)->Go(kTorchVariants[v].name);
      if (kept && milliseconds) samples->torch[v].push_back(*milliseconds);
    }
  }

  // The formula: half of the gradients to the other host, and half of the
  // parameters.
  size_t bytes() const {
    int64_t shard = 0;
    for (const FlatBufferPlan& buffer : engine_->plan().buffers()) {
      shard += buffer.layout.shard_numel();
    }
    return static_cast<size_t>(shard) * 2 * sizeof(float);
  }
  Communicator* comm() const { return comm_.get(); }

 private:
  size_t numel() const { return bytes() / sizeof(float); }

  uint64_t Sent() const { return Require(hosts_.CountTraffic(rank_)).sent; }

  template <typename Work>
  void Measure(const Work& work, std::vector<double>* milliseconds,
               std::vector<double>* cpu) {
    Meet(comm_.get());
    const double cpu_before = CpuSeconds(hosts_, rank_);
    const double start = Seconds();
    work();
    Meet(comm_.get());
    const double elapsed = Seconds() - start;
    // The helper may send after the step of its own rank has ended.
    const double own_cpu = CpuSeconds(hosts_, rank_) - cpu_before;
    double both[kWorldSize] = {};
    Require(comm_->AllGather("cpu", &own_cpu, sizeof(own_cpu), both,
                             Deadline::After(kTimeout)));
    if (milliseconds == nullptr) return;
    milliseconds->push_back(elapsed * 1e3);
    cpu->push_back((both[0] + both[1]) * 1e3);
  }

  const Namespaces& hosts_;
  const int rank_;
  const std::shared_ptr<Communicator> comm_;
  const std::unique_ptr<Engine> engine_;
  GlooStep gloo_;
  RawTcp raw_;
  StepReport report_;
};

double MedianRatio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    ratios.push_back(a[i] / b[i]);
  }
  return Median(ratios);
}

void Print(const std::string& prefix, const Samples& samples, size_t bytes) {
  const auto print = [&](const char* metric, double value, const char* unit) {
    Bench(kName, StrCat(prefix, metric).c_str(), value, unit);
  };
  print("step_ms", Median(samples.ours), "ms");
  print("gloo_ms", Median(samples.gloo), "ms");
  print("raw_tcp_ms", Median(samples.raw), "ms");
  print("over_gloo", MedianRatio(samples.ours, samples.gloo), "x");
  print("over_raw_tcp", MedianRatio(samples.ours, samples.raw), "x");
  print("bytes_over_formula", Median(samples.sent) / static_cast<double>(bytes),
        "x");
  // Each host has sent and received `bytes`.
  const auto per_byte = [&](const std::vector<double>& cpu) {
    return Median(cpu) * 1e6 / (static_cast<double>(kWorldSize * bytes));
  };
  print("cpu_per_byte", per_byte(samples.ours_cpu), "ns");
  print("gloo_cpu_per_byte", per_byte(samples.gloo_cpu), "ns");
  print("raw_tcp_cpu_per_byte", per_byte(samples.raw_cpu), "ns");
  for (size_t v = 0; v < std::size(kTorchVariants); ++v) {
    const std::vector<double>& torch = samples.torch[v];
    if (torch.empty()) continue;
    print(kTorchVariants[v].milliseconds, Median(torch), "ms");
    print(kTorchVariants[v].ratio, MedianRatio(torch, samples.ours), "x");
  }
}

// Starts PyTorch's ranks, each on its host, where PyTorch is installed.
std::optional<Peer> StartTorch(const std::string& program,
                               const Namespaces& hosts) {
  const std::string script =
      StrCat(program, ".runfiles/libshard/tests/bench/zero1_torch.py");
  // The shell has the rank as $0, and the other arguments behind it. Debian's
  // interpreter has Debian's python3-torch.
  const std::string command =
      StrCat("case $0 in 0) net=", hosts.Path(0), ";; *) net=", hosts.Path(1),
             ";; esac; export GLOO_SOCKET_IFNAME=eth0; exec nsenter --net=$net "
             "/usr/bin/python3 '",
             script, "' \"$0\" \"$@\"");
  auto peer = Peer::Start({"/bin/sh", "-c", command}, kWorldSize);
  if (!peer) {
    std::fprintf(stderr,
                 "network_step: PyTorch did not start (package python3-torch): "
                 "torch_over_ours is not measured\n");
  }
  return peer;
}

// Runs the benchmark on one of the two ranks. Only rank 0 has a peer,
// limits the rate and prints.
void Run(int rank, Namespaces* hosts, const std::string& folder,
         std::optional<Peer>* peer) {
  Require(hosts->Enter(rank));
  Rank self(rank, *hosts, folder);
  const auto run = [&](const std::string& prefix, int rounds) {
    Samples samples;
    for (int round = -1; round < rounds; ++round) {
      self.Round(round >= 0, peer, &samples);
    }
    if (rank == 0) Print(prefix, samples, self.bytes());
  };
  run("", 9);
  if (rank == 0) {
    for (int host = 0; host < kWorldSize; ++host) {
      Require(hosts->LimitRate(host, "1gbit"));
    }
  }
  run("1gbit_", 3);
  Shutdown(self.comm());
}

int Main(const char* program, bool peers) {
  auto made = Namespaces::Make(kWorldSize);
  if (!made.ok()) {
    std::fprintf(stderr, "network_step: no network namespaces here: %s\n",
                 made.status().ToString().c_str());
    return 1;
  }
  const std::unique_ptr<Namespaces> hosts = *std::move(made);
  std::string folder =
      (std::filesystem::temp_directory_path() / "network_step-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr)
    Require(ErrnoStatus("mkdtemp", errno));
  const std::string helper =
      StrCat(program, ".runfiles/libshard/sdk/network/shard-network");
  ::setenv("SHARD_NETWORK_HELPER", helper.c_str(), 0);
  std::optional<Peer> peer = peers ? StartTorch(program, *hosts) : std::nullopt;
  const int child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::optional<Peer> none;
    Run(1, hosts.get(), folder, &none);
    ::_exit(0);
  }
  Run(0, hosts.get(), folder, &peer);
  int status = 0;
  ::waitpid(child, &status, 0);
  std::filesystem::remove_all(folder);
  return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace shard::bench

int main(int argc, char** argv) {
  const bool peers = argc > 1 && std::string(argv[1]) == "--peers";
  return shard::bench::Main(argv[0], peers);
}
