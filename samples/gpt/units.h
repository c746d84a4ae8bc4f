// SPDX-License-Identifier: Apache-2.0
//
// The model's passes, unit by unit: the hooks of gpt.h as calls of libshard. A
// module that is the outermost of a unit acquires it when it is entered and
// releases it when it is left, in a backward pass with its gradients declared
// ready. Which modules those are is the plan's business (--wrap): the model's
// code is the same for all of them, and for every stage.
//
// Where parameters and gradients are is asked anew at each acquire, since
// sharded ones are somewhere else each time, and forgotten at the release: what
// reads them outside then ends at address 0, and not with old values.

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
