// SPDX-License-Identifier: Apache-2.0
//
// The ZeRO-1 step of GPT-2 124M: fp32 AdamW, two processes on shared memory,
// with and without clipping, beside the roof: the simplest loop that reads and
// writes the same bytes of the same buffers (32 per parameter: two gradients,
// p, m, v in; p, m, v out). The same step with all parameters and gradients
// bound to memory of the host (shard_engine_bind_param) stands beside the roof
// of 64 bytes: that loop, and on each rank a memcpy of the gradients before and
// of the parameters after it. With --peers, PyTorch's ZeroRedundancyOptimizer
// is measured on the same shapes, with three forms of all-reduce:
// zero1_torch.py. torch_over_ours is that of the plain form.
//
// All are interleaved; ratios are medians over the rounds.

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "tests/bench/bench.h"
#include "tests/bench/peer.h"
#include "tests/bench/ranks.h"
#include "tests/bench/roof.h"

namespace shard::bench {
namespace {

constexpr int kRounds = 15;

class Rank {
 public:
  Rank(std::shared_ptr<Communicator> comm)
      : comm_(std::move(comm)),
        engine_(Require(Engine::Create(WholePlan(), comm_,
                                       EngineOptions{.timeout = kTimeout}))) {
    std::mt19937 generator(static_cast<uint32_t>(comm_->rank()));
    std::uniform_real_distribution<float> uniform(-1e-3f, 1e-3f);
    for (const EngineBuffer& buffer : engine_->memory().buffers()) {
      auto* grads = static_cast<float*>(buffer.GradAt(comm_->rank(), 0));
      for (int64_t i = 0; i < buffer.plan->layout.padded_numel(); ++i) {
        grads[i] = uniform(generator);
      }
    }
    Require(engine_->BroadcastParams(kTimeout));
    for (const EngineBuffer& buffer : engine_->memory().buffers()) {
      const size_t bytes =
          DTypeBytes(DType::kF32, buffer.plan->layout.padded_numel());
      bound_.push_back(
          {std::vector<std::byte>(bytes), std::vector<std::byte>(bytes)});
      std::memcpy(bound_.back().grad.data(), buffer.GradAt(comm_->rank(), 0),
                  bytes);
    }
  }

  // Each of these returns the milliseconds from the time when all ranks have
  // begun until all are done.
  double Roof() {
    Meet(comm_.get());
    const double start = Seconds();
    for (const EngineBuffer& buffer : engine_->memory().buffers()) {
      const int64_t shard = buffer.plan->layout.shard_numel();
      const int64_t begin = comm_->rank() * shard;
      AdamRoof(static_cast<const float*>(buffer.GradAt(0, begin)),
               static_cast<const float*>(buffer.GradAt(1, begin)),
               static_cast<float*>(buffer.ParamAt(begin)),
               reinterpret_cast<float*>(buffer.states[0]),
               reinterpret_cast<float*>(buffer.states[1]),
               static_cast<size_t>(shard), zero_);
    }
    Meet(comm_.get());
    return (Seconds() - start) * 1e3;
  }

  double BoundRoof() {
    Meet(comm_.get());
    const double start = Seconds();
    for (size_t b = 0; b < engine_->memory().buffers().size(); ++b) {
      const EngineBuffer& buffer = engine_->memory().buffers()[b];
      std::memcpy(buffer.GradAt(comm_->rank(), 0), bound_[b].grad.data(),
                  bound_[b].grad.size());
    }
    Roof();
    for (size_t b = 0; b < engine_->memory().buffers().size(); ++b) {
      const EngineBuffer& buffer = engine_->memory().buffers()[b];
      std::memcpy(bound_[b].values.data(), buffer.ParamAt(0),
                  bound_[b].values.size());
    }
    return (Seconds() - start) * 1e3;
  }

  // Binds all tensors, or with `bind` false none.
  void Bind(bool bind) {
    for (size_t b = 0; b < bound_.size(); ++b) {
      const EngineBuffer& buffer = engine_->memory().buffers()[b];
      for (const Slot& slot : buffer.plan->layout.slots()) {
        const auto part = [&](std::vector<std::byte>& memory) {
          if (!bind) return std::span<std::byte>();
          return std::span(memory).subspan(DTypeBytes(DType::kF32, slot.offset),
                                           DTypeBytes(DType::kF32, slot.numel));
        };
        Require(engine_->Bind(slot.param,
                              {part(bound_[b].values), part(bound_[b].grad)}));
      }
    }
  }

  double Step(double max_grad_norm, StepReport* report) {
    Meet(comm_.get());
    StepOptions options;
    options.max_grad_norm = max_grad_norm;
    const double start = Seconds();
    Require(engine_->Step(options, report));
    return (Seconds() - start) * 1e3;
  }

  int64_t shard_numel() const {
    int64_t numel = 0;
    for (const FlatBufferPlan& buffer : engine_->plan().buffers()) {
      numel += buffer.layout.shard_numel();
    }
    return numel;
  }

