// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/device.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

bool device_choose(device* d, const char* wanted, const shard_comm* comm,
                   char* message, size_t message_size) {
  d->name = wanted;
  const size_t name = strlen("cuda");
  if (strncmp(wanted, "cuda", name) != 0 ||
      (wanted[name] != '\0' && wanted[name] != '?')) {
    return true;
  }
  // Without a driver there are none. The engine then says what is missing.
  const int count = cuda_device_count();
  const int length = snprintf(
      d->of_gpu, sizeof(d->of_gpu), "cuda:%d%s",
      count > 0 ? (int)shard_comm_local_rank(comm) % count : 0, wanted + name);
  d->name = d->of_gpu;
  // The beginning of a spec may be another valid one: fewer threads, say.
  if ((size_t)length < sizeof(d->of_gpu)) return true;
  snprintf(message, message_size, "\"%s\" is longer than %d bytes", wanted,
           (int)sizeof(d->of_gpu) - 1);
  return false;
}

// Keeps the message of an error of libshard, where there is one.
static bool ok(shard_error* error, char* message, size_t message_size) {
  if (!error) return true;
  snprintf(message, message_size, "%s", shard_error_message(error));
  shard_error_free(error);
  return false;
}

bool device_open(device* d, shard_engine* engine, int batch, int context,
                 char* message, size_t message_size) {
  shard_device_kind kind;
  int32_t ordinal;
  if (!ok(shard_engine_device(engine, &kind, &ordinal), message,
          message_size)) {
    return false;
  }
  if (kind != SHARD_DEVICE_CUDA) {
    d->on = cpu_layers();
    return true;
  }
  char why[1024];
  d->gpu = cuda_layers_open(ordinal, batch, context, why, sizeof(why));
  if (!d->gpu) {
    snprintf(message, message_size, "cuda:%d: %s", (int)ordinal, why);
    return false;
  }
  d->on = cuda_layers_table(d->gpu);
  return ok(shard_engine_set_stream(engine, cuda_layers_stream(d->gpu)),
            message, message_size);
}

void device_close(device* d) {
  cuda_layers_close(d->gpu);
  d->gpu = NULL;
  d->on = NULL;
}
