// SPDX-License-Identifier: Apache-2.0
//
// Makes, from the options, a rank that can make its first step: the connection
// to the other ranks, the data, the plan and the engine, the model and its
// first values.

#ifndef SHARD_SAMPLES_GPT_PREPARE_H_
#define SHARD_SAMPLES_GPT_PREPARE_H_

#include <stdbool.h>

#include "samples/gpt/trainer.h"

// Both return false after they have printed the reason.
//
// Prepares a rank for training, and prints the summary of the run.
bool prepare_training(trainer* t);
// Prepares a rank for a check of its device (--check), which needs no data.
bool prepare_check(trainer* t);

#endif  // SHARD_SAMPLES_GPT_PREPARE_H_
