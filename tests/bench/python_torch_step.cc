// SPDX-License-Identifier: Apache-2.0
//
// Whole training steps of a GPT of 55 M parameters in PyTorch on two ranks, 16
// tokens on each: shard.torch in stages 1 and 2, beside DistributedDataParallel
// with ZeroRedundancyOptimizer, and beside forward and backward pass alone.
// With --peers only: the bench is PyTorch's. torch_step.py has the steps.
//
// SHARD_BENCH_PYTHON is the interpreter; default: Debian's, which has Debian's
// python3-torch. The variants are interleaved; ratios are medians over the
// rounds.

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "tests/bench/bench.h"
#include "tests/bench/peer.h"

namespace shard::bench {
namespace {

constexpr int kWorldSize = 2;
constexpr int kRounds = 4;
constexpr const char* kName = "python_torch_step";

struct Round {
  double compute, stage1, stage2, zero;
};

// Runs the variants once each. Returns nullopt when a rank has ended.
std::optional<Round> RunRound(Peer& peer) {
  Round round;
  struct Variant {
    const char* name;
    double* milliseconds;
  };
  for (const Variant& variant :
       {Variant{"compute", &round.compute}, Variant{"stage1", &round.stage1},
        Variant{"stage2", &round.stage2}, Variant{"zero", &round.zero}}) {
    const std::optional<double> milliseconds = peer.Go(variant.name);
    if (!milliseconds) return std::nullopt;
    *variant.milliseconds = *milliseconds;
  }
  return round;
}

template <typename Value>
double MedianOf(const std::vector<Round>& rounds, Value value) {
  std::vector<double> values;
  for (const Round& round : rounds) values.push_back(value(round));
  return Median(values);
}

void Print(const std::vector<Round>& rounds, double loss_difference) {
  const auto metric = [&](const char* name, const char* unit, auto value) {
    Bench(kName, name, MedianOf(rounds, value), unit);
  };
  metric("compute_ms", "ms", [](const Round& r) { return r.compute; });
  metric("stage1_ms", "ms", [](const Round& r) { return r.stage1; });
  metric("stage2_ms", "ms", [](const Round& r) { return r.stage2; });
  metric("torch_ms", "ms", [](const Round& r) { return r.zero; });
  metric("stage1_over_compute", "x",
         [](const Round& r) { return r.stage1 / r.compute; });
  metric("torch_over_compute", "x",
         [](const Round& r) { return r.zero / r.compute; });
  metric("torch_over_ours", "x",
         [](const Round& r) { return r.zero / r.stage1; });
  metric("torch_over_stage2", "x",
         [](const Round& r) { return r.zero / r.stage2; });
  Bench(kName, "loss_difference", loss_difference, "nats");
}

int Main(int argc, char** argv) {
  if (argc < 2 || std::string(argv[1]) != "--peers") {
    std::fprintf(stderr, "%s: measures PyTorch: only with --peers\n", kName);
    return 0;
  }
  const std::string runfiles = std::string(argv[0]) + ".runfiles/libshard/";
  setenv("PYTHONPATH", (runfiles + "sdk/python").c_str(), 1);
  setenv("SHARD_LIBRARY", (runfiles + "api/libshard.so.0").c_str(), 1);
  const char* python = std::getenv("SHARD_BENCH_PYTHON");
  std::optional<Peer> peer =
      Peer::Start({python != nullptr ? python : "/usr/bin/python3",
                   runfiles + "tests/bench/torch_step.py"},
                  kWorldSize);
  if (!peer) {
    std::fprintf(stderr,
                 "%s: PyTorch did not start (package python3-torch, or "
                 "SHARD_BENCH_PYTHON): nothing is measured\n",
                 kName);
    return 0;
  }
  std::vector<Round> rounds;
  for (int i = -1; i < kRounds; ++i) {
    const std::optional<Round> round = RunRound(*peer);
    if (!round) {
      std::fprintf(stderr, "%s: a rank has ended\n", kName);
      return 1;
    }
    if (i >= 0) rounds.push_back(*round);  // Buffers are allocated first.
  }
  const std::optional<double> loss_difference = peer->Go("losses");
  if (!loss_difference) return 1;
  Print(rounds, *loss_difference);
  return 0;
}

}  // namespace
}  // namespace shard::bench

int main(int argc, char** argv) { return shard::bench::Main(argc, argv); }
