/* SPDX-License-Identifier: Apache-2.0
 *
 * A training engine in C that has only shard.h and libshard.so.0. host.cc,
 * host.rs and host.go are the same engine: every value is computed in the same
 * order with the same roundings, so all of them end with the same bits. This
 * one has tensors of its own and binds them; the others use those of libshard.
 *
 *   h = W x + b      r = max(h, 0)      s = r * scale      y = W s + c
 *
 * W is used twice (tied), scale is frozen. The loss is the mean over examples
 * and ranks of |y - t|^2. Values and inputs derive from integers.
 *
 * Usage: host FOLDER. Trains and saves a checkpoint there. Where there is one
 * already, saved by any host on any number of ranks, loads it instead. Prints
 * one line that is the same in every language, and on every rank:
 *   first <bits> last <bits> params <FNV-1a of all parameters>
 *   loaded params <FNV-1a of all parameters>
 * preceded by the message of an error made on purpose. */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "shard/shard.h"

enum { kDim = 6, kBatch = 4, kSteps = 10, kParams = 4 };

/* ---- Errors: one function turns them into text and frees them ------------ */

/* Returns true for success. Otherwise prints the call that failed, and why. */
static bool ok(const char* call, shard_error* error) {
  if (error == NULL) return true;
  fprintf(stderr, "host.c: %s: %s: %s\n", call,
          shard_code_name(shard_error_code(error)), shard_error_message(error));
  shard_error_free(error);
  return false;
}

/* ---- Numbers ------------------------------------------------------------- */

/* Returns a value in [-0.5, 0.5) that is exact in a float. */
static float value(uint32_t i) {
  const uint32_t hash = i * 2654435761u + 12345u;
  return (float)(hash >> 8) * 0x1p-24f - 0.5f;
}

static uint64_t fnv1a(uint64_t hash, const void* data, size_t bytes) {
  const unsigned char* at = data;
  for (size_t i = 0; i < bytes; ++i) {
    hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
  }
  return hash;
}

static uint64_t bits_of(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

/* ---- The engine ---------------------------------------------------------- */

typedef struct params {
  const float* weight; /* [kDim][kDim] */
  const float* bias;
  const float* scale;
  const float* out_bias;
} params;

/* The gradients. The frozen scale has none. */
typedef struct grads {
  float* weight;
  float* bias;
  float* out_bias;
} grads;

/* Adds the gradients of one batch to `g`. Returns the sum of its losses. */
static float train_batch(const params* p, const grads* g, int rank) {
  float loss = 0;
  for (uint32_t e = 0; e < kBatch; ++e) {
    float x[kDim], t[kDim], r[kDim], s[kDim], dy[kDim];
    for (uint32_t i = 0; i < kDim; ++i) {
      x[i] = value(1000u + ((uint32_t)rank * kBatch + e) * kDim + i);
    }
    for (int i = 0; i < kDim; ++i) t[i] = x[(i + 1) % kDim];
    for (int i = 0; i < kDim; ++i) {
      float h = p->bias[i];
      for (int j = 0; j < kDim; ++j) h = h + p->weight[i * kDim + j] * x[j];
      r[i] = h > 0 ? h : 0;
      s[i] = r[i] * p->scale[i];
    }
    for (int i = 0; i < kDim; ++i) {
      float y = p->out_bias[i];
      for (int j = 0; j < kDim; ++j) y = y + p->weight[i * kDim + j] * s[j];
      const float d = y - t[i];
      loss = loss + d * d;
      dy[i] = d * (2.0f / kBatch);
    }
    for (int i = 0; i < kDim; ++i) {
      g->out_bias[i] = g->out_bias[i] + dy[i];
      for (int j = 0; j < kDim; ++j) {
        float* w = &g->weight[i * kDim + j];
        *w = *w + dy[i] * s[j];
      }
    }
    for (int i = 0; i < kDim; ++i) {
      float ds = 0;
      for (int k = 0; k < kDim; ++k) ds = ds + p->weight[k * kDim + i] * dy[k];
      const float dh = r[i] > 0 ? ds * p->scale[i] : 0;
      g->bias[i] = g->bias[i] + dh;
      for (int j = 0; j < kDim; ++j) {
        float* w = &g->weight[i * kDim + j];
        *w = *w + dh * x[j];
      }
    }
  }
  return loss;
}

static const int64_t kShapes[kParams][2] = {
    {kDim, kDim}, {kDim, 1}, {kDim, 1}, {kDim, 1}};

static bool declare(shard_model** model) {
  static const char* const kNames[kParams] = {"weight", "bias", "scale",
                                              "out_bias"};
  int32_t encoder, decoder, param;
  if (!ok("model", shard_model_create("Net", model)) ||
      !ok("encoder",
          shard_model_add_module(*model, 0, "encoder", "Linear", &encoder)) ||
      !ok("decoder",
          shard_model_add_module(*model, 0, "decoder", "Linear", &decoder))) {
    return false;
  }
  for (int i = 0; i < kParams; ++i) {
    if (!ok(kNames[i], shard_model_add_param(*model, i < 2 ? encoder : decoder,
                                             kNames[i], SHARD_F32, kShapes[i],
                                             i == 0 ? 2 : 1, &param))) {
      return false;
    }
  }
  return ok("tie", shard_model_tie(*model, decoder, "weight", 0)) &&
         ok("freeze", shard_model_freeze(*model, 2));
}

/* Names an unknown optimizer, to show an error in this language. */
static void show_error(const shard_model* model) {
  shard_plan_options options = SHARD_PLAN_OPTIONS_INIT;
  options.world_size = 1;
  options.optimizer = "adamx";
  shard_plan* plan;
  shard_error* error = shard_plan_create(model, &options, &plan);
  printf("%s: %s\n", shard_code_name(shard_error_code(error)),
         shard_error_message(error));
  shard_error_free(error);
}

static bool plan_for(const shard_model* model, int32_t world_size,
                     shard_plan** plan) {
  shard_plan_options options = SHARD_PLAN_OPTIONS_INIT;
  options.stage = 1;
  options.world_size = world_size;
  options.optimizer = "adamw?lr=0.05&weight_decay=0.01";
  return ok("plan", shard_plan_create(model, &options, plan));
}

static bool fill(shard_engine* engine) {
  for (int p = 0; p < kParams; ++p) {
    float data[kDim * kDim];
    const size_t numel = (size_t)(kShapes[p][0] * kShapes[p][1]);
    for (size_t i = 0; i < numel; ++i) {
      data[i] = value((uint32_t)(100 * p + (int)i));
      if (p == 2) data[i] = data[i] + 1;
    }
    if (!ok("set",
            shard_engine_set_param(engine, p, data, numel * sizeof(float)))) {
      return false;
    }
  }
  return ok("broadcast", shard_engine_broadcast_params(engine, 0));
}

static bool bind_tensors(shard_engine* engine, params* p, grads* g) {
  static float own[2 * kParams][kDim * kDim];
  const float** values[kParams] = {&p->weight, &p->bias, &p->scale,
                                   &p->out_bias};
  float** gradients[kParams] = {&g->weight, &g->bias, NULL, &g->out_bias};
  for (int i = 0; i < kParams; ++i) {
    const size_t bytes =
        (size_t)(kShapes[i][0] * kShapes[i][1]) * sizeof(float);
    float* gradient = gradients[i] == NULL ? NULL : own[kParams + i];
    if (!ok("bind", shard_engine_bind_param(engine, i, own[i], bytes, gradient,
                                            gradient == NULL ? 0 : bytes))) {
      return false;
    }
    *values[i] = own[i];
    if (gradient != NULL) *gradients[i] = gradient;
  }
  return true;
}

static uint64_t hash_of(const params* p) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  hash = fnv1a(hash, p->weight, kDim * kDim * sizeof(float));
  hash = fnv1a(hash, p->bias, kDim * sizeof(float));
  hash = fnv1a(hash, p->scale, kDim * sizeof(float));
  return fnv1a(hash, p->out_bias, kDim * sizeof(float));
}

