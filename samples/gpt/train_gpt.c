// SPDX-License-Identifier: Apache-2.0
//
// Trains a byte-level GPT with libshard, data-parallel over any number of
// ranks. Read it from the bottom: main, run_rank, then what run_rank calls.
//
// libshard finds the other ranks, holds and shards parameters, gradients and
// optimizer states, gathers each unit where it is needed (units.c), and turns
// the gradients of all ranks into new parameters in one call per step. The
// sample has the model (gpt.c), the data (text.c) and the loop (here).

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "samples/gpt/captured_step.h"
#include "samples/gpt/check.h"
#include "samples/gpt/check_device.h"
#include "samples/gpt/checkpoint.h"
#include "samples/gpt/declare.h"
#include "samples/gpt/device.h"
#include "samples/gpt/gpt.h"
#include "samples/gpt/options.h"
#include "samples/gpt/print_summary.h"
#include "samples/gpt/progress.h"
#include "samples/gpt/rank_threads.h"
#include "samples/gpt/sample.h"
#include "samples/gpt/text.h"
#include "samples/gpt/units.h"
#include "shard/shard.h"

// The most held-out sequences that a validation reads: enough for two digits.
enum { kHeldOutLimit = 256 };

// One rank. The trainer owns everything that the rank has; run_rank frees it.
typedef struct trainer {
  const options* opts;
  int rank;  // -1 until it is known.
  int world_size;
  int batch;      // Sequences per step of this rank.
  bool followed;  // Whether this rank ends because another was lost.
  shard_comm* comm;
  shard_model* model;
  shard_plan* plan;
  shard_engine* engine;
  resumed_run resumed;
  shard_save* saving;  // The last save.
  units units;
  device device;
  gpt* net;
  captured_step captured;  // For --capture.
  text data;
  uint8_t* sequences;
  progress* shown;  // Rank 0 only.
  double validation_loss;
  uint8_t* sample;  // Rank 0 only.
} trainer;

// ---- Failures -------------------------------------------------------------

// Each function below returns false after it has printed the reason with
// `complain` or `fail`; run_rank then frees what there is.

static void complain(trainer* t, const char* what, const char* why) {
  progress_end_line(t->shown);
  if (t->rank < 0) {
    fprintf(stderr, "train_gpt: %s: %s\n", what, why);
  } else {
    fprintf(stderr, "train_gpt: rank %d: %s: %s\n", t->rank, what, why);
  }
}

// Reports a failure of this rank alone. The other ranks are on their way to the
// next collective, so the abort tells them not to wait there.
static bool fail(trainer* t, const char* what, const char* why) {
  complain(t, what, why);
  if (t->comm) {
    char reason[256];
    snprintf(reason, sizeof(reason), "%s: %s", what, why);
    shard_error_free(shard_comm_abort(t->comm, reason));
  }
  return false;
}

static bool ok(trainer* t, const char* what, shard_error* error) {
  if (!error) return true;
  const shard_code code = shard_error_code(error);
  char why[1024];
  snprintf(why, sizeof(why), "%s: %s", shard_code_name(code),
           shard_error_message(error));
  shard_error_free(error);
  if (code == SHARD_RANK_LOST) t->followed = true;
  if (code == SHARD_DESYNC || code == SHARD_RANK_LOST ||
      code == SHARD_POISONED || code == SHARD_DEADLINE_EXCEEDED) {
    // These codes concern the group: every rank is told.
    complain(t, what, why);
    return false;
  }
  return fail(t, what, why);
}

// ---- Before the first step ------------------------------------------------

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
  if (!ok(t, "open communicator",
          shard_comm_open(url, &comm_options, &t->comm))) {
    return false;
  }
  t->rank = shard_comm_rank(t->comm);
  t->world_size = shard_comm_world_size(t->comm);
  if ((opts->check || opts->capture) && t->world_size != 1) {
    char why[96];
    snprintf(why, sizeof(why), "runs on one rank, not on %d", t->world_size);
    complain(t, opts->check ? "--check" : "--capture", why);
    return false;
  }
  if (opts->batch % t->world_size != 0) {
    // Every rank prints the error: the first rank to end may end the others.
    char why[96];
    snprintf(why, sizeof(why), "%d does not divide by %d ranks", opts->batch,
             t->world_size);
    complain(t, "--batch", why);
    return false;
  }
  t->batch = opts->batch / t->world_size;
  return true;
}

