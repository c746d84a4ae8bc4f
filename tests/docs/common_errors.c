/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the mistakes that docs/porting.md explains, and prints the error of
 * each on a line: CODE: message. Usage: common_errors FOLDER, for checkpoints.
 */

/* Declares setenv. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "shard/shard.h"

/* The objects of one rank. Parameter 0 is in the root, and so in unit 0;
 * parameter and unit i are those of block i, up to kBlocks. */
typedef struct host {
  shard_comm* comm;
  shard_model* model;
  shard_plan* plan;
  shard_engine* engine;
} host;

enum { kBlocks = 8, kNumel = 6000 };

/* Ends the program at a mistake that is not on purpose. */
static void check(shard_error* error) {
  if (error == NULL) return;
  printf("unexpected: %s\n", shard_error_message(error));
  exit(1);
}

static void print(shard_error* error) {
  printf("%s: %s\n", shard_code_name(shard_error_code(error)),
         shard_error_message(error));
  shard_error_free(error);
}

static shard_plan_options options_for(int32_t stage, int32_t world_size) {
  shard_plan_options options = SHARD_PLAN_OPTIONS_INIT;
  options.stage = stage;
  options.world_size = world_size;
  options.wrap = "class?names=Block";
  return options;
}

static void declare(host* h) {
  const int64_t shape[] = {kNumel};
  check(shard_model_create("Net", &h->model));
  check(
      shard_model_add_param(h->model, 0, "weight", SHARD_F32, shape, 1, NULL));
  for (int i = 1; i <= kBlocks; i++) {
    const char name[] = {(char)('0' + i), '\0'};
    int32_t block;
    check(shard_model_add_module(h->model, 0, name, "Block", &block));
    check(shard_model_add_param(h->model, block, "weight", SHARD_F32, shape, 1,
                                NULL));
  }
}

/* Opens the communicator and makes the engine of a stage. */
static void begin(host* h, const char* url, int32_t rank, int32_t ranks,
                  int32_t stage) {
  shard_comm_options comm_options = SHARD_COMM_OPTIONS_INIT;
  comm_options.rank = rank;
  comm_options.world_size = ranks;
  const shard_plan_options options = options_for(stage, ranks);
  declare(h);
  check(shard_comm_open(url, &comm_options, &h->comm));
  check(shard_plan_create(h->model, &options, &h->plan));
  check(shard_engine_create(h->plan, h->comm, NULL, &h->engine));
}

static void end(host* h) {
  shard_engine_free(h->engine);
  shard_plan_free(h->plan);
  shard_model_free(h->model);
  shard_comm_free(h->comm);
}

/* ---- One rank -------------------------------------------------------------
 */

static void plans(void) {
  host h = {0};
  shard_plan_options options = SHARD_PLAN_OPTIONS_INIT;
  declare(&h);
  print(shard_plan_create(h.model, &options, &h.plan));
  options.world_size = 1;
  options.struct_size = 0;
  print(shard_plan_create(h.model, &options, &h.plan));
  options = options_for(1, 1);
  options.wrap = "class?names=Blok";
  print(shard_plan_create(h.model, &options, &h.plan));
  options = options_for(1, 1);
  options.optimizer = "adamw?learning_rate=0.1";
  print(shard_plan_create(h.model, &options, &h.plan));
  options = options_for(3, 2);
  options.wrap = NULL;
  options.require_sharding = 1;
  print(shard_plan_create(h.model, &options, &h.plan));

  options = options_for(1, 2);
  check(shard_comm_open("local:", NULL, &h.comm));
  check(shard_plan_create(h.model, &options, &h.plan));
  print(shard_engine_create(h.plan, h.comm, NULL, &h.engine));
  end(&h);
}

static void libraries(void) {
  host h = {0};
  shard_plan_options options = options_for(1, 1);
  options.optimizer = "muon";
  const int64_t shape[] = {4, 4};
  setenv("SHARD_BLAS_LIBRARY", "libmine.so", 1);
  check(shard_model_create(NULL, &h.model));
  check(shard_model_add_param(h.model, 0, "m", SHARD_F32, shape, 2, NULL));
  options.wrap = NULL;
  check(shard_comm_open("local:", NULL, &h.comm));
  check(shard_plan_create(h.model, &options, &h.plan));
  print(shard_engine_create(h.plan, h.comm, NULL, &h.engine));
  end(&h);
}

