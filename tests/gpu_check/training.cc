// SPDX-License-Identifier: Apache-2.0

#include "tests/gpu_check/training.h"

#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <thread>

namespace shard::gpu_check {

namespace {

std::size_t SizeOf(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

// Returns a value between -1 and 1, of few bits, so that f16 and bf16 hold it.
float ValueOf(std::uint64_t seed, std::int64_t element) {
  std::uint64_t z = seed * 0x9E3779B97F4A7C15u +
                    static_cast<std::uint64_t>(element) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 30)) * 0x94D049BB133111EBu;
  return static_cast<float>(static_cast<int>(z >> 40 & 0xFF) - 128) / 128;
}

// Appends the value in the given type.
void Append(DType dtype, float value, std::vector<std::byte>* bytes) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  if (dtype == DType::bf16) {
    bits >>= 16;
  } else if (dtype == DType::f16 && value != 0) {
    bits = (bits >> 16 & 0x8000) | (((bits & 0x7FFFFFFF) - (112u << 23)) >> 13);
  }
  const std::size_t at = bytes->size();
  bytes->resize(at + SizeOf(dtype));
  std::memcpy(bytes->data() + at, &bits, SizeOf(dtype));
}

Model ModelOf(const Training& training, std::vector<ParamId>* params) {
  Model model = Model::create("Net");
  for (std::size_t i = 0; i < training.shapes.size(); ++i) {
    const ModuleId block =
        model.add_module(root_module, "block" + std::to_string(i), "Block");
    params->push_back(
        model.add_param(block, "weight", training.dtype, training.shapes[i]));
  }
  return model;
}

class Rank {
 public:
  Rank(const Training& training, const std::string& device, Comm& comm)
      : training_(training),
        model_(ModelOf(training, &params_)),
        engine_(Engine::create(
            Plan::create(
                model_,
                {.stage = training.stage,
                 .world_size = training.ranks,
                 .optimizer = training.optimizer,
                 .f32_grads = training.f32_grads,
                 .masters = training.masters,
                 .wrap = training.units ? "class?names=Block" : "",
                 .shard_group_size = training.shard_group_size,
                 .buffer_bytes = training.units ? 0 : std::int64_t{1} << 40,
                 .deterministic = training.deterministic}),
            comm, {.loss_scaling = training.loss_scaling, .device = device})),
        rank_(comm.rank()) {
    const DeviceId id = engine_.device();
    if (id.kind == DeviceKind::cuda) {
      gpu_.emplace(id.ordinal);
      engine_.set_stream(gpu_->stream());
    }
    for (std::size_t p = 0; p < params_.size(); ++p) {
      const auto values =
          Values(training_.dtype, p, NumelOf(training_.shapes[p]));
      detail::check(shard_engine_set_param(engine_.get(),
                                           detail::raw(params_[p]),
                                           values.data(), values.size()));
    }
    engine_.broadcast_params();
  }

  void Step(int step) {
    for (const UnitId unit : engine_.plan().units()) {
      const Unit held = engine_.unit_acquire(unit, Pass::forward);
    }
    if (training_.begun) engine_.begin_step(training_.step);
    for (const UnitId id : engine_.plan().units()) {
      Unit unit = engine_.unit_acquire(id, Pass::backward);
      for (const UnitParamPtr& param : unit.param_ptrs()) {
        WriteGrad(param.param, step);
      }
      unit.mark_grads_ready();
      unit.release();
    }
    engine_.step_without_report(training_.step);
  }

  States TakeStates() { return StatesOf(engine_); }

 private:
  void WriteGrad(ParamId param, int step) {
    void* grad = nullptr;
    std::int64_t numel = 0;
    detail::check(
        shard_engine_grad(engine_.get(), detail::raw(param), &grad, &numel));
    // A GPU reads them later: the host's stream orders the copy with the step.
    sent_.push_back(GradOf(training_, rank_, step,
                           static_cast<std::size_t>(detail::raw(param))));
    if (training_.has_nan && step == 2) {
      constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(&sent_.back()[sent_.back().size() - sizeof(kNan)], &kNan,
                  sizeof(kNan));
    }
    if (gpu_) {
      gpu_->Copy(grad, sent_.back().data(), sent_.back().size());
    } else {
      std::memcpy(grad, sent_.back().data(), sent_.back().size());
    }
  }

  const Training& training_;
  std::vector<ParamId> params_;
  Model model_;
  std::vector<std::vector<std::byte>> sent_;
  // Before the engine, which uses its stream until it is gone.
  std::optional<Gpu> gpu_;
  Engine engine_;
  const int rank_;
};

}  // namespace

std::vector<std::byte> Values(DType dtype, std::uint64_t seed,
                              std::int64_t numel) {
  std::vector<std::byte> bytes;
  for (std::int64_t i = 0; i < numel; ++i) {
    Append(dtype, ValueOf(seed, i), &bytes);
  }
  return bytes;
}

std::vector<std::byte> GradOf(const Training& training, int rank, int step,
                              std::size_t param) {
  const auto seed = static_cast<std::uint64_t>(1000 + 100 * step + 10 * rank) +
                    static_cast<std::uint64_t>(param);
  return Values(training.f32_grads ? DType::f32 : training.dtype, seed,
                NumelOf(training.shapes[param]));
}

std::int64_t NumelOf(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1},
                         std::multiplies<>());
}

int OrdinalOf(const std::string& device) {
  Model model = Model::create("Net");
  model.add_param(root_module, "weight", DType::f32, {1});
  Comm comm = Comm::open("local:");
  return Engine::create(Plan::create(model, {.world_size = 1}), comm,
                        {.device = device})
      .device()
      .ordinal;
}

States StatesOf(Engine& engine) {
  States states;
  StateDict::gather(engine, 0,
                    [&](std::string_view key, const TensorInfo&,
                        std::span<const std::byte> bytes) {
                      states[std::string(key)].assign(bytes.begin(),
                                                      bytes.end());
                      return false;
                    });
  return states;
}

States Train(const Training& training, const std::string& device) {
  static std::atomic<int> groups{0};
  const std::string url =
      "threads:" + std::to_string(training.ranks) + "?name=gpu-check-" +
      std::to_string(++groups) +
      // On a GPU ranks share no memory, but one has its own.
      (training.ranks > 1 ? "&direct=0" : "");
  States states;
  std::mutex mutex;
  std::exception_ptr thrown;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < training.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Comm comm = Comm::open(
            url, {.rank = rank, .world_size = training.ranks, .timeout = 60});
        Rank trained(training, device, comm);
        for (int step = 1; step <= training.steps; ++step) trained.Step(step);
        States own = trained.TakeStates();
        if (rank == 0) states = std::move(own);
        comm.shutdown();
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (thrown == nullptr) thrown = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (thrown != nullptr) std::rethrow_exception(thrown);
  return states;
}

std::string Difference(const States& a, const States& b) {
  if (a.size() != b.size()) return "other tensors";
  for (const auto& [key, bytes] : a) {
    const auto other = b.find(key);
    if (other == b.end()) return key + " is missing";
    if (bytes.size() != other->second.size()) return key + " has another size";
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] != other->second[i]) {
        return key + " differs from byte " + std::to_string(i) + " of " +
               std::to_string(bytes.size());
      }
    }
  }
  return "";
}

}  // namespace shard::gpu_check
