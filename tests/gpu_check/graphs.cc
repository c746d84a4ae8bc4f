// SPDX-License-Identifier: Apache-2.0
//
// The part of CUDA graphs: a hundred replays of a captured step, with other
// values each and two steps that are skipped, have the bits of a hundred steps.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "shard/shard.hpp"
#include "tests/gpu_check/parts.h"
#include "tests/gpu_check/stepper.h"
#include "tests/gpu_check/training.h"

namespace shard::gpu_check {

namespace {

constexpr int kSteps = 100;

// Those that are not finite do not count.
constexpr std::int64_t kCounted = 98;

bool IsFinite(int step) { return step != 30 && step != 61; }

// A training whose host copies gradients and steps, or replays a step.
class Host {
 public:
  Host(const std::string& optimizer, const std::string& device)
      : comm_(Comm::open("local:")), model_(Model::create("Net")) {
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      params_.push_back(model_.add_param(root_module, "p" + std::to_string(i),
                                         DType::f32, kShapes[i]));
    }
    engine_.emplace(Engine::create(
        Plan::create(model_, {.world_size = 1, .optimizer = optimizer}), comm_,
        {.loss_scaling = "dynamic?init_scale=8", .device = device}));
    gpu_.emplace(engine_->device().ordinal);
    engine_->set_stream(gpu_->stream());
    for (std::size_t p = 0; p < params_.size(); ++p) {
      const auto values = Values(DType::f32, p, NumelOf(kShapes[p]));
      detail::check(shard_engine_set_param(engine_->get(),
                                           detail::raw(params_[p]),
                                           values.data(), values.size()));
    }
    engine_->broadcast_params();
  }

  // Returns the median of the host's seconds for a step: to enqueue it, or to
  // replay it.
  double Train(bool replays) {
    StepOptions options = {.max_grad_norm = 0.5};
    if (replays) Capture(options);
    std::vector<double> seconds;
    for (int step = 1; step <= kSteps; ++step) {
      engine_->set_hyper(all_groups, "lr", 0.01 / step);
      options.max_grad_norm = 0.1 + 0.01 * step;
      WriteGrads(step);
      gpu_->Finish();
      const auto start = Clock::now();
      if (replays) {
        engine_->before_replay(options);
        gpu_->Launch();
      } else {
        engine_->step_without_report(options);
        engine_->zero_grad();
      }
      seconds.push_back(SecondsSince(start));
    }
    engine_->synchronize();
    return Median(seconds);
  }

  States TakeStates() { return StatesOf(*engine_); }
  std::int64_t CompletedSteps() const { return engine_->completed_steps(); }

 private:
  inline static const std::vector<Shape> kShapes = {
      {257, 3}, {48, 100}, {40, 33}, {37, 96}};

  void Capture(const StepOptions& options) {
    gpu_->BeginCapture();
    engine_->capture_begin();
    engine_->step_without_report(options);
    engine_->zero_grad();
    engine_->capture_end();
    gpu_->EndCapture();
  }

  void WriteGrads(int step) {
    for (const ParamId param : params_) {
      void* grad = nullptr;
      std::int64_t numel = 0;
      detail::check(
          shard_engine_grad(engine_->get(), detail::raw(param), &grad, &numel));
      const auto seed =
          static_cast<std::uint64_t>(1000 + 100 * step + detail::raw(param));
      sent_.push_back(Values(DType::f32, seed, numel));
      if (!IsFinite(step)) {
        const float nan = std::numeric_limits<float>::quiet_NaN();
        std::memcpy(sent_.back().data(), &nan, sizeof(nan));
      }
      gpu_->Copy(grad, sent_.back().data(), sent_.back().size());
    }
  }

  Comm comm_;
  Model model_;
  std::vector<ParamId> params_;
  std::vector<std::vector<std::byte>> sent_;
  std::optional<Gpu> gpu_;
  std::optional<Engine> engine_;
};

}  // namespace

void Graphs(const Options& options, Report* report) {
  std::vector<std::string> optimizers = {"adamw?lr=0.01",
                                         "adamw?lr=0.01&states=q8",
                                         "lamb?lr=0.01", "adafactor?lr=0.01"};
  const std::string no_cublas =
      nlohmann::json::parse(devices_json())["cuda"]["cublas"]["error"];
  if (no_cublas.empty()) {
    for (const char* const precision : {"highest", "high", "medium"}) {
      optimizers.push_back(std::string("muon?lr=0.01&matmul_precision=") +
                           precision);
    }
  } else {
    report->Text("muon", "not run: " + no_cublas);
  }
  for (const std::string& optimizer : optimizers) {
    Host plain(optimizer, options.device);
    const double step = plain.Train(false);
    Host replayed(optimizer, options.device);
    const double replay = replayed.Train(true);
    std::string difference =
        Difference(plain.TakeStates(), replayed.TakeStates());
    if (const std::int64_t counted = replayed.CompletedSteps();
        counted != kCounted) {
      difference += " " + std::to_string(counted) + " steps are counted, not " +
                    std::to_string(kCounted);
    }
    report->Check("100 replays, " + optimizer, difference.empty(), difference);
    report->Number("host's time for a step, " + optimizer, step * 1e6, "us");
    report->Number("host's time for a replay, " + optimizer, replay * 1e6,
                   "us");
  }
}

}  // namespace shard::gpu_check
