/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints what the library counts for the cases of docs/benchmarks.md: for each
 * form of AdamW on one rank "NAME:" and the bytes per element that a step reads
 * and writes, and last the flat buffers of 10,000 tensors. */

#include <stdio.h>
#include <stdlib.h>

#include "shard/shard.h"

static void Check(shard_error* error) {
  if (error == NULL) return;
  fprintf(stderr, "%s\n", shard_error_message(error));
  exit(1);
}

static void Print(const char* name, shard_comm* comm, shard_dtype dtype,
                  const char* optimizer, shard_masters masters,
                  double max_grad_norm) {
  const int64_t numel = 1 << 16;
  shard_model* model;
  shard_plan* plan;
  shard_engine* engine;
  int32_t param;
  Check(shard_model_create(NULL, &model));
  Check(shard_model_add_param(model, 0, "p", dtype, &numel, 1, &param));
  shard_plan_options options = SHARD_PLAN_OPTIONS_INIT;
  options.world_size = 1;
  options.optimizer = optimizer;
  options.masters = masters;
  Check(shard_plan_create(model, &options, &plan));
  Check(shard_engine_create(plan, comm, NULL, &engine));
  Check(shard_engine_broadcast_params(engine, 0));
  shard_step_options step = SHARD_STEP_OPTIONS_INIT;
  step.max_grad_norm = max_grad_norm;
  shard_step_report report = SHARD_STEP_REPORT_INIT;
  Check(shard_engine_step(engine, &step, &report));
  printf("%s: %g\n", name, (double)report.bytes_moved / (double)numel);
  shard_engine_free(engine);
  shard_plan_free(plan);
  shard_model_free(model);
}

static void PrintBuffers(void) {
  const int tensors = 10000;
  const int64_t numel = ((int64_t)1 << 30) / tensors;
  shard_model* model;
  shard_plan* plan;
  Check(shard_model_create(NULL, &model));
  for (int i = 0; i < tensors; ++i) {
    char name[16];
    int32_t param;
    snprintf(name, sizeof(name), "p%d", i);
    Check(shard_model_add_param(model, 0, name, SHARD_F32, &numel, 1, &param));
  }
  shard_plan_options options = SHARD_PLAN_OPTIONS_INIT;
  options.world_size = 1;
  Check(shard_plan_create(model, &options, &plan));
  shard_plan_info info = SHARD_PLAN_INFO_INIT;
  Check(shard_plan_get_info(plan, &info));
  printf("buffers: %d\n", info.num_buffers);
  shard_plan_free(plan);
  shard_model_free(model);
}

int main(void) {
  shard_comm* comm;
  Check(shard_comm_open("local:", NULL, &comm));
  Print("adamw f32, 1 tensor", comm, SHARD_F32, "adamw", 0, 0);
  Print("adamw f32, clipped", comm, SHARD_F32, "adamw", 0, 1);
  Print("adamw bf16 with masters", comm, SHARD_BF16, "adamw", SHARD_MASTERS_F32,
        0);
  Print("adamw f32, states of 8 bits", comm, SHARD_F32, "adamw?states=q8", 0,
        0);
  shard_comm_free(comm);
  PrintBuffers();
  return 0;
}
