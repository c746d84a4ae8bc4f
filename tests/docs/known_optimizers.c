/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the optimizers that this library knows, one per line: the list in the
 * error about an unknown one. */

#include <stdio.h>
#include <string.h>

#include "shard/shard.h"

int main(void) {
  shard_model* model;
  int32_t param;
  shard_plan* plan;
  shard_plan_options options = SHARD_PLAN_OPTIONS_INIT;
  options.world_size = 1;
  options.optimizer = "none";
  shard_error* error = shard_model_create(NULL, &model);
  if (error == NULL) {
    error = shard_model_add_param(model, 0, "p", SHARD_F32, NULL, 0, &param);
  }
  if (error == NULL) error = shard_plan_create(model, &options, &plan);
  const char* at = strstr(shard_error_message(error), "known: ");
  if (at == NULL) return 1;
  for (at += strlen("known: ");; at += 2) {
    const size_t length = strcspn(at, ",");
    if (strncmp(at, "followed", strlen("followed")) == 0) break;
    printf("%.*s\n", (int)length, at);
    at += length;
    if (*at == '\0') break;
  }
  shard_error_free(error);
  shard_model_free(model);
  return 0;
}
