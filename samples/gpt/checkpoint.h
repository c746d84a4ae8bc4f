// SPDX-License-Identifier: Apache-2.0
//
// Saves a run, and resumes a saved one.
//
// libshard saves parameters, optimizer states, hyperparameters and step counts,
// and gives each rank its part of them however many ranks there are. libshard
// cannot know which batch is next, so the sample saves the position in the data
// as a blob. A batch is a pure function of (seed, step, index in the global
// batch), so two numbers identify it, the same ones on every rank.

#ifndef SHARD_SAMPLES_GPT_CHECKPOINT_H_
#define SHARD_SAMPLES_GPT_CHECKPOINT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "samples/gpt/options.h"
#include "shard/shard.h"

// Copies the state after `step` batches and begins to write it into opts->save.
// May return an error of the save before this one. COLLECTIVE.
shard_error* checkpoint_save(const options* opts, shard_engine* engine,
                             int64_t step, shard_save** saving);

typedef struct resumed_run {
  int64_t step;        // The number of batches that were read. 0: a new run.
  uint64_t seed;       // The seed that those batches were drawn with.
  int32_t world_size;  // The number of ranks that saved the checkpoint.
} resumed_run;

// Loads opts->resume in place of initial values. COLLECTIVE.
shard_error* checkpoint_resume(const options* opts, shard_engine* engine,
                               resumed_run* run);

// Returns whether `opts` goes on where the run is; else `message` says why not.
bool checkpoint_fits(const options* opts, const resumed_run* run, char* message,
                     size_t message_size);

// Writes the parameters of the last save to opts->export_path. Called by one
// rank: the export needs neither the engine nor the other ranks.
shard_error* checkpoint_export(const options* opts);

#endif  // SHARD_SAMPLES_GPT_CHECKPOINT_H_
