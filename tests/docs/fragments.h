// SPDX-License-Identifier: Apache-2.0
//
// The declarations that the text around the fragments of C in the documents has
// made.

#ifndef TESTS_DOCS_FRAGMENTS_H_
#define TESTS_DOCS_FRAGMENTS_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "shard/shard.h"

#define CHECK(call) \
  if ((error = (call)) != NULL) return

static shard_error* error;
static shard_comm* comm;
static shard_engine* engine;
static shard_model* model;
static shard_plan* plan;
static shard_step_options options;
static shard_step_report report;

static int64_t numel, steps_done, good_steps, total;
static int32_t encoder_module, mean, norm, p, params, tracked, units;
static const int64_t shape[1];
static const float *m, *v, *value;
static double scale;
static size_t bytes;
static void *batch, *data;
static struct {
  void *data, *grad;
  size_t bytes, grad_bytes;
} * tensors;

// What a fragment uses of CUDA's runtime.
enum { cudaStreamCaptureModeThreadLocal };
static void *exec, *graph, *stream;
void cudaGraphInstantiate(void** exec, void* graph, int flags);
void cudaGraphLaunch(void* exec, void* stream);
void cudaStreamBeginCapture(void* stream, int mode);
void cudaStreamEndCapture(void* stream, void** graph);

void check(shard_error* error);
// Take what the fragment at hand gives them.
void backward();
void forward();

#endif  // TESTS_DOCS_FRAGMENTS_H_
