// SPDX-License-Identifier: Apache-2.0
//
// The quickstart of libshard: trains a small language model on any number of
// ranks, and saves a checkpoint from which the next run goes on.
//
//     cc -std=c11 -O2 quickstart.c -lshard -lm -o quickstart
//     shardctl run -n 2 -- ./quickstart checkpoints 400   # trains 400 steps
//     shardctl run -n 3 -- ./quickstart checkpoints 600   # and 200 more
//
// Read main() first. The model predicts each byte of a text from the bytes
// before it. README.md beside this file defines it to the bit, so that the
// quickstarts in all languages save the same checkpoints.

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "shard/shard.h"

enum {
  kVocab = 256,  // A token is a byte.
  kContext = 4,  // The bytes that a prediction reads.
  kDim = 16,     // The numbers that describe a byte.
  kBatch = 64,   // Predictions per step, over all ranks.
  kReport = 50   // Steps from one line of output to the next.
};

// The parameters: their ids, which count in the order of declaration, their
// names, which are the keys in checkpoints, and their shapes.
enum { kEmbed, kPosition, kOut, kBias, kParams };
static const struct tensor {
  const char* name;
  size_t ndim;
  int64_t shape[2], numel;
} kTensors[kParams] = {{"embed", 2, {kVocab, kDim}, kVocab* kDim},
                       {"position", 2, {kContext, kDim}, kContext* kDim},
                       {"out", 2, {kVocab, kDim}, kVocab* kDim},
                       {"bias", 1, {kVocab}, kVocab}};

// Memory of libshard: what the model reads, and what it writes in each step.
static const float* params[kParams];
static float* grads[kParams];
// Sums of this rank's gradients in the step, in double.
static double sums[kParams][kVocab * kDim];

// A call returns NULL or an error. When this rank ends because of one, the next
// call of the other ranks returns RANK_LOST.
static void check(shard_error* error) {
  if (error == NULL) return;
  fprintf(stderr, "quickstart: %s: %s\n",
          shard_code_name(shard_error_code(error)), shard_error_message(error));
  shard_error_free(error);
  exit(1);
}

// Sets the first values: small numbers that look random, and a bias of 0.
static void initialize(shard_engine* engine) {
  static float values[kVocab * kDim];
  uint32_t n = 0;
  for (int p = 0; p < kParams; p++) {
    for (int64_t i = 0; i < kTensors[p].numel; i++) {
      const uint32_t random = n++ * 2654435761u + 12345u;
      values[i] = p == kBias ? 0 : (float)(random >> 8) * 0x1p-24f - 0.5f;
    }
    const size_t bytes = (size_t)kTensors[p].numel * sizeof(float);
    check(shard_engine_set_param(engine, p, values, bytes));
  }
  check(shard_engine_broadcast_params(engine, 0));
}

// Returns 1 / (1 - x / 1024)^1024, which is nearly exp(x) for x <= 0. Every
// language computes the same bits, and exp in a way of its own.
static double power(double x) {
  double result = 1 - x / 1024;
  for (int i = 0; i < 10; i++) result *= result;
  return 1 / result;
}

// Predicts the byte at `next`, adds the gradients of the loss to `sums`, and
// returns the loss.
static double learn(const unsigned char* next) {
  double hidden[kDim] = {0}, hidden_grad[kDim] = {0}, p[kVocab], total = 0;
  for (int i = 0; i < kContext; i++) {
    for (int d = 0; d < kDim; d++) {
      const int from = next[-1 - i] * kDim + d, to = i * kDim + d;
      hidden[d] += (double)params[kPosition][to] * (double)params[kEmbed][from];
    }
  }
  double largest = -INFINITY;
  for (int v = 0; v < kVocab; v++) {
    p[v] = (double)params[kBias][v];
    for (int d = 0; d < kDim; d++) {
      p[v] += hidden[d] * (double)params[kOut][v * kDim + d];
    }
    if (p[v] > largest) largest = p[v];
  }
  for (int v = 0; v < kVocab; v++) total += p[v] = power(p[v] - largest);
  for (int v = 0; v < kVocab; v++) {
    const double grad = (p[v] / total - (v == *next ? 1 : 0)) / kBatch;
    sums[kBias][v] += grad;
    for (int d = 0; d < kDim; d++) {
      hidden_grad[d] += grad * (double)params[kOut][v * kDim + d];
      sums[kOut][v * kDim + d] += grad * hidden[d];
    }
  }
  for (int i = 0; i < kContext; i++) {
    for (int d = 0; d < kDim; d++) {
      const int from = next[-1 - i] * kDim + d, to = i * kDim + d;
      sums[kEmbed][from] += hidden_grad[d] * (double)params[kPosition][to];
      sums[kPosition][to] += hidden_grad[d] * (double)params[kEmbed][from];
    }
  }
  return -log(p[*next] / total);
}

