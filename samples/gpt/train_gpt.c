// SPDX-License-Identifier: Apache-2.0
//
// Trains a byte-level GPT with libshard, data-parallel over any number of
// ranks. Read it from the bottom: main, run_rank, then what run_rank calls.
//
// What libshard does here: it finds the other ranks, holds parameters and
// gradients, shards the optimizer, and turns everybody's gradients into new
// parameters in one call per step. What it does not: the model (gpt.c), the
// data (text.c), the loop (here).

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "samples/gpt/check.h"
#include "samples/gpt/declare.h"
#include "samples/gpt/gpt.h"
#include "samples/gpt/options.h"
#include "samples/gpt/progress.h"
#include "samples/gpt/rank_threads.h"
#include "samples/gpt/sample.h"
#include "samples/gpt/text.h"
#include "shard/shard.h"

// Held-out sequences that a validation reads: enough for two digits.
enum { kHeldOutLimit = 256 };

// One rank. Everything it has is here, and freed in run_rank.
typedef struct trainer {
  const options* opts;
  int rank;  // -1 until it is known.
  int world_size;
  int batch;  // Sequences per step of this rank.
  shard_comm* comm;
  shard_model* model;
  shard_plan* plan;
  shard_engine* engine;
  real** params;  // Pointers into libshard's memory, by tensor.
  real** grads;
  gpt* net;
  text data;
  uint8_t* sequences;
  progress* shown;  // Rank 0 only.
  double validation_loss;
} trainer;

// ---- Failures -------------------------------------------------------------

// Each function below returns false after it has said why, with one of these
// two; run_rank then frees what there is.

static void complain(trainer* t, const char* what, const char* why) {
  progress_end_line(t->shown);
  if (t->rank < 0) {
    fprintf(stderr, "train_gpt: %s: %s\n", what, why);
  } else {
    fprintf(stderr, "train_gpt: rank %d: %s: %s\n", t->rank, what, why);
  }
}

