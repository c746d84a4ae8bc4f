// SPDX-License-Identifier: Apache-2.0

#include "tests/fault/host_parts.h"

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <iterator>

namespace shard {

namespace {

// The blocks are so many, and so large, that stages 2 and 3 shard something.
constexpr const char* kBlocks[] = {"first", "second", "third", "fourth",
                                   "fifth"};
constexpr int32_t kBiases[] = {kBias0, 4, 6, 8, 10};
constexpr int64_t kCols = 4096;

// The host may have freed what its progress function uses once a save has
// returned an error.
int32_t CountLateCalls(uint64_t, uint64_t, void* user_data) {
  auto* const rank = static_cast<HostRank*>(user_data);
  if (std::atomic_ref(rank->save_failed).load()) {
    std::atomic_ref(rank->late_calls).fetch_add(1);
  }
  return 0;
}

}  // namespace

bool Failed(HostRank* rank, const char* call, shard_error* error) {
  if (error == nullptr) return false;
  if (rank->code == SHARD_OK) {
    rank->code = shard_error_code(error);
    std::strncpy(rank->call, call, sizeof(rank->call) - 1);
    std::strncpy(rank->message, shard_error_message(error),
                 sizeof(rank->message) - 1);
  }
  shard_error_free(error);
  return true;
}

void MakeModel(HostRank* rank) {
  constexpr int64_t kEmbeddingShape[] = {kRows, 32};
  constexpr int64_t kMatrix[] = {kRows, kCols};
  constexpr int64_t kVector[] = {kRows};
  TRY_TWICE(shard_model_create("Net", &rank->model));
  int32_t id = 0;
  TRY_TWICE(shard_model_add_param(rank->model, 0, "embedding", SHARD_F32,
                                  kEmbeddingShape, 2, &id));
  for (const char* name : kBlocks) {
    int32_t block = 0;
    TRY_TWICE(shard_model_add_module(rank->model, 0, name, "Block", &block));
    TRY_TWICE(shard_model_add_param(rank->model, block, "weight_of_the_layer",
                                    SHARD_BF16, kMatrix, 2, &id));
    TRY_TWICE(shard_model_add_param(rank->model, block, "bias", SHARD_F32,
                                    kVector, 1, &id));
  }
  TRY_TWICE(shard_model_add_param(rank->model, 0, "frozen", SHARD_F32, kVector,
                                  1, &id));
  TRY_TWICE(shard_model_freeze(rank->model, kFrozen));
  constexpr int64_t kStatistics[] = {kCols};
  TRY_TWICE(shard_model_add_buffer(rank->model, 0, "running_mean", SHARD_F32,
                                   kStatistics, 1, 1, &id));
  TRY_TWICE(shard_model_add_buffer(rank->model, 0, "num_batches_tracked",
                                   SHARD_I64, nullptr, 0, 1, &id));
  int32_t head = 0;
  TRY_TWICE(shard_model_add_module(rank->model, 0, "head", "Linear", &head));
  TRY_TWICE(shard_model_tie(rank->model, head, "weight", kEmbedding));
  int32_t group = 0;
  TRY_TWICE(shard_model_add_param_group(rank->model, "sgd?lr=0.1&momentum=0.9",
                                        kBiases, std::size(kBiases), &group));
}

void MakePlan(HostRank* rank) {
  shard_plan_options options = SHARD_PLAN_OPTIONS_INIT;
  options.stage = rank->world->stage;
  options.world_size = rank->world->ranks;
  options.optimizer = "adamw?lr=0.01";
  options.wrap = "class?names=Block";
  TRY_TWICE(shard_plan_create(rank->model, &options, &rank->plan));
}

void Open(HostRank* rank) {
  shard_comm_options options = SHARD_COMM_OPTIONS_INIT;
  options.rank = rank->rank;
  options.world_size = rank->world->ranks;
  options.timeout = rank->open_timeout;
  char url[64] = {};
  std::strncpy(url, rank->world->url, sizeof(url) - 1);
  // Another process may run the same flow, so the name has the process id.
  if (rank->world->comm_only) {
    std::snprintf(url, sizeof(url), "%s%d", rank->world->url, ::getpid());
  }
  char trace[512];
  char metrics[512];
  std::snprintf(trace, sizeof(trace), "%s/trace.json", rank->folder);
  std::snprintf(metrics, sizeof(metrics), "%s/shard.prom", rank->folder);
  if (rank->world->observed) {
    options.trace = trace;
    options.metrics = metrics;
  }
  TRY(shard_comm_open(url, &options, &rank->comm));
}

void MakeEngine(HostRank* rank) {
  shard_engine_options options = SHARD_ENGINE_OPTIONS_INIT;
  options.loss_scaling = "dynamic?init_scale=4";
  options.overlap = rank->world->overlap;
  options.device = rank->world->device;
  options.missing_grads = rank->missing_grads;
  TRY(shard_engine_create(rank->plan, rank->comm, &options, &rank->engine));
}

void Fill(HostRank* rank) {
  static constexpr float kInitial[kRows * kCols] = {0.5f, -0.25f, 1.0f};
  for (int32_t param = 0; param < kParams; ++param) {
    shard_param_info info = SHARD_PARAM_INFO_INIT;
    TRY(shard_plan_param_info(rank->plan, param, &info));
    const size_t size = info.dtype == SHARD_F32 ? 4 : 2;
    TRY(shard_engine_set_param(rank->engine, param, kInitial,
                               static_cast<size_t>(info.numel) * size));
  }
  TRY(shard_engine_broadcast_params(rank->engine, 0));
  void* statistics = nullptr;
  int64_t numel = 0;
  TRY(shard_engine_buffer(rank->engine, 0, &statistics, &numel));
  std::memset(statistics, 0, static_cast<size_t>(numel) * sizeof(float));
  TRY(shard_engine_broadcast_buffers(rank->engine, 0, 0));
}

void WriteGrads(HostRank* rank, int32_t unit) {
  for (int32_t param = 0; param < kParams; ++param) {
    int32_t of = 0;
    TRY(shard_plan_unit_of(rank->plan, param, &of));
    if (of != unit || param == kFrozen) continue;
    void* data = nullptr;
    int64_t numel = 0;
    TRY(shard_engine_grad(rank->engine, param, &data, &numel));
    // These are the bits of small numbers in both types.
    std::memset(data, 0x3c,
                static_cast<size_t>(numel) * (IsWeight(param) ? 2 : 4));
  }
}

void Step(HostRank* rank) {
  shard_plan_info info = SHARD_PLAN_INFO_INIT;
  TRY(shard_plan_get_info(rank->plan, &info));
  const int32_t units = info.num_units;
  for (int32_t unit = 0; unit < units; ++unit) {
    TRY(shard_engine_unit_acquire(rank->engine, unit, SHARD_PASS_FORWARD, 0));
    const void* data[kParams];
    TRY_TWICE(shard_engine_unit_params(rank->engine, unit, nullptr, data,
                                       nullptr, kParams, nullptr));
    TRY(shard_engine_unit_release(rank->engine, unit));
  }
  for (int32_t unit = units; unit-- > 0;) {
    TRY(shard_engine_unit_acquire(rank->engine, unit, SHARD_PASS_BACKWARD, 0));
    WriteGrads(rank, unit);
    if (rank->code != SHARD_OK) return;
    TRY(shard_engine_mark_unit_grads_ready(rank->engine, unit));
    TRY(shard_engine_unit_release(rank->engine, unit));
  }
  shard_step_options options = SHARD_STEP_OPTIONS_INIT;
  options.max_grad_norm = 1;
  shard_step_report report = SHARD_STEP_REPORT_INIT;
  TRY(shard_engine_step(rank->engine, &options, &report));
  TRY(shard_engine_synchronize(rank->engine, 0));
  TRY_TWICE(shard_engine_set_stream(rank->engine, nullptr));
  TRY_TWICE(shard_engine_last_report(rank->engine, &report));
}

void Save(HostRank* rank, const char* name, shard_save** save) {
  char root[512];
  std::snprintf(root, sizeof(root), "%s/%s", rank->folder, name);
  TRY_TWICE(
      shard_engine_set_blob(rank->engine, "data loader", 1, "abcdefgh", 8));
  shard_save_options options = SHARD_SAVE_OPTIONS_INIT;
  options.overwrite = 1;
  options.threads = 2;
  options.keep_last = 1;
  options.timeout = 30;
  options.progress = CountLateCalls;
  options.progress_user_data = rank;
  shard_error* const error =
      shard_checkpoint_save(rank->engine, root, &options, save);
  if (error != nullptr) std::atomic_ref(rank->save_failed).store(true);
  (void)Failed(rank, "shard_checkpoint_save", error);
}

}  // namespace shard