static bool train(shard_comm* comm, shard_engine* engine) {
  params p;
  grads g;
  if (!bind_tensors(engine, &p, &g)) return false;
  double first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    if (!ok("zero", shard_engine_zero_grad(engine))) return false;
    last = (double)train_batch(&p, &g, shard_comm_rank(comm));
    if (!ok("sum", shard_comm_sum(comm, &last, 1, 0))) return false;
    if (step == 0) first = last;

    shard_step_options options = SHARD_STEP_OPTIONS_INIT;
    if (step % 2 == 1) options.max_grad_norm = 0.5;
    if (step == 5 &&
        !ok("lr", shard_engine_set_hyper(engine, -1, "lr", 0.02))) {
      return false;
    }
    shard_step_report report = SHARD_STEP_REPORT_INIT;
    if (!ok("step", shard_engine_step(engine, &options, &report))) return false;
    if (report.step != step + 1 || report.skipped != 0) return false;
  }
  if (!(last < first)) {
    fprintf(stderr, "host.c: the loss went from %g to %g\n", first, last);
    return false;
  }
  printf("first %016" PRIx64 " last %016" PRIx64 " params %016" PRIx64 "\n",
         bits_of(first), bits_of(last), hash_of(&p));
  return true;
}

/* Loads the checkpoint in `folder`, or fills, trains and saves there. */
static bool use(shard_comm* comm, shard_engine* engine, const char* folder) {
  shard_error* error = shard_checkpoint_load(engine, folder, NULL, NULL);
  if (shard_error_code(error) == SHARD_NOT_FOUND) {
    shard_error_free(error);
    return fill(engine) && train(comm, engine) &&
           ok("save", shard_checkpoint_save(engine, folder, NULL, NULL));
  }
  params p;
  grads g;
  if (!ok("load", error) || !bind_tensors(engine, &p, &g)) return false;
  printf("loaded params %016" PRIx64 "\n", hash_of(&p));
  return true;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  shard_comm* comm = NULL;
  shard_model* model = NULL;
  shard_plan* plan = NULL;
  shard_engine* engine = NULL;
  bool done =
      ok("open", shard_comm_open("env:", NULL, &comm)) && declare(&model);
  if (done) show_error(model);
  done = done && plan_for(model, shard_comm_world_size(comm), &plan) &&
         ok("engine", shard_engine_create(plan, comm, NULL, &engine)) &&
         use(comm, engine, argv[1]) &&
         ok("shutdown", shard_comm_shutdown(comm, 0));
  shard_engine_free(engine);
  shard_plan_free(plan);
  shard_model_free(model);
  shard_comm_free(comm);
  return done ? 0 : 1;
}
