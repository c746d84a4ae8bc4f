// SPDX-License-Identifier: Apache-2.0
//
// Read it from the bottom. Each function returns false after it has printed the
// reason.

#include "samples/gpt/prepare.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "samples/gpt/captured_step.h"
#include "samples/gpt/checkpoint.h"
#include "samples/gpt/declare.h"
#include "samples/gpt/device.h"
#include "samples/gpt/gpt.h"
#include "samples/gpt/options.h"
#include "samples/gpt/print_summary.h"
#include "samples/gpt/progress.h"
#include "samples/gpt/text.h"
#include "samples/gpt/units.h"
#include "shard/shard.h"

static void print_warning(int32_t level, const char* message, void* trainer) {
  (void)level;
  (void)trainer;
  fprintf(stderr, "train_gpt: %s\n", message);
}

// Connects to the other ranks and takes this rank's share of the batch.
static bool open_comm(trainer* t) {
  const options* opts = t->opts;
  const char* query = opts->no_shared_memory ? "?direct=0" : "";
  char url[48];
  snprintf(url, sizeof(url), "env:%s", query);
  shard_comm_options comm_options = SHARD_COMM_OPTIONS_INIT;
  comm_options.timeout = opts->timeout;
  comm_options.log = print_warning;
  if (opts->rank_threads > 0) {
    snprintf(url, sizeof(url), "threads:%d%s", opts->rank_threads, query);
    comm_options.rank = t->rank;
    comm_options.world_size = opts->rank_threads;
  }
  if (!trainer_ok(t, "open communicator",
                  shard_comm_open(url, &comm_options, &t->comm))) {
    return false;
  }
  t->rank = shard_comm_rank(t->comm);
  t->world_size = shard_comm_world_size(t->comm);
  if ((opts->check || opts->capture) && t->world_size != 1) {
    char why[96];
    snprintf(why, sizeof(why), "runs on one rank, not on %d", t->world_size);
    trainer_complain(t, opts->check ? "--check" : "--capture", why);
    return false;
  }
  if (opts->batch % t->world_size != 0) {
    // Every rank prints the error: the first rank to end may end the others.
    char why[96];
    snprintf(why, sizeof(why), "%d does not divide by %d ranks", opts->batch,
             t->world_size);
    trainer_complain(t, "--batch", why);
    return false;
  }
  t->batch = opts->batch / t->world_size;
  return true;
}

static bool load_text(trainer* t) {
  char message[512];
  if (!text_load(&t->data, t->opts->text, t->opts->model.context, message,
                 sizeof(message))) {
    return trainer_fail(t, "--text", message);
  }
  const size_t stride = (size_t)t->opts->model.context + 1;
  t->sequences = malloc((size_t)t->batch * stride);
  return t->sequences || trainer_fail(t, "batch", "out of memory");
}

// Declares the model, plans its sharding, and lets libshard allocate it.
static bool shard(trainer* t) {
  shard_engine_options engine_options = SHARD_ENGINE_OPTIONS_INIT;
  engine_options.overlap = t->opts->overlap;
  char message[512];
  if (!device_choose(&t->device, t->opts->device, t->comm, message,
                     sizeof(message))) {
    return trainer_fail(t, "--device", message);
  }
  engine_options.device = t->device.name;
  return trainer_ok(t, "model", declare_model(t->opts, &t->model)) &&
         trainer_ok(t, "plan",
                    declare_plan(t->model, t->opts, t->world_size, &t->plan)) &&
         trainer_ok(t, "engine",
                    shard_engine_create(t->plan, t->comm, &engine_options,
                                        &t->engine));
}

static bool open_device(trainer* t) {
  char message[1100];
  return device_open(&t->device, t->engine, t->batch, t->opts->model.context,
                     message, sizeof(message)) ||
         trainer_fail(t, "--device", message);
}

// Restores the values and the position in the data of a saved run. Every rank
// sees a mistake and prints it, as with the batch.
static bool resume(trainer* t) {
  resumed_run* run = &t->resumed;
  char why[128];
  if (!trainer_ok(t, "--resume", checkpoint_resume(t->opts, t->engine, run))) {
    return false;
  }
  if (checkpoint_fits(t->opts, run, why, sizeof(why))) return true;
  trainer_complain(t, "--resume", why);
  return false;
}

// Sets initial values. All ranks compute the same ones, and rank 0's are
// broadcast.
static bool initialize(trainer* t) {
  if (t->opts->resume) return resume(t);
  const gpt_config* config = &t->opts->model;
  for (int i = 0; i < gpt_tensor_count(config); i++) {
    const size_t bytes = (size_t)gpt_tensor_at(config, i).numel * sizeof(real);
    real* values = malloc(bytes);
    if (!values) return trainer_fail(t, "initial values", "out of memory");
    gpt_initialize(config, i, t->opts->seed, values);
    shard_error* error = shard_engine_set_param(t->engine, i, values, bytes);
    free(values);
    if (!trainer_ok(t, "initial values", error)) return false;
  }
  return trainer_ok(t, "broadcast",
                    shard_engine_broadcast_params(t->engine, 0));
}

// Creates the model on the pointers to parameters and gradients that units.c
// keeps up to date.
static bool connect(trainer* t) {
  const gpt_config* config = &t->opts->model;
  if (!trainer_ok(t, "units",
                  units_connect(&t->units, config, t->plan, t->engine))) {
    return false;
  }
  const bool capture = t->opts->capture;
  if (capture && !trainer_ok(t, "tensors", units_find_all(&t->units)))
    return false;
  const gpt_hooks hooks = units_hooks(&t->units);
  const layers* on = t->device.on;
  size_t bytes = 0;
  t->net = gpt_create(config, t->batch, t->units.params, t->units.grads,
                      capture ? NULL : &hooks, t->device.on, &bytes);
  if (!t->net) {
    char why[1200];
    snprintf(why, sizeof(why), "out of memory: %zu bytes for %d sequences%s%s",
             bytes, t->batch, on->error ? ": " : "",
             on->error ? on->error : "");
    return trainer_fail(t, "activations", why);
  }
  t->captured = (captured_step){.on = t->device.gpu,
                                .model = t->net,
                                .engine = t->engine,
                                .batch = t->batch,
                                .context = config->context};
  return true;
}

static bool begin(trainer* t) {
  if (t->rank != 0) return true;
  const options* opts = t->opts;
  if (!trainer_ok(t, "introduction",
                  print_summary(opts, &t->data, t->comm, t->plan, t->engine))) {
    return false;
  }
  if (opts->resume) {
    printf("resumed %s: step %lld saved by %d rank%s\n", opts->resume,
           (long long)t->resumed.step, (int)t->resumed.world_size,
           t->resumed.world_size == 1 ? "" : "s");
  }
  char message[512];
  t->shown =
      progress_open(opts->steps, (int64_t)opts->batch * opts->model.context,
                    opts->log, message, sizeof(message));
  return t->shown || trainer_fail(t, "--log", message);
}

bool prepare_training(trainer* t) {
  return open_comm(t) && load_text(t) && shard(t) && open_device(t) &&
         initialize(t) && connect(t) && begin(t);
}

bool prepare_check(trainer* t) {
  return open_comm(t) && shard(t) && open_device(t);
}
