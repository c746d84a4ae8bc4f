// SPDX-License-Identifier: Apache-2.0
//
// Usage: optimizer_step [--peers] [VARIANT...]
//
// The update of 64 M parameters by every optimizer, with one gradient source,
// on two threads of one process, beside the roof of its bytes: the simplest
// loop that reads and writes them. In fp32 that is 12 bytes per parameter (p
// and g in, p out) and 8 for each state. AdamW is measured in other precisions
// too:
//
//   bf16_master      bf16 parameter and gradient, fp32 master and states: 28
//   bf16_stochastic  bf16 parameter and gradient, fp32 states: 22
//   q8               fp32 parameter and gradient, 8-bit states: 16
//
// With --peers, AdamW in fp32 of PyTorch and DeepSpeed is measured on the same
// sizes: optimizer_peer.py. All are interleaved; times are medians over the
// rounds.

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/mapping.h"
#include "core/base/strings.h"
#include "core/optim/optimizer.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/fused_step.h"
#include "kernels/formula/scalars.h"
#include "tests/bench/bench.h"
#include "tests/bench/peer.h"
#include "tests/bench/roof.h"

namespace shard::bench {
namespace {

constexpr size_t kElements = size_t{64} << 20;
constexpr size_t kThreads = 2;
constexpr int kRounds = 9;

struct Precision {
  const char* name;
  DType dtype;  // The dtype of parameter and gradient.
  bool master;
  DType state;
};

constexpr Precision kFp32 = {"fp32", DType::kF32, false, DType::kF32};
constexpr Precision kBf16Master = {"bf16_master", DType::kBF16, true,
                                   DType::kF32};
constexpr Precision kBf16Stochastic = {"bf16_stochastic", DType::kBF16, false,
                                       DType::kF32};
constexpr Precision kQ8 = {"q8", DType::kF32, false, DType::kQ8};

struct Variant {
  const char* name;
  const char* optimizer;
  Precision precision = kFp32;
};

constexpr Variant kVariants[] = {
    {"adamw", "adamw"},
    {"adamw", "adamw", kBf16Master},
    {"adamw", "adamw", kBf16Stochastic},
    {"adamw", "adamw", kQ8},
    {"adamw_amsgrad", "adamw?amsgrad=1"},
    {"adamw_apex", "adamw?profile=apex"},
    {"adamw_deepspeed_cpu", "adamw?profile=deepspeed_cpu"},
    {"adamw_llmc", "adamw?profile=llmc"},
    {"adamw_llmc_cpu", "adamw?profile=llmc_cpu"},
    {"adamw_ggml", "adamw?profile=ggml"},
    {"adam", "adam?weight_decay=0.1"},
    {"adam_amsgrad", "adam?amsgrad=1"},
    {"adamax", "adamax"},
    {"adadelta", "adadelta"},
    {"adagrad", "adagrad"},
    {"lion", "lion"},
    {"rmsprop", "rmsprop"},
    {"rmsprop_centered_momentum", "rmsprop?centered=1&momentum=0.9"},
    {"rprop", "rprop"},
    {"sgd", "sgd?weight_decay=0.1"},
    {"sgd_momentum", "sgd?momentum=0.9"},
};

template <typename T>
T Require(StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "optimizer_step: %s\n",
                 value.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(value);
}

// A tensor in pages of its own, as in the engine. Codes of 8 bits are 0, and so
// are their scales.
class Tensor {
 public:
  Tensor(DType dtype, float value)
      : dtype_(dtype),
        pages_(Require(Mapping::Anonymous(
            DTypeBytes(dtype, static_cast<int64_t>(kElements))))) {
    if (dtype == DType::kQ8) {
      std::fill_n(static_cast<char*>(at(0)), kElements, char{0});
      std::fill_n(scales_at(0), kElements / static_cast<size_t>(kQ8Block),
                  0.0f);
      return;
    }
    std::vector<float> row(251 * 64);
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = value * static_cast<float>(i % 251);
    }
    for (size_t i = 0; i < kElements; i += row.size()) {
      Narrow(dtype, row.data(), at(i), std::min(row.size(), kElements - i),
             nullptr);
    }
  }

