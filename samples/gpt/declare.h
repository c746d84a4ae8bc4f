// SPDX-License-Identifier: Apache-2.0
//
// The GPT, told to libshard: its module tree with every parameter, and the plan
// that says how they are sharded and in which units. Both are local and pure:
// no other rank is needed, and no memory for parameters is taken.

#ifndef SHARD_SAMPLES_GPT_DECLARE_H_
#define SHARD_SAMPLES_GPT_DECLARE_H_

#include "samples/gpt/options.h"
#include "shard/shard.h"

// Declares module i of gpt_module_at as module i, tensor i of gpt_tensor_at as
// parameter i, and the lm head's weight as another name of the token embedding;
// and the param groups.
shard_error* declare_model(const options* opts, shard_model** model);

shard_error* declare_plan(const shard_model* model, const options* opts,
                          int world_size, shard_plan** plan);

#endif  // SHARD_SAMPLES_GPT_DECLARE_H_
