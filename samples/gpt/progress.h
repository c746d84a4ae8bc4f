// SPDX-License-Identifier: Apache-2.0
//
// Shows training to a person while it runs, and logs it for programs: a
// progress bar on a terminal, within its width (COLUMNS, where that is set),
// plain lines elsewhere, and a log of JSON lines. One rank has a progress; the
// others pass NULL, and every call is a no-op.

#ifndef SHARD_SAMPLES_GPT_PROGRESS_H_
#define SHARD_SAMPLES_GPT_PROGRESS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct progress progress;

typedef struct progress_step {
  int64_t step;  // The number of the step, from 1.
  double loss;   // In nats per byte.
  double lr;
  double grad_norm;  // Negative where it was not computed.
  double seconds;    // The time that this step took.
  // Whether a gradient was not finite, so that the step was skipped.
  bool skipped;
  // The bytes of tensors that rank 0 exchanged for this step, those of them
  // exchanged while it computed, and the seconds that it waited for tensors.
  uint64_t bytes_communicated;
  uint64_t bytes_overlapped;
  double seconds_exposed;
} progress_step;

// Opens a progress. `log_path` may be NULL. Returns NULL, with a one-line
// message, when the log cannot be written or memory is short.
progress* progress_open(int64_t steps, int64_t tokens_per_step,
                        const char* log_path, char* message,
                        size_t message_size);

void progress_report(progress* p, const progress_step* step);
void progress_report_validation(progress* p, int64_t step, double loss);

// Ends the bar, so that the next output starts on a line of its own.
void progress_end_line(progress* p);

// Frees `p`. Returns false, with a message, when the log could not be written
// to its end.
bool progress_close(progress* p, char* message, size_t message_size);

// Returns the seconds on a clock that only goes forward.
double progress_now(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHARD_SAMPLES_GPT_PROGRESS_H_
