// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/checkpoint.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

// The number of the next batch. Little-endian, as everything in a checkpoint.
typedef struct position {
  int64_t step;
  uint64_t seed;
} position;

static const char* const kPosition = "train_gpt.position";

shard_error* checkpoint_save(const options* opts, shard_engine* engine,
                             int64_t step, shard_save** saving) {
  const position next = {.step = step, .seed = opts->seed};
  // Every rank has the same position, and gets it back at any world size.
  shard_error* error = shard_engine_set_blob(
      engine, kPosition, SHARD_BLOB_REPLICATED, &next, sizeof(next));
  if (error) return error;
  shard_save_options save_options = SHARD_SAVE_OPTIONS_INIT;
  save_options.timeout = opts->timeout;
  save_options.keep_last = opts->keep;
  // A run that resumed from an older checkpoint reaches the steps of later ones
  // again.
  save_options.overwrite = 1;
  return shard_checkpoint_save(engine, opts->save, &save_options, saving);
}

shard_error* checkpoint_resume(const options* opts, shard_engine* engine,
                               resumed_run* run) {
  shard_load_options load_options = SHARD_LOAD_OPTIONS_INIT;
  load_options.timeout = opts->timeout;
  // The saved states may have another precision than --states.
  load_options.convert = 1;
  shard_load_report report = SHARD_LOAD_REPORT_INIT;
  shard_error* error =
      shard_checkpoint_load(engine, opts->resume, &load_options, &report);
  if (error) return error;
  const void* data;
  size_t bytes;
  error = shard_engine_blob(engine, kPosition, &data, &bytes);
  if (error) return error;
  position next = {0};
  memcpy(&next, data, bytes < sizeof(next) ? bytes : sizeof(next));
  run->step = next.step;
  run->seed = next.seed;
  run->world_size = report.saved_world_size;
  return NULL;
}

bool checkpoint_fits(const options* opts, const resumed_run* run, char* message,
                     size_t message_size) {
  if (run->seed != opts->seed) {
    snprintf(message, message_size,
             "the run was begun with --seed %llu, not %llu",
             (unsigned long long)run->seed, (unsigned long long)opts->seed);
  } else if (run->step > opts->steps) {
    snprintf(message, message_size,
             "the run is at step %lld, beyond --steps %d", (long long)run->step,
             opts->steps);
  } else {
    return true;
  }
  return false;
}

shard_error* checkpoint_export(const options* opts) {
  shard_checkpoint* saved;
  shard_error* error = shard_checkpoint_open(opts->save, &saved);
  if (error) return error;
  shard_convert_options convert_options = SHARD_CONVERT_OPTIONS_INIT;
  convert_options.content = SHARD_CONTENT_MODEL;
  convert_options.overwrite = 1;
  error = shard_checkpoint_export(saved, opts->export_path, &convert_options);
  shard_checkpoint_free(saved);
  return error;
}