  void* at(size_t i) const {
    return static_cast<char*>(static_cast<void*>(pages_.data())) +
           i * DTypeSize(dtype_);
  }
  float* floats_at(size_t i) const { return static_cast<float*>(at(i)); }
  uint16_t* halves_at(size_t i) const { return static_cast<uint16_t*>(at(i)); }
  uint8_t* codes_at(size_t i) const { return static_cast<uint8_t*>(at(i)); }
  // Returns the scales of the elements from i on. REQUIRES: q8; i is a multiple
  // of kQ8Block.
  float* scales_at(size_t i) const {
    return static_cast<float*>(at(kElements)) +
           i / static_cast<size_t>(kQ8Block);
  }

 private:
  DType dtype_;
  Mapping pages_;
};

// Returns the milliseconds until `body` has run on all threads' parts: [begin,
// begin+count).
double Parallel(const std::function<void(size_t, size_t)>& body) {
  std::barrier start(kThreads + 1);
  std::vector<std::thread> threads;
  constexpr size_t kPart = kElements / kThreads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      body(t * kPart, kPart);
    });
  }
  start.arrive_and_wait();
  const double begin = Seconds();
  for (std::thread& thread : threads) thread.join();
  return (Seconds() - begin) * 1e3;
}

// The tensors of one variant, and its update.
class Update {
 public:
  explicit Update(const Variant& variant)
      : precision_(variant.precision),
        optimizer_(Require(Optimizer::Parse(variant.optimizer))),
        param_(precision_.dtype, 1e-2f),
        grad_(precision_.dtype, 1e-3f) {
    if (precision_.master) master_.emplace(DType::kF32, 1e-2f);
    for (size_t s = 0; s < optimizer_.state_names().size(); ++s) {
      states_.emplace_back(precision_.state, 1e-4f);
    }
  }

  // Returns the milliseconds of one step.
  double Step() {
    ++step_;
    return Parallel([this](size_t begin, size_t count) {
      const void* source = grad_.at(begin);
      void* states[kMaxStates];
      float* scales[kMaxStates];
      for (size_t s = 0; s < states_.size(); ++s) {
        states[s] = states_[s].at(begin);
        if (precision_.state == DType::kQ8) {
          scales[s] = states_[s].scales_at(begin);
        }
      }
      FusedStepArgs args;
      args.gradients = {&source, 1, precision_.dtype};
      args.param = param_.at(begin);
      args.param_dtype = precision_.dtype;
      if (master_) args.master = master_->floats_at(begin);
      args.stochastic_rounding = precision_.dtype == DType::kBF16;
      args.states = states;
      args.state_dtype = precision_.state;
      args.scales = scales;
      args.random = {1, static_cast<uint32_t>(step_), 0,
                     static_cast<int64_t>(begin)};
      args.count = count;
      FusedStep(optimizer_.formula(),
                FormulaScalars(optimizer_.formula(), optimizer_.hypers().data(),
                               step_)
                    .data(),
                args);
    });
  }

  double Roof() const {
    return Parallel([this](size_t begin, size_t count) {
      if (precision_.state == DType::kQ8) {
        return Q8Roof(grad_.floats_at(begin), param_.floats_at(begin),
                      states_[0].codes_at(begin), states_[1].codes_at(begin),
                      count, zero_);
      }
      float* states[kMaxStates];
      for (size_t s = 0; s < states_.size(); ++s) {
        states[s] = states_[s].floats_at(begin);
      }
      if (precision_.master) {
        Bf16MasterRoof(grad_.halves_at(begin), param_.halves_at(begin),
                       master_->floats_at(begin), states[0], states[1], count,
                       zero_);
      } else if (precision_.dtype == DType::kBF16) {
        Bf16Roof(grad_.halves_at(begin), param_.halves_at(begin), states[0],
                 states[1], count, zero_);
      } else {
        UpdateRoof(grad_.floats_at(begin), param_.floats_at(begin), states,
                   states_.size(), count, zero_);
      }
    });
  }

