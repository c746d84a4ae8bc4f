// SPDX-License-Identifier: Apache-2.0
//
// The layers of the GPT on an NVIDIA GPU: kernels of this folder, and cuBLAS.

#ifndef SHARD_SAMPLES_GPT_CUDA_CUDA_LAYERS_H_
#define SHARD_SAMPLES_GPT_CUDA_CUDA_LAYERS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "samples/gpt/layers.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cuda_layers cuda_layers;

// Returns how many GPUs this process may use: 0 without a driver.
int cuda_device_count(void);

// Opens the layers of GPU `ordinal`, in the order of CUDA, for passes over up
// to `batch` sequences of `context` bytes. The GPU's primary context stays
// current in the calling thread until cuda_layers_close, and all calls are made
// in that thread. Returns NULL after an error, with a one-line message.
cuda_layers* cuda_layers_open(int ordinal, int batch, int context,
                              char* message, size_t message_size);

// Returns the table, which lives as long as the layers.
layers* cuda_layers_table(cuda_layers* all);

// Returns the stream of all work, a CUstream, for shard_engine_set_stream.
void* cuda_layers_stream(cuda_layers* all);

// ---- Graphs ----

// Begins a capture of the stream's work as a CUDA graph, which replaces the one
// before. Until cuda_layers_capture_end nothing that is enqueued runs: a
// forward pass returns 0 as its loss, and functions that read numbers or
// allocate memory must not be called. Returns false after an error.
bool cuda_layers_capture_begin(cuda_layers* all);
// Ends a capture that has begun. To be called after an error, too. Returns
// false after an error, in the capture or now; there is then no graph.
bool cuda_layers_capture_end(cuda_layers* all);
// Runs the graph once with other sequences, and waits for its end. Returns the
// loss of its forward pass, and 0 after an error. REQUIRES: the graph has one
// forward pass, over `batch` sequences of `length` bytes.
double cuda_layers_replay(cuda_layers* all, const uint8_t* sequences, int batch,
                          int length);

// Waits for the work and frees everything. NULL is allowed. An engine that was
// given the stream must be freed before.
void cuda_layers_close(cuda_layers* all);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHARD_SAMPLES_GPT_CUDA_CUDA_LAYERS_H_
