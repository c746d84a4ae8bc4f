// SPDX-License-Identifier: Apache-2.0

#include "tests/fault/host_flows.h"

#include <cstddef>
#include <cstdio>
#include <utility>

#include "tests/fault/host_parts.h"

namespace shard {

namespace {

constexpr World kWorlds[] = {
    {"local", "local:", 1, 1, 0, "cpu"},
    {"local_async", "local:", 1, 2, 0, "cpu-async?max_delay=0"},
    {"threads", "threads:2?name=flows", 2, 2, 0, "cpu"},
    {"unshared", "threads:2?name=flows&direct=0", 2, 3, 1, "cpu"},
    // With a trace and metrics.
    {"observed", "local:", 1, 1, 0, "cpu", false, true},
    // "shm:" is for processes; here the ranks are threads, whose allocations
    // all count.
    {"shm", "shm:flows-", 2, 2, 0, "cpu", true},
};

void PrepareNothing(HostRank*) {}
void CheckNothing(HostRank*) {}

#define THEN(part) \
  part(rank);      \
  if (rank->code != SHARD_OK) return

void PreparePlan(HostRank* rank) {
  THEN(MakeModel);
  THEN(MakePlan);
}

void PrepareComm(HostRank* rank) {
  THEN(PreparePlan);
  THEN(Open);
}

void PrepareEngine(HostRank* rank) {
  THEN(PrepareComm);
  THEN(MakeEngine);
}

void PrepareFilled(HostRank* rank) {
  THEN(PrepareEngine);
  THEN(Fill);
}

void PrepareTrained(HostRank* rank) {
  THEN(PrepareFilled);
  THEN(Step);
}

void PrepareMissing(HostRank* rank) {
  rank->missing_grads = SHARD_MISSING_SKIP;
  THEN(PrepareFilled);
}

// ---- Flows that run while allocations fail ---------------------------------

void RunPlan(HostRank* rank) {
  THEN(MakeModel);
  THEN(MakePlan);
  char text[32];
  size_t length = 0;
  shard_memory memory = SHARD_MEMORY_INIT;
  const shard_plan* const plan = rank->plan;
  shard_placement placement = SHARD_PLACEMENT_INIT;
  placement.device = "cpu";
  TRY_TWICE(shard_plan_memory(plan, &placement, &memory));
  // Only the beginning of the plan's text fits, which is no error.
  TRY_TWICE(shard_plan_text(plan, nullptr, 0, &length));
  TRY_TWICE(shard_plan_json(plan, nullptr, 0, &length));
  const char* given = nullptr;
  TRY_TWICE(shard_plan_warnings(plan, &given));
  int32_t number = 0;
  shard_plan_info info = SHARD_PLAN_INFO_INIT;
  TRY_TWICE(shard_plan_get_info(plan, &info));
  shard_name_info name = SHARD_NAME_INFO_INIT;
  TRY_TWICE(shard_plan_name_info(plan, 1, &name));
  TRY_TWICE(shard_plan_param_name(plan, kBias0, 0, &given));
  TRY_TWICE(shard_plan_find_param(plan, "first.bias", &number));
  shard_module_info module = SHARD_MODULE_INFO_INIT;
  TRY_TWICE(shard_plan_module_info(plan, 1, &module));
  TRY_TWICE(shard_plan_module_name(plan, 1, &given));
  TRY_TWICE(shard_plan_module_class(plan, 1, &given));
  shard_model_buffer_info buffer = SHARD_MODEL_BUFFER_INFO_INIT;
  TRY_TWICE(shard_plan_model_buffer_info(plan, 1, &buffer));
  TRY_TWICE(shard_plan_model_buffer_name(plan, 1, &given));
  TRY_TWICE(shard_clean_tensor_name("module._orig_mod.first.bias", 1, text,
                                    sizeof(text), &length));
  shard_slice slices[8];
  for (shard_slice& slice : slices) slice = SHARD_SLICE_INIT;
  TRY_TWICE(shard_plan_slices(plan, 0, 0, 11, slices, 8, &length));
  static thread_local char bytes[4096];
  TRY_TWICE(shard_plan_encode(plan, bytes, sizeof(bytes), &length));
  shard_plan_free(rank->plan);
  rank->plan = nullptr;
  TRY_TWICE(shard_plan_decode(bytes, length, &rank->plan));
  double lr = 0;
  TRY_TWICE(shard_schedule_lr("cosine?lr=1&total=10", 3, &lr));
}

// Ranks that have opened the group hear of one that has not, long before this
// deadline.
void RunOpen(HostRank* rank) {
  THEN(Open);
  TRY(shard_comm_barrier(rank->comm, 10));
}

void RunComm(HostRank* rank) {
  double values[] = {1, 2, 3};
  TRY(shard_comm_barrier(rank->comm, 0));
  TRY(shard_comm_sum(rank->comm, values, 3, 0));
}

void RunCreate(HostRank* rank) { MakeEngine(rank); }

void RunFill(HostRank* rank) { Fill(rank); }

// Hashes the bits of a parameter, which are the same on all ranks.
void HashParam(HostRank* rank) {
  TRY(shard_engine_unit_acquire(rank->engine, 0, SHARD_PASS_FORWARD, 0));
  const void* data = nullptr;
  int64_t numel = 0;
  TRY(shard_engine_param(rank->engine, kEmbedding, &data, &numel));
  uint64_t hash = 14695981039346656037u;
  for (int64_t i = 0; i < numel * 4; ++i) {
    hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211u;
  }
  rank->result = hash;
  TRY(shard_engine_unit_release(rank->engine, 0));
}

void RunStep(HostRank* rank) {
  THEN(Step);
  THEN(Step);
  TRY_TWICE(shard_engine_set_hyper(rank->engine, -1, "lr", 0.5));
  double value = 0;
  TRY_TWICE(shard_engine_hyper(rank->engine, 0, "beta1", &value));
  size_t length = 0;
  char text[512];
  TRY_TWICE(
      shard_engine_group_text(rank->engine, 1, text, sizeof(text), &length));
  shard_memory memory = SHARD_MEMORY_INIT;
  TRY_TWICE(shard_engine_memory(rank->engine, &memory));
  HashParam(rank);
}

// Declares single parameters of a unit: with sharded gradients the release of
// the unit reduces them.
void RunRelease(HostRank* rank) {
  for (int32_t param = 0; param < kParams; ++param) {
    if (!IsWeight(param)) continue;
    int32_t unit = 0;
    TRY(shard_plan_unit_of(rank->plan, param, &unit));
    TRY(shard_engine_unit_acquire(rank->engine, unit, SHARD_PASS_BACKWARD, 0));
    WriteGrads(rank, unit);
    if (rank->code != SHARD_OK) return;
    TRY(shard_engine_mark_param_grad_ready(rank->engine, param));
    TRY(shard_engine_unit_release(rank->engine, unit));
  }
  TRY(shard_engine_step(rank->engine, nullptr, nullptr));
  HashParam(rank);
}

void RunSummon(HostRank* rank) {
  TRY(shard_engine_summon(rank->engine, 0, -1, 0));
  TRY(shard_engine_summon_end(rank->engine, 1, 0));
}

void RunReplan(HostRank* rank) {
  constexpr int32_t kParam[] = {kFrozen};
  int32_t group = 0;
  TRY(shard_engine_add_param_group(rank->engine, "?lr=0.5", kParam, 1, 0,
                                   &group));
  TRY(shard_engine_set_trainable(rank->engine, kParam, 1, 0, 0));
}

void RunSave(HostRank* rank) { Save(rank, "new", nullptr); }

void RunSaveAsync(HostRank* rank) {
  Save(rank, "new", &rank->save);
  if (rank->code != SHARD_OK) return;
  TRY(shard_save_wait(rank->save, 0));
}

// Saves, and leaves the handle of the save to the free functions.
void RunSaveAndLeave(HostRank* rank) { Save(rank, "new", &rank->save); }

void RunLoad(HostRank* rank) {
  char root[512];
  std::snprintf(root, sizeof(root), "%s/saved", rank->folder);
  shard_load_options options = SHARD_LOAD_OPTIONS_INIT;
  options.threads = 2;
  options.timeout = 30;
  shard_load_report report = SHARD_LOAD_REPORT_INIT;
  TRY(shard_checkpoint_load(rank->engine, root, &options, &report));
  char text[128];
  size_t length = 0;
  TRY_TWICE(shard_engine_json(rank->engine, text, sizeof(text), &length));
  TRY_TWICE(shard_engine_last_load_report_json(rank->engine, text, sizeof(text),
                                               &length));
  const void* blob = nullptr;
  TRY_TWICE(shard_engine_blob(rank->engine, "data loader", &blob, &length));
  HashParam(rank);
}

int32_t TakeTensor(const char*, const shard_tensor_info*, const void*, void*) {
  return 0;
}

void RunState(HostRank* rank) {
  shard_state_dict_options options = SHARD_STATE_DICT_OPTIONS_INIT;
  options.copy = 1;
  TRY_TWICE(shard_state_dict_get(rank->engine, &options, &rank->state));
  char text[128];
  size_t length = 0;
  shard_tensor_info info = SHARD_TENSOR_INFO_INIT;
  TRY_TWICE(shard_state_dict_tensor(rank->state, 0, &info));
  TRY_TWICE(
      shard_state_dict_tensor_key(rank->state, 0, text, sizeof(text), &length));
  double value = 0;
  TRY_TWICE(shard_state_dict_number(rank->state, 0, &value, text, sizeof(text),
                                    &length));
  TRY(shard_state_dict_gather(rank->engine, nullptr, -1, TakeTensor, nullptr));
  TRY(shard_state_dict_load(rank->engine, rank->state, nullptr, 0, nullptr));
  HashParam(rank);
}

void RunFilledState(HostRank* rank) {
  static constexpr float kValues[kRows] = {1, 2, 3};
  constexpr int64_t kShape[] = {kRows};
  TRY_TWICE(shard_state_dict_create(&rank->filled));
  TRY_TWICE(shard_state_dict_add(rank->filled, "first.bias", SHARD_F32, kShape,
                                 1, kValues, sizeof(kValues)));
  TRY_TWICE(shard_state_dict_add(rank->filled,
                                 "state.first.bias.momentum_buffer", SHARD_F32,
                                 kShape, 1, kValues, sizeof(kValues)));
  TRY_TWICE(
      shard_state_dict_add_number(rank->filled, "state.first.bias.step", 7));
  int64_t tensor = 0;
  TRY_TWICE(shard_state_dict_find(rank->filled, "first.bias", &tensor));
  shard_load_options options = SHARD_LOAD_OPTIONS_INIT;
  options.allow_mismatch = 1;
  shard_load_report report = SHARD_LOAD_REPORT_INIT;
  TRY(shard_state_dict_load(rank->engine, rank->filled, &options, 1, &report));
}

void RunShutdown(HostRank* rank) { TRY(shard_comm_shutdown(rank->comm, 0)); }

void RunFiles(HostRank* rank) {
  char path[512];
  std::snprintf(path, sizeof(path), "%s/saved", rank->folder);
  TRY_TWICE(shard_checkpoint_open(path, &rank->checkpoint));
  shard_checkpoint_info info = SHARD_CHECKPOINT_INFO_INIT;
  TRY_TWICE(shard_checkpoint_get_info(rank->checkpoint, &info));
  const char* key = nullptr;
  TRY_TWICE(shard_checkpoint_tensor_key(rank->checkpoint, 0, &key));
  int64_t tensor = 0;
  TRY_TWICE(shard_checkpoint_find(rank->checkpoint, "first.bias", &tensor));
  float values[kRows];
  TRY_TWICE(shard_checkpoint_read(rank->checkpoint, tensor, 0, kRows, values,
                                  sizeof(values)));
  shard_verify_options verify = SHARD_VERIFY_OPTIONS_INIT;
  verify.threads = 2;
  TRY_TWICE(shard_checkpoint_verify(rank->checkpoint, &verify));
  shard_convert_options options = SHARD_CONVERT_OPTIONS_INIT;
  options.overwrite = 1;
  options.threads = 2;
  std::snprintf(path, sizeof(path), "%s/new", rank->folder);
  TRY(shard_checkpoint_convert(rank->checkpoint, path, &options));
  std::snprintf(path, sizeof(path), "%s/model.safetensors", rank->folder);
  options.content = SHARD_CONTENT_MODEL;
  options.expand_aliases = 1;
  TRY(shard_checkpoint_export(rank->checkpoint, path, &options));
  shard_checkpoint_free(std::exchange(rank->checkpoint, nullptr));
  TRY_TWICE(shard_checkpoint_open(path, &rank->checkpoint));
  TRY_TWICE(shard_checkpoint_verify(rank->checkpoint, &verify));
}

void CheckSaved(HostRank* rank) {
  char path[512];
  std::snprintf(path, sizeof(path), "%s/new", rank->folder);
  TRY(shard_checkpoint_open(path, &rank->checkpoint));
  shard_verify_options options = SHARD_VERIFY_OPTIONS_INIT;
  options.threads = 1;
  TRY(shard_checkpoint_verify(rank->checkpoint, &options));
}

constexpr Flow kFlows[] = {
    {"plan", PrepareNothing, RunPlan, CheckNothing, false},
    {"open", PrepareNothing, RunOpen, CheckNothing, true, true},
    {"comm", PrepareComm, RunComm, CheckNothing, true, true},
    {"create", PrepareComm, RunCreate, CheckNothing, true, true},
    {"fill", PrepareEngine, RunFill, CheckNothing},
    {"step", PrepareFilled, RunStep, CheckNothing},
    {"release", PrepareMissing, RunRelease, CheckNothing},
    {"summon", PrepareTrained, RunSummon, CheckNothing},
    {"replan", PrepareTrained, RunReplan, CheckNothing},
    {"save", PrepareTrained, RunSave, CheckSaved},
    {"save_async", PrepareTrained, RunSaveAsync, CheckSaved},
    {"save_and_leave", PrepareTrained, RunSaveAndLeave, CheckNothing},
    {"load", PrepareFilled, RunLoad, CheckNothing},
    {"state", PrepareTrained, RunState, CheckNothing},
    {"filled_state", PrepareTrained, RunFilledState, CheckNothing},
    {"shutdown", PrepareTrained, RunShutdown, CheckNothing, true, true},
    {"files", PrepareNothing, RunFiles, CheckNothing, false},
};

}  // namespace

std::span<const World> Worlds() { return kWorlds; }
std::span<const Flow> Flows() { return kFlows; }

void MakePlanForFlows(HostRank* rank) { PreparePlan(rank); }

void SaveForFlows(HostRank* rank) {
  PrepareTrained(rank);
  if (rank->code == SHARD_OK) Save(rank, "saved", nullptr);
}

void FreeAll(HostRank* rank) {
  shard_state_dict_free(std::exchange(rank->state, nullptr));
  shard_state_dict_free(std::exchange(rank->filled, nullptr));
  shard_engine_free(std::exchange(rank->engine, nullptr));
  shard_save_free(std::exchange(rank->save, nullptr));
  shard_checkpoint_free(std::exchange(rank->checkpoint, nullptr));
  shard_comm_free(std::exchange(rank->comm, nullptr));
  shard_plan_free(std::exchange(rank->plan, nullptr));
  shard_model_free(std::exchange(rank->model, nullptr));
}

}  // namespace shard
