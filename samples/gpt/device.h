// SPDX-License-Identifier: Apache-2.0
//
// The device of a rank: where libshard keeps the tensors of its engine, and the
// model computes (--device).

#ifndef SHARD_SAMPLES_GPT_DEVICE_H_
#define SHARD_SAMPLES_GPT_DEVICE_H_

#include <stdbool.h>
#include <stddef.h>

#include "samples/gpt/cuda/cuda_layers.h"
#include "samples/gpt/layers.h"
#include "shard/shard.h"

typedef struct device {
  const char* name;  // As libshard has it: "cuda:0".
  char of_gpu[128];  // The name of a GPU that device_choose has chosen.
  layers* on;        // NULL until the device is open.
  cuda_layers* gpu;  // NULL on the processor.
} device;

// Sets the name for shard_engine_options: `wanted`, but for "cuda", which may
// have options behind it ("cuda?offload=states"), the GPU that is this rank's
// turn on its host. `wanted` must outlive the device. Returns false where the
// name has no room for it, with a one-line message.
bool device_choose(device* d, const char* wanted, const shard_comm* comm,
                   char* message, size_t message_size);

// Opens the device of the engine for passes over up to `batch` sequences of
// `context` bytes. On a GPU the engine gets the stream of the layers: each then
// waits for what the other has enqueued, and the host for neither. Returns
// false after an error, with a one-line message; device_close is to be called
// then, too.
bool device_open(device* d, shard_engine* engine, int batch, int context,
                 char* message, size_t message_size);

// Closes what device_open has opened. The engine must be freed before: it uses
// the stream.
void device_close(device* d);

#endif  // SHARD_SAMPLES_GPT_DEVICE_H_
