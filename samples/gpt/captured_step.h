// SPDX-License-Identifier: Apache-2.0
//
// A training step as a CUDA graph (--capture): the copy of the sequences, the
// forward and the backward pass, and libshard's step. The host enqueues all of
// it in one call for each step, instead of a few hundred.
//
// A capture fixes what is enqueued and which memory it uses. Only values in
// memory differ from replay to replay: the sequences, which are written to
// pinned memory before, and the values of libshard's step (learning rate, step
// number, clipping), which shard_engine_before_replay writes.
//
// The gradients of an engine that captures must not be declared ready, so the
// model has no hooks: see units_find_all.

#ifndef SHARD_SAMPLES_GPT_CAPTURED_STEP_H_
#define SHARD_SAMPLES_GPT_CAPTURED_STEP_H_

#include <stdbool.h>
#include <stdint.h>

#include "samples/gpt/cuda/cuda_layers.h"
#include "samples/gpt/gpt.h"
#include "shard/shard.h"

typedef struct captured_step {
  cuda_layers* on;
  gpt* model;
  shard_engine* engine;
  int batch;  // The shape of the sequences, the same in every step.
  int context;
  bool is_captured;  // Whether the layers have the graph. False at first.
} captured_step;

// Makes a step by the graph, which the first call captures, and waits for its
// end. Receives the loss as gpt_forward does, and the report as
// shard_engine_step. A plain step with the same options must have been made
// before: cuBLAS and the driver load kernels at their first use, which is no
// part of a graph. Returns an error of libshard; an error of the layers is in
// their table (layers.error). After either no other step is possible.
shard_error* captured_step_run(captured_step* step, const uint8_t* sequences,
                               const shard_step_options* options, double* nats,
                               shard_step_report* report);

#endif  // SHARD_SAMPLES_GPT_CAPTURED_STEP_H_
