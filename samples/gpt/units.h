// SPDX-License-Identifier: Apache-2.0
//
// Implements the hooks of gpt.h by calls of libshard, so that passes go unit by
// unit. Entering the outermost module of a unit acquires the unit, and leaving
// it releases the unit, in a backward pass with its gradients declared ready.
// The plan decides which modules are units (--wrap): the model's code is the
// same for all of them, and for every stage.
//
// The pointers to parameters and gradients are asked for at each acquire, since
// sharded ones are somewhere else each time, and set to NULL at the release:
// code that reads them outside then fails at address 0 instead of reading old
// values.

#ifndef SHARD_SAMPLES_GPT_UNITS_H_
#define SHARD_SAMPLES_GPT_UNITS_H_

#include <stdint.h>

#include "samples/gpt/gpt.h"
#include "shard/shard.h"

typedef struct units {
  shard_engine* engine;
  int tensors;
  int32_t of_module[GPT_MAX_MODULES];  // -1: not the outermost of a unit.
  int32_t of_tensor[GPT_MAX_TENSORS];
  // Into libshard's memory, for gpt_create.
  const real* params[GPT_MAX_TENSORS];
  real* grads[GPT_MAX_TENSORS];
  // Why a pass stopped: the hooks leave it here, the caller takes it.
  shard_error* error;
} units;

// `engine` is not owned.
shard_error* units_connect(units* u, const gpt_config* config,
                           const shard_plan* plan, shard_engine* engine);

// `u` must outlive the model they are given to.
gpt_hooks units_hooks(units* u);

#endif  // SHARD_SAMPLES_GPT_UNITS_H_