// A failure of this rank alone. The others are on their way to the next
// collective: tell them not to wait there.
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
  if (code == SHARD_DESYNC || code == SHARD_RANK_LOST ||
      code == SHARD_POISONED || code == SHARD_DEADLINE_EXCEEDED) {
    complain(t, what, why);  // About the group: every rank is told.
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

// Meets the other ranks and takes this rank's share of the batch.
static bool meet(trainer* t) {
  const options* opts = t->opts;
  char url[32] = "env:";
  shard_comm_options comm_options = SHARD_COMM_OPTIONS_INIT;
  comm_options.timeout = opts->timeout;
  comm_options.log = print_warning;
  if (opts->rank_threads > 0) {
    snprintf(url, sizeof(url), "threads:%d", opts->rank_threads);
    comm_options.rank = t->rank;
    comm_options.world_size = opts->rank_threads;
  }
  if (!ok(t, "meet", shard_comm_open(url, &comm_options, &t->comm))) {
    return false;
  }
  t->rank = shard_comm_rank(t->comm);
  t->world_size = shard_comm_world_size(t->comm);
  if (opts->batch % t->world_size != 0) {
    // Every rank sees it and says it: the first to end may end the others.
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
  return ok(t, "model", declare_model(t->opts, &t->model)) &&
         ok(t, "plan",
            declare_plan(t->model, t->opts, t->world_size, &t->plan)) &&
         ok(t, "engine",
            shard_engine_create(t->plan, t->comm, NULL, &t->engine));
}

// Initial values: all ranks compute the same, and rank 0's count.
static bool initialize(trainer* t) {
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

// Points the model into libshard's memory. The pointers last as long as the
// engine: a step changes what they point to.
static bool connect(trainer* t) {
  const gpt_config* config = &t->opts->model;
  const int count = gpt_tensor_count(config);
  t->params = calloc((size_t)count, sizeof(*t->params));
  t->grads = calloc((size_t)count, sizeof(*t->grads));
  if (!t->params || !t->grads) return fail(t, "model", "out of memory");
  for (int i = 0; i < count; i++) {
    void* param = NULL;
    void* grad = NULL;
    int64_t numel = 0;
    if (!ok(t, "param", shard_engine_param(t->engine, i, &param, &numel)) ||
        !ok(t, "grad", shard_engine_grad(t->engine, i, &grad, &numel))) {
      return false;
    }
    t->params[i] = param;
    t->grads[i] = grad;
  }
  size_t bytes = 0;
  t->net = gpt_create(config, t->batch, t->params, t->grads, &bytes);
  if (!t->net) {
    char why[96];
    snprintf(why, sizeof(why), "out of memory: %zu bytes for %d sequences",
             bytes, t->batch);
    return fail(t, "activations", why);
  }
  return true;
}

// What each param group is stepped with: those of declare.c, group 0 first.
static bool introduce_groups(trainer* t) {
  for (int32_t i = 0; i < shard_plan_num_groups(t->plan); i++) {
    char text[512];
    size_t length = 0;
    if (!ok(t, "group",
            shard_engine_group_text(t->engine, i, text, sizeof(text),
                                    &length))) {
      return false;
    }
    printf("group %d %s\n", (int)i, text);
  }
  return true;
}

static bool introduce(trainer* t) {
  if (t->rank != 0) return true;
  const options* opts = t->opts;
  const gpt_config* config = &opts->model;
  shard_memory memory = SHARD_MEMORY_INIT;
  if (!ok(t, "plan", shard_plan_memory(t->plan, &memory))) return false;
  printf("ranks   %s\n", shard_comm_describe(t->comm));
  printf("text    %s: %d files, %zu bytes to train on, %zu held out\n",
         opts->text, t->data.files, t->data.train_bytes,
         t->data.held_out_bytes);
  printf("model   %lld parameters: %d layers, width %d, %d heads, context %d\n",
         (long long)gpt_parameter_count(config), config->layers, config->width,
         config->heads, config->context);
  printf("plan    stage %d, %s; in KiB: %.0f of parameters per host, ",
         opts->stage, opts->partition, (double)memory.param_bytes / 1024);
  printf("%.0f of gradients and %.0f of optimizer states per rank\n",
         (double)memory.grad_bytes / 1024, (double)memory.state_bytes / 1024);
  if (!introduce_groups(t)) return false;
  fflush(stdout);

  char message[512];
  t->shown = progress_open(opts->steps, (int64_t)opts->batch * config->context,
                           opts->log, message, sizeof(message));
  return t->shown || fail(t, "--log", message);
}

// ---- Training -------------------------------------------------------------

// Up in a line, down in a cosine. `step` counts from 1.
static bool learning_rate(trainer* t, int64_t step, double* lr) {
  const options* opts = t->opts;
  char schedule[128];
  snprintf(
      schedule, sizeof(schedule),
      "cosine?lr=%.9g&min_lr=%.9g&warmup=%d&total=%d", opts->lr, opts->min_lr,
      opts->warm_up < opts->steps ? opts->warm_up : opts->steps, opts->steps);
  return ok(t, "schedule", shard_schedule_lr(schedule, step, lr));
}

// Nats per byte over the held-out text. Rank r reads every world_size-th
// sequence; the sums meet.
static bool validate(trainer* t, int64_t step) {
  const int context = t->opts->model.context;
  const int64_t count = text_held_out_count(&t->data, context, kHeldOutLimit);
  double sums[2] = {0, 0};  // Nats, bytes.
  int waiting = 0;
  for (int64_t i = t->rank; i < count; i += t->world_size) {
    uint8_t* sequence = t->sequences + (size_t)waiting * ((size_t)context + 1);
    text_held_out_sequence(&t->data, i, context, kHeldOutLimit, sequence);
    waiting++;
    if (waiting == t->batch || i + t->world_size >= count) {
      sums[0] += gpt_forward(t->net, t->sequences, waiting, context);
      sums[1] += (double)waiting * (double)context;
      waiting = 0;
    }
  }
  if (!ok(t, "validation", shard_comm_sum(t->comm, sums, 2, 0))) return false;
  t->validation_loss = sums[0] / sums[1];
  progress_report_validation(t->shown, step, t->validation_loss);
  return true;
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
  double loss = gpt_forward(t->net, t->sequences, t->batch, context) /
                ((double)t->batch * (double)context);
  gpt_backward(t->net, t->sequences);
  if (!ok(t, "loss", shard_comm_sum(t->comm, &loss, 1, 0))) return false;

  // Each rank's gradient is a mean over its own sequences; the step divides
  // their sum by the world size, which makes it the mean over the batch.
  shard_step_options step_options = SHARD_STEP_OPTIONS_INIT;
  step_options.max_grad_norm = opts->clip;
  if (!learning_rate(t, step + 1, &step_options.lr)) return false;
  shard_step_report report = SHARD_STEP_REPORT_INIT;
  if (!ok(t, "step", shard_engine_step(t->engine, &step_options, &report))) {
    return false;
  }
  const progress_step shown = {
      .step = step + 1,
      .loss = loss / t->world_size,
      .lr = step_options.lr,
      .grad_norm = report.grad_norm,
      .seconds = progress_now() - started,
      .skipped = report.skipped,
  };
  progress_report(t->shown, &shown);
  return true;
}

static bool train(trainer* t) {
  const options* opts = t->opts;
  for (int64_t step = 0; step < opts->steps; step++) {
    if (!train_step(t, step)) return false;
    const bool last = step + 1 == opts->steps;
    const bool due = opts->val_every > 0 && (step + 1) % opts->val_every == 0;
    if ((last || due) && !validate(t, step + 1)) return false;
  }
  return true;
}

// ---- After the last step --------------------------------------------------

static bool print_sample(trainer* t) {
  const int count = t->opts->sample;
  if (count == 0) return true;
  uint8_t* bytes = malloc((size_t)count);
  if (!bytes ||
      !sample_text(t->net, &t->opts->model, t->opts->seed, count, bytes)) {
    free(bytes);
    return fail(t, "sample", "out of memory");
  }
  printf("\n");
  for (int i = 0; i < count; i++) {
    // Nothing that a terminal would obey.
    const bool plain = bytes[i] == '\n' || (bytes[i] >= ' ' && bytes[i] < 127);
    putchar(plain ? bytes[i] : '?');
  }
  printf("\n\n");
  free(bytes);
  return true;
}

static bool finish(trainer* t) {
  // The last collective. The sample is rank 0's alone, and nobody waits for it:
  // parameters stay readable as long as the engine lives.
  if (!ok(t, "shutdown", shard_comm_shutdown(t->comm, 0))) return false;
  if (t->rank != 0) return true;
  char message[512];
  const bool logged = progress_close(t->shown, message, sizeof(message));
  t->shown = NULL;
  if (!logged) {
    complain(t, "--log", message);
    return false;
  }
  if (!print_sample(t)) return false;
  printf("validation loss %.4f\n", t->validation_loss);
  return true;
}

// ---- One rank -------------------------------------------------------------

// `rank`: -1 where the environment knows it. Returns the exit status.
static int run_rank(const options* opts, int rank) {
  trainer t = {.opts = opts, .rank = rank};
  const bool done = meet(&t) && load_text(&t) && shard(&t) && initialize(&t) &&
                    connect(&t) && introduce(&t) && train(&t) && finish(&t);
  char ignored[1];
  progress_close(t.shown, ignored, sizeof(ignored));
  gpt_free(t.net);
  free(t.sequences);
  text_free(&t.data);
  free(t.params);
  free(t.grads);
  shard_engine_free(t.engine);
  shard_plan_free(t.plan);
  shard_model_free(t.model);
  shard_comm_free(t.comm);
  return done ? 0 : 1;
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
  // Ranks share the cores; a BLAS that takes all of them for each rank makes
  // them wait for one another.
  openblas_set_num_threads(1);
  if (opts.check) return check_all() ? 0 : 1;
  return opts.rank_threads > 0 ? rank_threads_run(run_rank, &opts)
                               : run_rank(&opts, -1);
}
