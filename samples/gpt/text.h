// SPDX-License-Identifier: Apache-2.0
//
// Text to train on, and held-out text to validate with.
//
// The last tenth of every file is held out, so the two never overlap and both
// have every kind of text. A training sequence is a pure function of
// (seed, step, index in the global batch): however many ranks share a batch,
// together they read the same sequences.

#ifndef SHARD_SAMPLES_GPT_TEXT_H_
#define SHARD_SAMPLES_GPT_TEXT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct text {
  uint8_t* train;
  size_t train_bytes;
  uint8_t* held_out;
  size_t held_out_bytes;
  int files;
} text;

// Reads `path`: a file, or a folder's regular files in the order of their
// names. A file that is reached by two names counts once. Returns false, with a
// one-line message that names the path, when it cannot be read, is empty, or
// when either part is shorter than one sequence of `context` bytes and its last
// target. On failure there is nothing to free.
bool text_load(text* data, const char* path, int context, char* message,
               size_t message_size);

// Writes the context + 1 bytes of a training sequence.
void text_training_sequence(const text* data, uint64_t seed, int64_t step,
                            int64_t index, int context, uint8_t* out);

// Returns the number of held-out sequences, at most `limit`. Neighbors share
// only their boundary byte; where there would be more than `limit`, those that
// are read are spread evenly.
int64_t text_held_out_count(const text* data, int context, int64_t limit);
// Writes the context + 1 bytes of a held-out sequence. REQUIRES: 0 <= index <
// text_held_out_count.
void text_held_out_sequence(const text* data, int64_t index, int context,
                            int64_t limit, uint8_t* out);

void text_free(text* data);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHARD_SAMPLES_GPT_TEXT_H_
