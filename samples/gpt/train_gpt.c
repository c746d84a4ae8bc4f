// SPDX-License-Identifier: Apache-2.0
//
// Trains a byte-level GPT with libshard, data-parallel over any number of
// ranks. Read it from the bottom: main, run_rank, then what run_rank calls.
//
// libshard finds the other ranks, holds and shards parameters, gradients and
// optimizer states, gathers each unit where it is needed (units.c), and turns
// the gradients of all ranks into new parameters in one call per step. The
// sample has the model (gpt.c), the data (text.c), what comes before the first
// step (prepare.c) and the loop (here).

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
#include "samples/gpt/prepare.h"
#include "samples/gpt/progress.h"
#include "samples/gpt/rank_threads.h"
#include "samples/gpt/sample.h"
#include "samples/gpt/text.h"
#include "samples/gpt/trainer.h"
#include "samples/gpt/units.h"
#include "shard/shard.h"

// The most held-out sequences that a validation reads: enough for two digits.
enum { kHeldOutLimit = 256 };

// Each function below returns false after it has printed the reason; run_rank
// then frees what there is.

// ---- Training -------------------------------------------------------------

// Reports the error of a pass, where there is one. `done` is the result of the
// model's pass, which the hooks of units.c and the layers of a GPU stop.
static bool passed(trainer* t, const char* pass, bool done) {
  if (done) return true;
  shard_error* error = t->units.error;
  t->units.error = NULL;
  if (!error) return trainer_fail(t, pass, t->device.on->error);
  return trainer_ok(t, pass, error) && false;
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
  if (!trainer_ok(t, "validation", shard_comm_sum(t->comm, sums, 2, 0)))
    return false;
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
  if (!trainer_ok(t, "loss", shard_comm_sum(t->comm, loss, 1, 0))) return false;
  *loss /= t->world_size;

  // Each rank's gradient is a mean over its own sequences; the step divides
  // their sum by the world size, which makes it the mean over the batch.
  const shard_step_options options = step_options(t);
  return trainer_ok(t, "step", shard_engine_step(t->engine, &options, report));
}

// Makes the same step as plain_step, with the same bits, by a graph. There is
// one rank.
static bool graph_step(trainer* t, double* loss, shard_step_report* report) {
  const shard_step_options options = step_options(t);
  double nats = 0;
  shard_error* error =
      captured_step_run(&t->captured, t->sequences, &options, &nats, report);
  *loss = mean_loss(t, nats);
  const char* why = t->device.on->error;
  if (trainer_ok(t, "--capture", error) &&
      (!why || trainer_fail(t, "--capture", why))) {
    return true;
  }
  // A run does not become a slower one unasked, hours of it perhaps: one step
  // is all that is lost here.
  if (!t->captured.is_captured) {
    trainer_complain(t, "--capture",
                     "no step was captured, and the run ends; without "
                     "--capture it makes plain steps");
  }
  return false;
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
  if (!trainer_ok(t, "schedule", learning_rate(opts, step + 1, &lr)) ||
      !trainer_ok(t, "learning rate",
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
  return trainer_ok(t, "--save",
                    checkpoint_save(t->opts, t->engine, step, &t->saving));
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
  if (!t->sample) return trainer_fail(t, "sample", "out of memory");
  // Uses one sequence of a batch as the window: the text that the model sees.
  return passed(t, "sample",
                sample_text(t->net, &t->opts->model, t->opts->seed, count,
                            t->sequences, t->sample));
}

static bool finish(trainer* t) {
  if (t->saving && !trainer_ok(t, "--save", shard_save_wait(t->saving, 0))) {
    return false;
  }
  // This is the last collective: the rest is rank 0's alone.
  if (!trainer_ok(t, "shutdown", shard_comm_shutdown(t->comm, 0))) return false;
  if (t->rank != 0) return true;
  char message[512];
  const bool logged = progress_close(t->shown, message, sizeof(message));
  t->shown = NULL;
  if (!logged) {
    trainer_complain(t, "--log", message);
    return false;
  }
  const options* opts = t->opts;
  if (t->saving) printf("saved   %s: step %d\n", opts->save, opts->steps);
  if (opts->export_path) {
    if (!trainer_ok(t, "--export", checkpoint_export(opts))) return false;
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
         trainer_fail(t, "--check", message);
}

// ---- One rank -------------------------------------------------------------

// Runs one rank. A `rank` of -1 stands for that of the environment. Returns the
// exit status.
static int run_rank(const options* opts, int rank) {
  trainer t = {.opts = opts, .rank = rank};
  const bool done = opts->check ? prepare_check(&t) && check(&t)
                                : prepare_training(&t) && train(&t) &&
                                      draw_sample(&t) && finish(&t);
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
