// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/check_device.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "samples/gpt/gpt.h"
#include "samples/gpt/random.h"

enum { kBatch = 12, kContext = 37 };

// A gradient as small as this counts as zero. A key's bias, for one, has none:
// it adds the same to every logit of a softmax.
static const double kZero = 1e-4;

options check_device_options(const options* opts) {
  options small = *opts;
  small.model =
      (gpt_config){.layers = 2, .width = 40, .heads = 4, .context = kContext};
  small.batch = kBatch;
  small.rank_threads = 0;
  return small;
}

// The same model on both devices.
typedef struct fixture {
  const gpt_config* config;
  int count;  // The number of tensors.
  // The engine's, in memory of the device.
  const real* device_params[GPT_MAX_TENSORS];
  real* device_grads[GPT_MAX_TENSORS];
  // In memory of the host.
  real* params[GPT_MAX_TENSORS];
  real* grads[GPT_MAX_TENSORS];
  gpt* on_device;
  gpt* on_processor;
  uint8_t sequences[kBatch * (kContext + 1)];
} fixture;

static void tear_down(fixture* f) {
  gpt_free(f->on_device);
  gpt_free(f->on_processor);
  for (int i = 0; i < f->count; i++) {
    free(f->params[i]);
    free(f->grads[i]);
  }
}

// Makes the parameters, and gives them to the engine. As in check.c, they are
// spread out, so that no term of the backward pass vanishes.
static shard_error* fill_params(fixture* f, uint64_t seed,
                                shard_engine* engine) {
  for (int i = 0; i < f->count; i++) {
    const size_t numel = (size_t)gpt_tensor_at(f->config, i).numel;
    gpt_initialize(f->config, i, seed, f->params[i]);
    for (size_t j = 0; j < numel; j++) {
      f->params[i][j] +=
          (real)(0.2 * random_normal(seed, 1000 + (uint64_t)i, j));
    }
    shard_error* error =
        shard_engine_set_param(engine, i, f->params[i], numel * sizeof(real));
    if (error) return error;
  }
  shard_error* error = shard_engine_broadcast_params(engine, 0);
  for (int i = 0; i < f->count && !error; i++) {
    const void* param = NULL;
    void* grad = NULL;
    error = shard_engine_param(engine, i, &param, NULL);
    if (!error) error = shard_engine_grad(engine, i, &grad, NULL);
    f->device_params[i] = param;
    f->device_grads[i] = grad;
  }
  return error;
}

static bool allocate(fixture* f) {
  for (int i = 0; i < f->count; i++) {
    const size_t bytes =
        (size_t)gpt_tensor_at(f->config, i).numel * sizeof(real);
    f->params[i] = malloc(bytes);
    f->grads[i] = malloc(bytes);
    if (!f->params[i] || !f->grads[i]) return false;
  }
  return true;
}

// Returns |a - b| / |b| of a gradient on the device and on the processor, or
// NAN after an error of the layers.
static double distance(const fixture* f, layers* on, int tensor) {
  const size_t numel = (size_t)gpt_tensor_at(f->config, tensor).numel;
  double squares = 0;
  double difference_squares = 0;
  for (size_t begin = 0; begin < numel; begin += GPT_VOCABULARY) {
    const size_t left = numel - begin;
    const size_t count = left < GPT_VOCABULARY ? left : GPT_VOCABULARY;
    const real* part = on->read(on, f->device_grads[tensor] + begin, count);
    if (!part) return NAN;
    for (size_t j = 0; j < count; j++) {
      const double expected = (double)f->grads[tensor][begin + j];
      const double off = (double)part[j] - expected;
      squares += expected * expected;
      difference_squares += off * off;
    }
  }
  return sqrt(difference_squares) / (sqrt(squares) + kZero);
}

static bool print_line(const char* name, double off) {
  const bool agrees = off <= CHECK_DEVICE_TOLERANCE;  // A NaN does not.
  printf("%-26s %9.2e  %s\n", name, off, agrees ? "ok" : "WRONG");
  return agrees;
}

// Runs the passes and compares them.
static bool compare(fixture* f, const device* d) {
  double nats = 0;
  double expected = 0;
  if (!gpt_forward(f->on_device, f->sequences, kBatch, kContext, &nats) ||
      !gpt_backward(f->on_device, f->sequences) ||
      !gpt_forward(f->on_processor, f->sequences, kBatch, kContext,
                   &expected) ||
      !gpt_backward(f->on_processor, f->sequences)) {
    return false;
  }
  printf("loss and gradients on %s against the processor, tolerance %g\n",
         d->name, CHECK_DEVICE_TOLERANCE);
  bool all = print_line("loss", fabs(nats - expected) / expected);
  for (int i = 0; i < f->count; i++) {
    const double off = distance(f, d->on, i);
    if (!print_line(gpt_tensor_at(f->config, i).name, off)) all = false;
  }
  return all;
}

bool check_device(const options* opts, shard_engine* engine, const device* d,
                  char* message, size_t message_size) {
  fixture f = {.config = &opts->model, .count = gpt_tensor_count(&opts->model)};
  for (size_t i = 0; i < sizeof(f.sequences); i++) {
    // There are only twelve different bytes: tokens repeat, so their gradients
    // add up.
    f.sequences[i] = (uint8_t)(97 + random_bits(opts->seed, 99, i) % 12);
  }
  bool agrees = false;
  size_t bytes = 0;
  snprintf(message, message_size, "out of memory");
  if (allocate(&f)) {
    f.on_device = gpt_create(f.config, kBatch, f.device_params, f.device_grads,
                             NULL, d->on, &bytes);
    f.on_processor = gpt_create(f.config, kBatch, (const real* const*)f.params,
                                f.grads, NULL, NULL, &bytes);
  }
  if (!f.on_device && d->on->error) {
    snprintf(message, message_size, "%s", d->on->error);
  }
  if (f.on_device && f.on_processor) {
    shard_error* error = fill_params(&f, opts->seed, engine);
    if (error) {
      snprintf(message, message_size, "%s", shard_error_message(error));
      shard_error_free(error);
    } else {
      agrees = compare(&f, d);
      snprintf(message, message_size, "%s",
               d->on->error ? d->on->error : "the device computes otherwise");
    }
  }
  tear_down(&f);
  return agrees;
}