 private:
  std::shared_ptr<Communicator> comm_;
  std::unique_ptr<Engine> engine_;
  // Memory of the host, by buffer.
  struct Bound {
    std::vector<std::byte> values;
    std::vector<std::byte> grad;
  };
  std::vector<Bound> bound_;
  volatile float zero_ = 0;
};

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
  std::vector<double> roof, plain, clipped, bound_roof, bound;
  std::vector<double> torch[std::size(kTorchVariants)];
};

double MedianRatio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    ratios.push_back(a[i] / b[i]);
  }
  return Median(ratios);
}

// Runs the benchmark on one of the two ranks. Only rank 0 has a peer and
// prints.
void Run(int rank, const std::string& url, std::optional<Peer>* peer) {
  const auto comm = OpenRank(url, rank);
  Rank self(comm);
  Samples samples;
  StepReport plain;
  StepReport clipped;
  StepReport bound;
  for (int round = -2; round < kRounds; ++round) {
    const double roof_ms = self.Roof();
    const double plain_ms = self.Step(0, &plain);
    const double clipped_ms = self.Step(1e-3, &clipped);
    const double bound_roof_ms = self.BoundRoof();
    self.Bind(true);
    const double bound_ms = self.Step(0, &bound);
    self.Bind(false);
    std::optional<double> torch_ms[std::size(kTorchVariants)];
    for (size_t v = 0; v < std::size(kTorchVariants); ++v) {
      if (*peer) torch_ms[v] = (*peer)->Go(kTorchVariants[v].name);
    }
    if (round < 0) continue;  // Caches and page tables are cold.
    samples.roof.push_back(roof_ms);
    samples.plain.push_back(plain_ms);
    samples.clipped.push_back(clipped_ms);
    samples.bound_roof.push_back(bound_roof_ms);
    samples.bound.push_back(bound_ms);
    for (size_t v = 0; v < std::size(kTorchVariants); ++v) {
      if (torch_ms[v]) samples.torch[v].push_back(*torch_ms[v]);
    }
  }
  Shutdown(comm.get());
  if (rank != 0) return;

  const auto elements = static_cast<double>(self.shard_numel());
  const double bytes = static_cast<double>(plain.bytes_moved);
  const char* name = "zero1_step";
  Bench(name, "roof_ms", Median(samples.roof), "ms");
  Bench(name, "step_ms", Median(samples.plain), "ms");
  Bench(name, "clipped_ms", Median(samples.clipped), "ms");
  Bench(name, "bytes_per_element", bytes / elements, "B");
  Bench(name, "clipped_bytes_per_element",
        static_cast<double>(clipped.bytes_moved) / elements, "B");
  Bench(name, "bandwidth", kWorldSize * bytes / Median(samples.plain) / 1e6,
        "GB/s");
  Bench(name, "ratio_to_roof", MedianRatio(samples.roof, samples.plain), "x");
  Bench(name, "clipped_over_unclipped",
        MedianRatio(samples.clipped, samples.plain), "x");
  Bench(name, "bound_ms", Median(samples.bound), "ms");
  Bench(name, "bound_bytes_per_element",
        static_cast<double>(bound.bytes_moved) / elements, "B");
  Bench(name, "bound_ratio_to_roof",
        MedianRatio(samples.bound_roof, samples.bound), "x");
  Bench(name, "bound_over_unbound", MedianRatio(samples.bound, samples.plain),
        "x");
  for (size_t v = 0; v < std::size(kTorchVariants); ++v) {
    const std::vector<double>& torch = samples.torch[v];
    if (torch.empty()) continue;
    Bench(name, kTorchVariants[v].milliseconds, Median(torch), "ms");
    Bench(name, kTorchVariants[v].ratio, MedianRatio(torch, samples.plain),
          "x");
  }
}

// Starts PyTorch's ranks, where PyTorch is installed.
std::optional<Peer> StartTorch(const std::string& program) {
  const std::string script =
      program + ".runfiles/libshard/tests/bench/zero1_torch.py";
  // Debian's interpreter has Debian's python3-torch.
  auto peer = Peer::Start({"/usr/bin/python3", script}, kWorldSize);
  if (!peer) {
    std::fprintf(stderr,
                 "zero1_step: PyTorch did not start (package python3-torch): "
                 "torch_over_ours is not measured\n");
  }
  return peer;
}

int Main(int argc, char** argv) {
  const bool peers = argc > 1 && std::string(argv[1]) == "--peers";
  std::optional<Peer> peer = peers ? StartTorch(argv[0]) : std::nullopt;
  const std::string url =
      StrCat("shm:bench-", getpid(), "-", std::random_device()());
  const int child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::optional<Peer> none;
    Run(1, url, &none);
    _exit(0);
  }
  Run(0, url, &peer);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace shard::bench

int main(int argc, char** argv) { return shard::bench::Main(argc, argv); }
