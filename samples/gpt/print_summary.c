// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/print_summary.h"

#include <stdint.h>
#include <stdio.h>

static double kib(uint64_t bytes) { return (double)bytes / 1024; }

// Prints the memory that the engine really has allocated. Ranks that share
// memory have one copy of the parameters.
static shard_error* print_memory(const shard_engine* engine) {
  shard_memory memory = SHARD_MEMORY_INIT;
  shard_error* error = shard_engine_memory(engine, &memory);
  if (error) return error;
  printf("memory  KiB per rank: parameters %.0f, gradients %.0f, ",
         kib(memory.param_bytes), kib(memory.grad_bytes));
  printf("optimizer states %.0f, transient %.0f\n",
         kib(memory.state_bytes + memory.workspace_bytes),
         kib(memory.transient_bytes));
  return NULL;
}

// Prints the optimizer of each param group: those of declare.c, group 0 first.
static shard_error* print_groups(int32_t groups, const shard_engine* engine) {
  for (int32_t i = 0; i < groups; i++) {
    char optimizer[512];
    size_t length = 0;
    shard_error* error = shard_engine_group_text(engine, i, optimizer,
                                                 sizeof(optimizer), &length);
    if (error) return error;
    printf("group %d %s\n", (int)i, optimizer);
  }
  return NULL;
}

shard_error* print_summary(const options* opts, const text* data,
                           const shard_comm* comm, const shard_plan* plan,
                           const shard_engine* engine) {
  const gpt_config* config = &opts->model;
  const char* ranks;
  shard_plan_info info = SHARD_PLAN_INFO_INIT;
  shard_error* error = shard_comm_describe(comm, &ranks);
  if (!error) error = shard_plan_get_info(plan, &info);
  if (error) return error;
  printf("ranks   %s\n", ranks);
  printf("text    %s: %d files, %zu bytes to train on, %zu held out\n",
         opts->text, data->files, data->train_bytes, data->held_out_bytes);
  printf("model   %lld parameters: %d layers, width %d, %d heads, context %d\n",
         (long long)gpt_parameter_count(config), config->layers, config->width,
         config->heads, config->context);
  printf("plan    stage %d, %s; %d units\n", opts->stage, opts->partition,
         (int)info.num_units);
  error = print_memory(engine);
  if (!error) error = print_groups(info.num_groups, engine);
  fflush(stdout);
  return error;
}
