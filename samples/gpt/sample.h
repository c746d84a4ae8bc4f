// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_SAMPLES_GPT_SAMPLE_H_
#define SHARD_SAMPLES_GPT_SAMPLE_H_

#include <stdbool.h>
#include <stdint.h>

#include "samples/gpt/gpt.h"

#ifdef __cplusplus
extern "C" {
#endif

// Writes `bytes` bytes that the model finds likely after a line break, drawn at
// temperature 0.8: a pure function of the parameters and the seed. `window` is
// room for config->context + 1 bytes. Returns false when a hook stopped the
// model.
bool sample_text(gpt* model, const gpt_config* config, uint64_t seed, int bytes,
                 uint8_t* window, uint8_t* out);

// Takes part in sample_text on the ranks that do not draw: runs the hooks of as
// many forward passes, in which these ranks give their parts of the parameters
// and compute nothing. Returns false when a hook stopped the model.
bool sample_attend(gpt* model, int bytes);

// Prints the sample on stdout, between blank lines. Prints nothing where there
// are no bytes.
void sample_print(const uint8_t* sample, int bytes);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHARD_SAMPLES_GPT_SAMPLE_H_
