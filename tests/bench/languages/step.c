/* SPDX-License-Identifier: Apache-2.0
 *
 * The training of tests/bench/ffi.cc in C: the program that those in other
 * languages are compared with. */

#define _POSIX_C_SOURCE 199309L /* clock_gettime */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shard/shard.h"

enum { kSteps = 4 };

static void require(shard_error* error) {
  if (error == NULL) return;
  fprintf(stderr, "step_c: %s\n", shard_error_message(error));
  exit(1);
}

static void* allocate(size_t bytes) {
  void* memory = malloc(bytes);
  if (memory == NULL) exit(1);
  return memory;
}

/* A unit and its parameters. */
typedef struct {
  int32_t* params;
  size_t count;
} unit;

static shard_plan* read_plan(const char* path) {
  FILE* file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) exit(1);
  const size_t size = (size_t)ftell(file);
  rewind(file);
  void* bytes = allocate(size);
  if (fread(bytes, 1, size, file) != size) exit(1);
  fclose(file);
  shard_plan* plan;
  require(shard_plan_decode(bytes, size, &plan));
  free(bytes);
  return plan;
}

static void fill(shard_engine* engine, const shard_plan* plan, int32_t param) {
  shard_param_info info = SHARD_PARAM_INFO_INIT;
  require(shard_plan_param_info(plan, param, &info));
  const size_t bytes = (size_t)info.numel * sizeof(float);
  float* values = allocate(bytes);
  for (int64_t i = 0; i < info.numel; ++i) values[i] = 1 + (float)param / 256;
  require(shard_engine_set_param(engine, param, values, bytes));
  free(values);
}

/* Trains for a step, and returns the loss. */
static double train(shard_engine* engine, const unit* units, int32_t count) {
  double loss = 0;
  const void* data;
  void* grads;
  for (int32_t u = 0; u < count; ++u) {
    require(shard_engine_unit_acquire(engine, u, SHARD_PASS_FORWARD, 0));
    for (size_t i = 0; i < units[u].count; ++i) {
      require(shard_engine_param(engine, units[u].params[i], &data, NULL));
      const double p = *(const float*)data;
      loss += 0.5 * p * p;
    }
    require(shard_engine_unit_release(engine, u));
  }
  for (int32_t u = count - 1; u >= 0; --u) {
    require(shard_engine_unit_acquire(engine, u, SHARD_PASS_BACKWARD, 0));
    for (size_t i = 0; i < units[u].count; ++i) {
      require(shard_engine_param(engine, units[u].params[i], &data, NULL));
      require(shard_engine_grad(engine, units[u].params[i], &grads, NULL));
      *(float*)grads = *(const float*)data;
    }
    require(shard_engine_mark_unit_grads_ready(engine, u));
    require(shard_engine_unit_release(engine, u));
  }
  require(shard_engine_step(engine, NULL, NULL));
  return loss;
}

static double milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  shard_plan* plan = read_plan(argv[1]);
  shard_comm* comm;
  require(shard_comm_open("local:", NULL, &comm));
  shard_engine* engine;
  require(shard_engine_create(plan, comm, NULL, &engine));
  shard_plan_info info = SHARD_PLAN_INFO_INIT;
  require(shard_plan_get_info(plan, &info));
  for (int32_t p = 0; p < info.num_params; ++p) fill(engine, plan, p);
  require(shard_engine_broadcast_params(engine, 0));
  unit* units = allocate((size_t)info.num_units * sizeof(unit));
  for (int32_t u = 0; u < info.num_units; ++u) {
    require(shard_engine_unit_params(engine, u, NULL, NULL, NULL, 0,
                                     &units[u].count));
    units[u].params = allocate(units[u].count * sizeof(int32_t));
    require(shard_engine_unit_params(engine, u, units[u].params, NULL, NULL,
                                     units[u].count, NULL));
  }

  double loss = 0;
  char line[16];
  puts("peer: ready");
  fflush(stdout);
  while (fgets(line, sizeof(line), stdin) != NULL) {
    double answer = loss;
    if (strcmp(line, "train\n") == 0) {
      const double start = milliseconds();
      for (int i = 0; i < kSteps; ++i) {
        loss = train(engine, units, info.num_units);
      }
      answer = milliseconds() - start;
    }
    printf("peer: %.17g\n", answer);
    fflush(stdout);
  }
  return 0;
}
