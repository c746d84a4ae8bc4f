// SPDX-License-Identifier: Apache-2.0
//
// The state of one rank, and the reports of its failures.

#ifndef SHARD_SAMPLES_GPT_TRAINER_H_
#define SHARD_SAMPLES_GPT_TRAINER_H_

#include <stdbool.h>
#include <stdint.h>

#include "samples/gpt/captured_step.h"
#include "samples/gpt/checkpoint.h"
#include "samples/gpt/device.h"
#include "samples/gpt/gpt.h"
#include "samples/gpt/options.h"
#include "samples/gpt/progress.h"
#include "samples/gpt/text.h"
#include "samples/gpt/units.h"
#include "shard/shard.h"

// One rank. The trainer owns everything that the rank has; run_rank frees it.
typedef struct trainer {
  const options* opts;
  int rank;  // -1 until it is known.
  int world_size;
  int batch;      // Sequences per step of this rank.
  bool followed;  // Whether this rank ends because another was lost.
  shard_comm* comm;
  shard_model* model;
  shard_plan* plan;
  shard_engine* engine;
  resumed_run resumed;
  shard_save* saving;  // The last save.
  units units;
  device device;
  gpt* net;
  captured_step captured;  // For --capture.
  text data;
  uint8_t* sequences;
  progress* shown;  // Rank 0 only.
  double validation_loss;
  uint8_t* sample;  // Rank 0 only.
} trainer;

// Prints the reason of a failure that every rank sees.
void trainer_complain(trainer* t, const char* what, const char* why);

// Reports a failure of this rank alone. The other ranks are on their way to the
// next collective, so the abort tells them not to wait there. Returns false.
bool trainer_fail(trainer* t, const char* what, const char* why);

// Returns whether a call of libshard ended well. Reports and frees its error.
bool trainer_ok(trainer* t, const char* what, shard_error* error);

#endif  // SHARD_SAMPLES_GPT_TRAINER_H_