int main(int argc, char** argv) {
  static unsigned char text[1 << 20];
  const char* path = argc > 3 ? argv[3] : "/usr/share/common-licenses/GPL-3";
  const int64_t steps = argc > 2 ? strtoll(argv[2], NULL, 10) : 0;
  FILE* const file = fopen(path, "rb");
  const size_t bytes = file == NULL ? 0 : fread(text, 1, sizeof(text), file);
  if (argc < 3 || argc > 4 || steps < 1 || bytes <= kContext) {
    fprintf(stderr,
            "usage: quickstart FOLDER STEPS [TEXT], where STEPS is at "
            "least 1 and TEXT ('%s') a file of more than %d bytes\n",
            path, kContext);
    return 2;
  }
  fclose(file);

  // Meet the other ranks, which `shardctl run` has started.
  shard_comm* comm;
  check(shard_comm_open("env:", NULL, &comm));
  const int rank = shard_comm_rank(comm), ranks = shard_comm_world_size(comm);

  // Declare the model, and decide how it is sharded. In stage 1 each rank keeps
  // the optimizer states of its part of the parameters, and steps that part.
  shard_model* model;
  check(shard_model_create("ByteModel", &model));
  for (int p = 0; p < kParams; p++) {
    check(shard_model_add_param(model, 0, kTensors[p].name, SHARD_F32,
                                kTensors[p].shape, kTensors[p].ndim, NULL));
  }
  shard_plan_options plan_options = SHARD_PLAN_OPTIONS_INIT;
  plan_options.stage = 1;
  plan_options.world_size = ranks;
  plan_options.optimizer = "adamw?lr=0.02&weight_decay=0";
  shard_plan* plan;
  shard_engine* engine;
  check(shard_plan_create(model, &plan_options, &plan));
  check(shard_engine_create(plan, comm, NULL, &engine));

  // Go on from the last checkpoint, or begin.
  shard_load_report loaded = SHARD_LOAD_REPORT_INIT;
  shard_error* error = shard_checkpoint_load(engine, argv[1], NULL, &loaded);
  if (shard_error_code(error) == SHARD_NOT_FOUND) {
    shard_error_free(error), error = NULL;
    initialize(engine);
  }
  check(error);

  for (int p = 0; p < kParams; p++) {
    const void* param;
    void* grad;
    check(shard_engine_param(engine, p, &param, NULL));
    check(shard_engine_grad(engine, p, &grad, NULL));
    params[p] = param, grads[p] = grad;
  }
  shard_step_options step_options = SHARD_STEP_OPTIONS_INIT;
  step_options.grad_divisor = 1;  // learn() has divided by the batch.
  double loss = 0;
  for (int64_t step = loaded.step; step < steps; step++) {
    for (int i = rank; i < kBatch; i += ranks) {  // This rank's part.
      const uint32_t random = (uint32_t)(step * kBatch + i) * 2654435761u;
      loss += learn(text + kContext + random % (bytes - kContext));
    }
    for (int p = 0; p < kParams; p++) {
      for (int64_t i = 0; i < kTensors[p].numel; i++) {
        grads[p][i] = (float)sums[p][i], sums[p][i] = 0;
      }
    }
    check(shard_engine_step(engine, &step_options, NULL));
    if ((step + 1) % kReport != 0) continue;
    check(shard_comm_sum(comm, &loss, 1, 0));  // Over all ranks.
    loss /= (double)kBatch * kReport;
    if (rank == 0) printf("step %d: loss %.4f\n", (int)step + 1, loss);
    loss = 0;
  }
  if (loaded.step < steps) {
    check(shard_checkpoint_save(engine, argv[1], NULL, NULL));
  }

  check(shard_comm_shutdown(comm, 0));
  shard_engine_free(engine), shard_plan_free(plan);
  shard_model_free(model), shard_comm_free(comm);
  return 0;
}
