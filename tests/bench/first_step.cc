// SPDX-License-Identifier: Apache-2.0
//
// The time that a host of GPT-2 124M waits for its first step: from the first
// call of the library to the end of the first step, on two processes that are
// new in each round and share memory; fp32 AdamW. The host writes the
// parameters on rank 0, and the gradients on both ranks, as every host does,
// and computes nothing. All memory of the engine is touched for the first time:
// parameters and gradients by the host, states by the step.
//
// `seconds` is from the first call of either rank until both are done; the
// others are the slower rank's time in each part.

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "shard/shard.h"
#include "tests/bench/bench.h"
#include "tests/bench/gpt2_shapes.h"

namespace shard::bench {
namespace {

constexpr int kWorldSize = 2;
constexpr int kRounds = 9;

// The parts of a rank's way to its first step, in order.
enum Part {
  kOpen,
  kPlan,
  kCreate,
  kWriteParams,
  kBroadcast,
  kWriteGrads,
  kStep,
  kNumParts
};
constexpr const char* kPartNames[kNumParts] = {
    "open_ms",      "plan_ms",       "create_ms", "host_params_ms",
    "broadcast_ms", "host_grads_ms", "step_ms"};

// The times of a rank, in seconds on the clock of both.
struct Times {
  double begin;
  double after[kNumParts];
};

void Require(shard_error* error) {
  if (error == nullptr) return;
  std::fprintf(stderr, "first_step: %s\n", shard_error_message(error));
  std::_Exit(1);
}

shard_plan* MakePlan() {
  shard_model* model = nullptr;
  Require(shard_model_create("GPT2", &model));
  for (const NamedShape& param : Gpt2Shapes()) {
    int32_t id = 0;
    Require(shard_model_add_param(model, 0, param.name.c_str(), SHARD_F32,
                                  param.shape.data(), param.shape.size(), &id));
  }
  shard_plan_options options = SHARD_PLAN_OPTIONS_INIT;
  options.stage = 1;
  options.world_size = kWorldSize;
  options.optimizer = "adamw?lr=1e-3&weight_decay=0.1";
  shard_plan* plan = nullptr;
  Require(shard_plan_create(model, &options, &plan));
  shard_model_free(model);
  return plan;
}

// Writes all of a tensor, for each parameter.
template <typename Get>
void WriteAll(shard_engine* engine, int num_params, const Get& get) {
  for (int32_t param = 0; param < num_params; ++param) {
    void* data = nullptr;
    int64_t numel = 0;
    Require(get(engine, param, &data, &numel));
    std::fill_n(static_cast<float*>(data), numel, 1e-3f);
  }
}

void Run(int rank, const std::string& url, Times* times) {
  Part part = kOpen;
  const auto done = [&] {
    times->after[part] = Seconds();
    part = static_cast<Part>(part + 1);
  };
  times->begin = Seconds();
  shard_comm_options options = SHARD_COMM_OPTIONS_INIT;
  options.rank = rank;
  options.world_size = kWorldSize;
  shard_comm* comm = nullptr;
  Require(shard_comm_open(url.c_str(), &options, &comm));
  done();
  shard_plan* const plan = MakePlan();
  shard_plan_info info = SHARD_PLAN_INFO_INIT;
  Require(shard_plan_get_info(plan, &info));
  done();
  shard_engine* engine = nullptr;
  Require(shard_engine_create(plan, comm, nullptr, &engine));
  done();
  if (rank == 0) WriteAll(engine, info.num_params, shard_engine_writable_param);
  done();
  Require(shard_engine_broadcast_params(engine, 0));
  done();
  WriteAll(engine, info.num_params, shard_engine_grad);
  done();
  Require(shard_engine_step(engine, nullptr, nullptr));
  done();
  Require(shard_comm_shutdown(comm, 0));
  shard_engine_free(engine);
  shard_plan_free(plan);
  shard_comm_free(comm);
}

// Runs the ranks in processes of their own. Returns whether all succeeded.
bool RunRound(Times* times) {
  const std::string url = "shm:bench-" + std::to_string(::getpid()) + "-" +
                          std::to_string(std::random_device()());
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    ranks.push_back(::fork());
    if (ranks.back() == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      Run(rank, url, &times[rank]);
      std::_Exit(0);
    }
  }
  bool succeeded = true;
  for (const pid_t rank : ranks) {
    int status = -1;
    succeeded &= ::waitpid(rank, &status, 0) == rank && status == 0;
  }
  return succeeded;
}

int Main() {
  void* const shared =
      ::mmap(nullptr, kWorldSize * sizeof(Times), PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  auto* const times = static_cast<Times*>(shared);
  std::vector<double> seconds;
  std::vector<double> parts[kNumParts];
  for (int round = 0; round < kRounds; ++round) {
    if (!RunRound(times)) return 1;
    seconds.push_back(std::max(times[0].after[kStep], times[1].after[kStep]) -
                      std::min(times[0].begin, times[1].begin));
    for (int part = 0; part < kNumParts; ++part) {
      double slowest = 0;
      for (int rank = 0; rank < kWorldSize; ++rank) {
        const Times& of = times[rank];
        const double begin = part == 0 ? of.begin : of.after[part - 1];
        slowest = std::max(slowest, of.after[part] - begin);
      }
      parts[part].push_back(slowest * 1e3);
    }
  }
  Bench("first_step", "seconds", Median(seconds), "s");
  for (int part = 0; part < kNumParts; ++part) {
    Bench("first_step", kPartNames[part], Median(parts[part]), "ms");
  }
  return 0;
}

}  // namespace
}  // namespace shard::bench

int main() { return shard::bench::Main(); }
