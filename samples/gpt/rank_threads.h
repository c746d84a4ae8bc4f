// SPDX-License-Identifier: Apache-2.0
//
// Runs ranks as threads of one process, for debugging several ranks and for
// tests. `shardctl run` runs each rank as a process, which suits a training
// job.

#ifndef SHARD_SAMPLES_GPT_RANK_THREADS_H_
#define SHARD_SAMPLES_GPT_RANK_THREADS_H_

#include "samples/gpt/options.h"

// Calls run_rank(opts, rank) for opts->rank_threads ranks at once and waits for
// all. Returns 0, or the exit status of a rank that failed.
int rank_threads_run(int (*run_rank)(const options* opts, int rank),
                     const options* opts);

#endif  // SHARD_SAMPLES_GPT_RANK_THREADS_H_