static void steps(const char* folder) {
  host h = {0};
  begin(&h, "local:", 0, 1, 1);
  print(shard_engine_step(h.engine, NULL, NULL));
  check(shard_engine_broadcast_params(h.engine, 0));
  print(shard_engine_broadcast_params(h.engine, 0));
  check(shard_engine_unit_acquire(h.engine, 1, SHARD_PASS_BACKWARD, 0));
  check(shard_engine_mark_unit_grads_ready(h.engine, 1));
  check(shard_engine_unit_release(h.engine, 1));
  print(shard_engine_step(h.engine, NULL, NULL));
  for (int32_t unit = 0; unit <= kBlocks; unit++) {
    if (unit == 1) continue;
    check(shard_engine_mark_unit_grads_ready(h.engine, unit));
  }
  check(shard_engine_step(h.engine, NULL, NULL));
  print(shard_checkpoint_load(h.engine, folder, NULL, NULL));
  check(shard_checkpoint_save(h.engine, folder, NULL, NULL));
  print(shard_checkpoint_save(h.engine, folder, NULL, NULL));
  end(&h);

  /* Another model does not fit. */
  host other = {0};
  const int64_t shape[] = {kNumel};
  shard_plan_options options = options_for(1, 1);
  options.wrap = NULL;
  check(shard_model_create("Net", &other.model));
  check(shard_model_add_param(other.model, 0, "weight", SHARD_F32, shape, 1,
                              NULL));
  check(
      shard_model_add_param(other.model, 0, "gain", SHARD_F32, shape, 1, NULL));
  check(shard_comm_open("local:", NULL, &other.comm));
  check(shard_plan_create(other.model, &options, &other.plan));
  check(shard_engine_create(other.plan, other.comm, NULL, &other.engine));
  print(shard_checkpoint_load(other.engine, folder, NULL, NULL));
  end(&other);
}

static void meeting(void) {
  shard_comm_options options = SHARD_COMM_OPTIONS_INIT;
  shard_comm* comm;
  options.world_size = 2;
  options.timeout = 0.2;
  print(shard_comm_open("threads:2?name=alone", &options, &comm));
  print(shard_comm_open("udp://host", &options, &comm));
}

/* ---- Two ranks: rank 0 prints ---------------------------------------------
 */

static void* sharded(void* argument) {
  const int32_t rank = argument != NULL;
  host h = {0};
  begin(&h, "threads:2?direct=0", rank, 2, 3);
  check(shard_engine_broadcast_params(h.engine, 0));
  const void* data;
  void* grad;
  shard_error* param_error = shard_engine_param(h.engine, 1, &data, NULL);
  shard_error* grad_error = shard_engine_grad(h.engine, 1, &grad, NULL);
  if (rank == 0) print(param_error), print(grad_error);
  if (rank == 1) shard_error_free(param_error), shard_error_free(grad_error);
  check(shard_comm_shutdown(h.comm, 0));
  end(&h);
  return NULL;
}

static void* different(void* argument) {
  const int32_t rank = argument != NULL;
  host h = {0};
  begin(&h, "threads:2?name=different", rank, 2, 1);
  check(shard_engine_broadcast_params(h.engine, 0));
  shard_step_options options = SHARD_STEP_OPTIONS_INIT;
  options.max_grad_norm = rank == 0 ? 1 : 2;
  shard_error* error = shard_engine_step(h.engine, &options, NULL);
  if (rank == 0) print(error);
  if (rank == 1) shard_error_free(error);
  end(&h);
  return NULL;
}

static void* deadlock(void* argument) {
  const int32_t rank = argument != NULL;
  host h = {0};
  begin(&h, "threads:2?name=deadlock", rank, 2, 1);
  check(shard_engine_broadcast_params(h.engine, 0));
  double loss = 1;
  shard_error* error = rank == 0 ? shard_comm_sum(h.comm, &loss, 1, 0)
                                 : shard_engine_step(h.engine, NULL, NULL);
  if (rank == 0) print(error);
  if (rank == 1) shard_error_free(error);
  end(&h);
  return NULL;
}

static void* lost(void* argument) {
  const int32_t rank = argument != NULL;
  host h = {0};
  begin(&h, "threads:2?name=lost", rank, 2, 1);
  check(shard_engine_broadcast_params(h.engine, 0));
  if (rank == 0) print(shard_engine_step(h.engine, NULL, NULL));
  end(&h);
  return NULL;
}

static void on_two_ranks(void* (*rank)(void*)) {
  pthread_t other;
  static int one;
  if (pthread_create(&other, NULL, rank, &one) != 0) exit(1);
  rank(NULL);
  pthread_join(other, NULL);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  meeting();
  plans();
  libraries();
  steps(argv[1]);
  on_two_ranks(sharded);
  on_two_ranks(different);
  on_two_ranks(deadlock);
  on_two_ranks(lost);
  return 0;
}
