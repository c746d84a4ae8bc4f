// SPDX-License-Identifier: Apache-2.0
//
// The command line of train_gpt.

#ifndef SHARD_SAMPLES_GPT_OPTIONS_H_
#define SHARD_SAMPLES_GPT_OPTIONS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "samples/gpt/tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct options {
  gpt_config model;
  int batch;  // Sequences per step, all ranks together.
  int steps;
  double lr;
  double min_lr;  // Unless given, a fixed part of lr, so never above lr.
  int warm_up;
  double weight_decay;
  const char* optimizer;  // "adamw" or "muon".
  const char* states;     // "f32", "bf16" or "q8".
  int stage;
  const char* wrap;  // "none", "block" or a policy of libshard.
  const char* partition;
  int prefetch;
  int hybrid;  // Ranks per shard group; 0: all.
  bool overlap;
  bool deterministic;
  const char* device;  // "cuda" or a device of libshard.
  bool capture;        // Whether steps are replays of a CUDA graph.
  double clip;         // 0: no clipping.
  uint64_t seed;
  const char* text;
  int val_every;     // 0: only at the end.
  int rank_threads;  // 0: ranks come from the environment.
  bool no_shared_memory;
  const char* log;          // NULL: no log.
  const char* save;         // NULL: nothing is saved.
  int save_every;           // 0: only at the end.
  int keep;                 // 0: all.
  const char* resume;       // NULL: a new run.
  const char* export_path;  // NULL: nothing is exported.
  int sample;
  double timeout;
  bool check;
  bool help;
} options;

// Parses argv[1..argc) into `parsed`, which keeps pointers into argv. Returns
// false, with a one-line message that names the option and the value, on
// anything unknown, malformed or out of range.
bool options_parse(options* parsed, int argc, char* const* argv, char* message,
                   size_t message_size);

void options_print_help(FILE* out);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHARD_SAMPLES_GPT_OPTIONS_H_
