// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/check.h"

#include <stdio.h>
#include <stdlib.h>

#include "samples/gpt/gpt.h"
#include "samples/gpt/random.h"

#ifndef GPT_DOUBLE
#error "the check runs the model in double: see real.h"
#endif

enum { kBatch = 3, kSeed = 7, kProbes = 40 };

// A gradient this small counts as zero. A key's bias, for one, has none: it
// adds the same to every logit of a softmax.
static const double kZero = 1e-9;

typedef struct fixture {
  int count;
  real** params;
  real** grads;
  gpt* model;
  uint8_t* sequences;
} fixture;

static void tear_down(fixture* f) {
  for (int i = 0; i < f->count; i++) {
    if (f->params) free(f->params[i]);
    if (f->grads) free(f->grads[i]);
  }
  free(f->params);
  free(f->grads);
  free(f->sequences);
  gpt_free(f->model);
}

static bool set_up(fixture* f, const gpt_config* config) {
  f->count = gpt_tensor_count(config);
  f->params = calloc((size_t)f->count, sizeof(*f->params));
  f->grads = calloc((size_t)f->count, sizeof(*f->grads));
  if (!f->params || !f->grads) return false;
  for (int i = 0; i < f->count; i++) {
    const int64_t numel = gpt_tensor_at(config, i).numel;
    f->params[i] = calloc((size_t)numel, sizeof(real));
    f->grads[i] = calloc((size_t)numel, sizeof(real));
    if (!f->params[i] || !f->grads[i]) return false;
    // A fresh model has biases of 0, and embeddings so small that attention is
    // nearly uniform: terms of the backward pass would vanish. So the values
    // are spread out.
    gpt_initialize(config, i, kSeed, f->params[i]);
    for (int64_t j = 0; j < numel; j++) {
      f->params[i][j] +=
          0.2 * random_normal(kSeed, 1000 + (uint64_t)i, (uint64_t)j);
    }
  }
  const size_t bytes = (size_t)(kBatch * (config->context + 1));
  f->sequences = malloc(bytes);
  size_t needed = 0;
  f->model = gpt_create(config, kBatch, (const real* const*)f->params, f->grads,
                        NULL, NULL, &needed);
  if (!f->sequences || !f->model) return false;
  for (size_t i = 0; i < bytes; i++) {
    // There are only twelve different bytes: tokens repeat, so their gradients
    // add up.
    f->sequences[i] = (uint8_t)(97 + random_bits(kSeed, 99, i) % 12);
  }
  return true;
}

static double mean_loss(fixture* f, int length) {
  double nats = 0;
  gpt_forward(f->model, f->sequences, kBatch, length, &nats);
  return nats / (kBatch * length);
}

double check_gradient(const gpt_config* config, int index) {
  fixture f = {0};
  double error = -1;
  if (set_up(&f, config)) {
    mean_loss(&f, config->context);
    gpt_backward(f.model, f.sequences);
    const int64_t numel = gpt_tensor_at(config, index).numel;
    real* data = f.params[index];
    const double step = 1e-4;
    double squares = 0;
    double difference_squares = 0;
    for (int k = 0; k < kProbes; k++) {
      const int64_t j =
          numel <= kProbes
              ? k
              : (int64_t)(random_bits(kSeed, 5, (uint64_t)k) % (uint64_t)numel);
      if (j >= numel) break;
      const real saved = data[j];
      data[j] = saved + step;
      const double above = mean_loss(&f, config->context);
      data[j] = saved - step;
      const double below = mean_loss(&f, config->context);
      data[j] = saved;
      const double expected = (above - below) / (2 * step);
      const double off = f.grads[index][j] - expected;
      squares += expected * expected;
      difference_squares += off * off;
    }
    error = sqrt(difference_squares) / (sqrt(squares) + kZero);
  }
  tear_down(&f);
  return error;
}

bool check_all(void) {
  const gpt_config config = {
      .layers = 2, .width = 12, .heads = 3, .context = 8};
  bool all = true;
  printf("gradient against finite differences, tolerance %g\n",
         CHECK_TOLERANCE);
  for (int i = 0; i < gpt_tensor_count(&config); i++) {
    const double error = check_gradient(&config, i);
    const bool agrees = error >= 0 && error <= CHECK_TOLERANCE;
    printf("%-26s %9.2e  %s\n", gpt_tensor_at(&config, i).name, error,
           agrees ? "ok" : "WRONG");
    all = all && agrees;
  }
  return all;
}
