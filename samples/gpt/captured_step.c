// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/captured_step.h"

#include <stddef.h>

// Enqueues the step that becomes the graph.
static shard_error* enqueue(const captured_step* step, const uint8_t* sequences,
                            const shard_step_options* options) {
  double nothing;  // There is no loss before a replay.
  const bool passed = gpt_forward(step->model, sequences, step->batch,
                                  step->context, &nothing) &&
                      gpt_backward(step->model, sequences);
  if (!passed) return NULL;  // The reason is in layers.error.
  // Gradients need no zeros: the next backward pass overwrites them.
  return shard_engine_step(step->engine, options, NULL);
}

// Captures the step. Nothing runs, and nothing is counted.
static shard_error* capture(captured_step* step, const uint8_t* sequences,
                            const shard_step_options* options) {
  if (!cuda_layers_capture_begin(step->on)) return NULL;
  // libshard's capture lies within that of the stream.
  shard_error* error = shard_engine_capture_begin(step->engine);
  if (!error) {
    error = enqueue(step, sequences, options);
    shard_error* end_error = shard_engine_capture_end(step->engine);
    // An error of the layers makes the capture invalid, and its end fails.
    if (error || cuda_layers_table(step->on)->error) {
      shard_error_free(end_error);
    } else {
      error = end_error;
    }
  }
  // Ends the capture after an error too: the stream can do nothing else before.
  step->is_captured = cuda_layers_capture_end(step->on) && !error;
  return error;
}

shard_error* captured_step_run(captured_step* step, const uint8_t* sequences,
                               const shard_step_options* options, double* nats,
                               shard_step_report* report) {
  if (!step->is_captured) {
    shard_error* error = capture(step, sequences, options);
    if (!step->is_captured) return error;
  }
  // Waits for all that the stream was given, so that the host may write to
  // memory that the graph reads.
  shard_error* error = shard_engine_before_replay(step->engine, options);
  if (error) return error;
  *nats = cuda_layers_replay(step->on, sequences, step->batch, step->context);
  if (cuda_layers_table(step->on)->error) return NULL;
  return shard_engine_last_report(step->engine, report);
}