  double bytes_per_element() const {
    const size_t size = DTypeSize(precision_.dtype);
    const size_t params = precision_.master ? size + 8 : 2 * size;
    const auto state =
        static_cast<double>(DTypeBytes(precision_.state, kQ8Block)) /
        static_cast<double>(kQ8Block);
    return static_cast<double>(size + params) +
           2 * state * static_cast<double>(states_.size());
  }

 private:
  Precision precision_;
  Optimizer optimizer_;
  Tensor param_;
  Tensor grad_;
  std::optional<Tensor> master_;
  std::vector<Tensor> states_;
  int64_t step_ = 0;
  volatile float zero_ = 0;
};

void Measure(const Variant& variant) {
  Update update(variant);
  std::vector<double> times;
  std::vector<double> ratios;
  for (int round = -1; round < kRounds; ++round) {
    const double roof_ms = update.Roof();
    const double update_ms = update.Step();
    if (round < 0) continue;  // The page tables are cold.
    times.push_back(update_ms);
    ratios.push_back(roof_ms / update_ms);
  }
  const std::string prefix =
      StrCat(variant.name, ".", variant.precision.name, ".");
  const double bytes = update.bytes_per_element();
  const char* name = "optimizer_step";
  Bench(name, (prefix + "bytes_per_element").c_str(), bytes, "B");
  Bench(name, (prefix + "bandwidth").c_str(),
        bytes * static_cast<double>(kElements) / Median(times) / 1e6, "GB/s");
  Bench(name, (prefix + "ratio_to_roof").c_str(), Median(ratios), "x");
}

// Measures AdamW in fp32 beside another system's.
void MeasurePeer(const std::string& program, const std::string& system) {
  const std::string script =
      program + ".runfiles/libshard/tests/bench/optimizer_peer.py";
  auto peer = Peer::Start(
      {"/usr/bin/python3", script, system, std::to_string(kElements)}, 1);
  if (!peer) {
    std::printf("optimizer_step: %s did not start: not measured\n",
                system.c_str());
    return;
  }
  Update update(kVariants[0]);
  std::vector<double> times;
  std::vector<double> ratios;
  for (int round = -1; round < kRounds; ++round) {
    const double ours_ms = update.Step();
    const auto peer_ms = peer->Go("step");
    if (!peer_ms) {
      std::printf("optimizer_step: %s ended: not measured\n", system.c_str());
      return;
    }
    if (round < 0) continue;
    times.push_back(*peer_ms);
    ratios.push_back(*peer_ms / ours_ms);
  }
  Bench("optimizer_step", StrCat("adamw.fp32.", system, "_ms").c_str(),
        Median(times), "ms");
  Bench("optimizer_step", StrCat("adamw.fp32.", system, "_over_ours").c_str(),
        Median(ratios), "x");
}

int Main(int argc, char** argv) {
  std::vector<std::string> names(argv + 1, argv + argc);
  const auto flag = std::find(names.begin(), names.end(), "--peers");
  const bool peers = flag != names.end();
  if (peers) names.erase(flag);
  for (const Variant& variant : kVariants) {
    const std::string name = StrCat(variant.name, ".", variant.precision.name);
    if (names.empty() ||
        std::find(names.begin(), names.end(), name) != names.end()) {
      Measure(variant);
    }
  }
  if (peers) {
    MeasurePeer(argv[0], "torch");
    MeasurePeer(argv[0], "deepspeed");
  }
  return 0;
}

}  // namespace
}  // namespace shard::bench

int main(int argc, char** argv) { return shard::bench::Main(argc, argv); }