static bool load_text(trainer* t) {
  char message[512];
  if (!text_load(&t->data, t->opts->text, t->opts->model.context, message,
                 sizeof(message))) {
    return fail(t, "--text", message);
  }
  const size_t stride = (size_t)t->opts->model.context + 1;
  t->sequences = malloc((size_t)t->batch * stride);
  return t->sequences || fail(t, "batch", "out of memory");
}

// Declares the model, plans its sharding, and lets libshard allocate it.
static bool shard(trainer* t) {
  shard_engine_options engine_options = SHARD_ENGINE_OPTIONS_INIT;
  engine_options.overlap = t->opts->overlap;
  char message[512];
  if (!device_choose(&t->device, t->opts->device, t->comm, message,
                     sizeof(message))) {
    return fail(t, "--device", message);
  }
  engine_options.device = t->device.name;
  return ok(t, "model", declare_model(t->opts, &t->model)) &&
         ok(t, "plan",
            declare_plan(t->model, t->opts, t->world_size, &t->plan)) &&
         ok(t, "engine",
            shard_engine_create(t->plan, t->comm, &engine_options, &t->engine));
}

static bool open_device(trainer* t) {
  char message[1100];
  return device_open(&t->device, t->engine, t->batch, t->opts->model.context,
                     message, sizeof(message)) ||
         fail(t, "--device", message);
}

// Restores the values and the position in the data of a saved run. Every rank
// sees a mistake and prints it, as with the batch.
static bool resume(trainer* t) {
  resumed_run* run = &t->resumed;
  char why[128];
  if (!ok(t, "--resume", checkpoint_resume(t->opts, t->engine, run))) {
    return false;
  }
  if (checkpoint_fits(t->opts, run, why, sizeof(why))) return true;
  complain(t, "--resume", why);
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
    if (!values) return fail(t, "initial values", "out of memory");
    gpt_initialize(config, i, t->opts->seed, values);
    shard_error* error = shard_engine_set_param(t->engine, i, values, bytes);
    free(values);
    if (!ok(t, "initial values", error)) return false;
  }
  return ok(t, "broadcast", shard_engine_broadcast_params(t->engine, 0));
}

