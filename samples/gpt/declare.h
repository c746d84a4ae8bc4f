// SPDX-License-Identifier: Apache-2.0
//
// Declares the GPT to libshard: its module tree with every parameter, the plan,
// which decides the units and how parameters are sharded, and the schedule of
// the learning rate. All are local and pure: they need no other rank, and take
// no memory for parameters.

#ifndef SHARD_SAMPLES_GPT_DECLARE_H_
#define SHARD_SAMPLES_GPT_DECLARE_H_

#include <stdint.h>

#include "samples/gpt/options.h"
#include "shard/shard.h"

// Declares module i of gpt_module_at as module i, tensor i of gpt_tensor_at as
// parameter i, the lm head's weight as another name of the token embedding, and
// the param groups.
shard_error* declare_model(const options* opts, shard_model** model);

shard_error* declare_plan(const shard_model* model, const options* opts,
                          int world_size, shard_plan** plan);

// Sets `lr` to the learning rate of a step: up on a line, then down on a
// cosine. `step` counts from 1.
shard_error* learning_rate(const options* opts, int64_t step, double* lr);

#endif  // SHARD_SAMPLES_GPT_DECLARE_H_
