// SPDX-License-Identifier: Apache-2.0
//
// Prints the summary of a run before its first step: ranks, text, model, plan,
// memory and optimizers.

#ifndef SHARD_SAMPLES_GPT_PRINT_SUMMARY_H_
#define SHARD_SAMPLES_GPT_PRINT_SUMMARY_H_

#include "samples/gpt/options.h"
#include "samples/gpt/text.h"
#include "shard/shard.h"

shard_error* print_summary(const options* opts, const text* data,
                           const shard_comm* comm, const shard_plan* plan,
                           const shard_engine* engine);

#endif  // SHARD_SAMPLES_GPT_PRINT_SUMMARY_H_