// Creates the model on the pointers to parameters and gradients that units.c
// keeps up to date.
static bool connect(trainer* t) {
  const gpt_config* config = &t->opts->model;
  if (!ok(t, "units", units_connect(&t->units, config, t->plan, t->engine))) {
    return false;
  }
  const bool capture = t->opts->capture;
  if (capture && !ok(t, "tensors", units_find_all(&t->units))) return false;
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
    return fail(t, "activations", why);
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
  if (!ok(t, "introduction",
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
  return t->shown || fail(t, "--log", message);
}

// ---- Training -------------------------------------------------------------

// Reports the error of a pass, where there is one. `done` is the result of the
// model's pass, which the hooks of units.c and the layers of a GPU stop.
static bool passed(trainer* t, const char* pass, bool done) {
  if (done) return true;
  shard_error* error = t->units.error;
  t->units.error = NULL;
  if (!error) return fail(t, pass, t->device.on->error);
  return ok(t, pass, error) && false;
}

// Computes the loss in nats per byte over the held-out text. Rank r reads every
// world_size-th sequence, and the ranks add their sums. A rank that has read
// all of its own goes through the passes of the others with nothing: they may
// need its part of the parameters.
static bool validate(trainer* t, int64_t step) {
  const int context = t->opts->model.context;
  const int64_t count = text_held_out_count(&t->data, context, kHeldOutLimit);
  const int64_t per_pass = (int64_t)t->batch * t->world_size;
  double sums[2] = {0, 0};  // Nats and bytes.
  for (int64_t first = 0; first < count; first += per_pass) {
    int batch = 0;
    for (int64_t i = first + t->rank; i < count && batch < t->batch;
         i += t->world_size) {
      text_held_out_sequence(
          &t->data, i, context, kHeldOutLimit,
          t->sequences + (size_t)batch * ((size_t)context + 1));
      batch++;
    }
    double nats = 0;
    if (!passed(t, "validation",
                gpt_forward(t->net, t->sequences, batch, context, &nats))) {
      return false;
    }
    sums[0] += nats;
    sums[1] += (double)batch * (double)context;
  }
  if (!ok(t, "validation", shard_comm_sum(t->comm, sums, 2, 0))) return false;
  t->validation_loss = sums[0] / sums[1];
  progress_report_validation(t->shown, step, t->validation_loss);
  return true;
}

static shard_step_options step_options(const trainer* t) {
  shard_step_options options = SHARD_STEP_OPTIONS_INIT;
  options.max_grad_norm = t->opts->clip;
  return options;
}

// Returns the mean loss of this rank's sequences, in nats per byte.
static double mean_loss(const trainer* t, double nats) {
  return nats / ((double)t->batch * (double)t->opts->model.context);
}

// Makes a step by calls of the model and of libshard. `loss` receives the mean
// over the batch.
static bool plain_step(trainer* t, double* loss, shard_step_report* report) {
  double nats = 0;
  if (!passed(t, "forward",
              gpt_forward(t->net, t->sequences, t->batch,
                          t->opts->model.context, &nats)) ||
      !passed(t, "backward", gpt_backward(t->net, t->sequences))) {
    return false;
  }
  *loss = mean_loss(t, nats);
  if (!ok(t, "loss", shard_comm_sum(t->comm, loss, 1, 0))) return false;
  *loss /= t->world_size;

  // Each rank's gradient is a mean over its own sequences; the step divides
  // their sum by the world size, which makes it the mean over the batch.
  const shard_step_options options = step_options(t);
  return ok(t, "step", shard_engine_step(t->engine, &options, report));
}

// Makes the same step as plain_step, with the same bits, by a graph. There is
// one rank.
static bool graph_step(trainer* t, double* loss, shard_step_report* report) {
  const shard_step_options options = step_options(t);
  double nats = 0;
  if (!ok(t, "--capture",
          captured_step_run(&t->captured, t->sequences, &options, &nats,
                            report))) {
    return false;
  }
  *loss = mean_loss(t, nats);
  const char* why = t->device.on->error;
  return !why || fail(t, "--capture", why);
}

static bool train_step(trainer* t, int64_t step) {
  const options* opts = t->opts;
  const int context = opts->model.context;
  const double started = progress_now();

  // This rank's share of the global batch: sequences rank * batch and on.
  for (int b = 0; b < t->batch; b++) {
    const int64_t index = (int64_t)t->rank * t->batch + b;
    text_training_sequence(&t->data, opts->seed, step, index, context,
                           t->sequences + (size_t)b * ((size_t)context + 1));
  }
  double lr;
  if (!ok(t, "schedule", learning_rate(opts, step + 1, &lr)) ||
      !ok(t, "learning rate",
          shard_engine_set_hyper(t->engine, -1, "lr", lr))) {
    return false;
  }
  // The first step of a run is plain: see captured_step_run.
  const bool by_graph = opts->capture && step > t->resumed.step;
  double loss = 0;
  shard_step_report report = SHARD_STEP_REPORT_INIT;
  if (!(by_graph ? graph_step(t, &loss, &report)
                 : plain_step(t, &loss, &report))) {
    return false;
  }
  const progress_step shown = {
      .step = step + 1,
      .loss = loss,
      .lr = lr,
      .grad_norm = report.grad_norm,
      .seconds = progress_now() - started,
      .skipped = report.skipped,
      .bytes_communicated = report.bytes_communicated,
      .bytes_overlapped = report.bytes_overlapped,
      .seconds_exposed = report.seconds_exposed,
  };
  progress_report(t->shown, &shown);
  return true;
}

// Starts a save. Training goes on while the checkpoint is written; the next
// save waits for it.
static bool save(trainer* t, int64_t step) {
  shard_save_free(t->saving);
  t->saving = NULL;
  return ok(t, "--save", checkpoint_save(t->opts, t->engine, step, &t->saving));
}

static bool due(int every, int64_t step) {
  return every > 0 && step % every == 0;
}

static bool train(trainer* t) {
  const options* opts = t->opts;
  // Validates where a resumed run begins, for comparison.
  if (opts->resume && !validate(t, t->resumed.step)) return false;
  for (int64_t step = t->resumed.step; step < opts->steps;) {
    if (!train_step(t, step)) return false;
    step++;
    const bool last = step == opts->steps;
    if (!last && due(opts->save_every, step) && !save(t, step)) return false;
    if ((last || due(opts->val_every, step)) && !validate(t, step)) {
      return false;
    }
  }
  return !opts->save || save(t, opts->steps);
}

// ---- After the last step --------------------------------------------------

// Draws the sample. Rank 0 writes; the others give it their parts of the
// parameters.
static bool draw_sample(trainer* t) {
  const int count = t->opts->sample;
  if (t->rank != 0) return passed(t, "sample", sample_attend(t->net, count));
  t->sample = malloc((size_t)count + 1);
  if (!t->sample) return fail(t, "sample", "out of memory");
  // Uses one sequence of a batch as the window: the text that the model sees.
  return passed(t, "sample",
                sample_text(t->net, &t->opts->model, t->opts->seed, count,
                            t->sequences, t->sample));
}

static bool finish(trainer* t) {
  if (t->saving && !ok(t, "--save", shard_save_wait(t->saving, 0))) {
    return false;
  }
  // This is the last collective: the rest is rank 0's alone.
  if (!ok(t, "shutdown", shard_comm_shutdown(t->comm, 0))) return false;
  if (t->rank != 0) return true;
  char message[512];
  const bool logged = progress_close(t->shown, message, sizeof(message));
  t->shown = NULL;
  if (!logged) {
    complain(t, "--log", message);
    return false;
  }
  const options* opts = t->opts;
  if (t->saving) printf("saved   %s: step %d\n", opts->save, opts->steps);
  if (opts->export_path) {
    if (!ok(t, "--export", checkpoint_export(opts))) return false;
    printf("exported %s\n", opts->export_path);
  }
  sample_print(t->sample, opts->sample);
  printf("validation loss %.4f\n", t->validation_loss);
  return true;
}

// Replaces the training by a check of the device (--check).
static bool check(trainer* t) {
  char message[1100];
  return check_device(t->opts, t->engine, &t->device, message,
                      sizeof(message)) ||
         fail(t, "--check", message);
}

// ---- One rank -------------------------------------------------------------

// Runs one rank. A `rank` of -1 stands for that of the environment. Returns the
// exit status.
static int run_rank(const options* opts, int rank) {
  trainer t = {.opts = opts, .rank = rank};
  const bool done =
      opts->check ? open_comm(&t) && shard(&t) && open_device(&t) && check(&t)
                  : open_comm(&t) && load_text(&t) && shard(&t) &&
                        open_device(&t) && initialize(&t) && connect(&t) &&
                        begin(&t) && train(&t) && draw_sample(&t) && finish(&t);
  char ignored[1];
  progress_close(t.shown, ignored, sizeof(ignored));
  gpt_free(t.net);
  free(t.sequences);
  text_free(&t.data);
  free(t.sample);
  shard_save_free(t.saving);
  shard_engine_free(t.engine);
  device_close(&t.device);
  shard_plan_free(t.plan);
  shard_model_free(t.model);
  shard_comm_free(t.comm);
  if (done) return 0;
  // With the code of RANK_LOST, shardctl run looks for the rank that failed.
  return t.followed ? SHARD_RANK_LOST : 1;
}

int main(int argc, char** argv) {
  options opts;
  char message[512];
  if (!options_parse(&opts, argc, argv, message, sizeof(message))) {
    fprintf(stderr, "train_gpt: %s\n", message);
    fprintf(stderr, "train_gpt: --help lists the options\n");
    return 2;
  }
  if (opts.help) {
    options_print_help(stdout);
    return 0;
  }
  // Ranks share the cores. A BLAS that took all of them for each rank would
  // make the ranks wait for one another.
  openblas_set_num_threads(1);
  if (opts.check && strcmp(opts.device, "cpu") == 0) return check_all() ? 0 : 1;
  if (opts.check) opts = check_device_options(&opts);
  return opts.rank_threads > 0 ? rank_threads_run(run_rank, &opts)
                               : run_rank(&opts, -1);
}
