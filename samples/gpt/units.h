// SPDX-License-Identifier: Apache-2.0
//
// Implements the hooks of gpt.h by calls of libshard, so that passes go unit by
// unit. Entering the outermost module of a unit acquires the unit, and leaving
// it releases the unit, in a backward pass with its gradients declared ready.
// The plan decides which modules are units (--wrap): the model's code is the
// same for all of them, and for every stage.
//
// The hooks ask for the pointers to parameters and gradients at each acquire,
// since sharded ones are somewhere else each time, and set them to NULL at the
// release: code that reads them outside then fails at address 0 instead of
// reading old values.
//
// A model whose steps are captured as a graph (--capture) has no hooks, because
// nothing declares gradients ready in a graph. Its one rank has all tensors in
// one place for good.

#ifndef SHARD_SAMPLES_GPT_UNITS_H_
#define SHARD_SAMPLES_GPT_UNITS_H_

#include <stdint.h>

#include "samples/gpt/gpt.h"
#include "shard/shard.h"

typedef struct units {
  shard_engine* engine;
  int tensors;
  // -1 for a module that is not the outermost of a unit.
  int32_t of_module[GPT_MAX_MODULES];
  int32_t of_tensor[GPT_MAX_TENSORS];
  // Pointers into libshard's memory, for gpt_create.
  const real* params[GPT_MAX_TENSORS];
  real* grads[GPT_MAX_TENSORS];
  // The reason why a pass stopped: the hooks leave it here, the caller takes
  // it.
  shard_error* error;
} units;

// Prepares the hooks. `engine` is not owned.
shard_error* units_connect(units* u, const gpt_config* config,
                           const shard_plan* plan, shard_engine* engine);

// Returns the hooks. `u` must outlive the model that gets them.
gpt_hooks units_hooks(units* u);

// Points to all tensors for good, for a model without hooks. REQUIRES: one
// rank.
shard_error* units_find_all(units* u);

#endif  // SHARD_SAMPLES_GPT_UNITS_H_
