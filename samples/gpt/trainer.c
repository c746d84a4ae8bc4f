// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/trainer.h"

#include <stdbool.h>
#include <stdio.h>

#include "samples/gpt/progress.h"
#include "shard/shard.h"

void trainer_complain(trainer* t, const char* what, const char* why) {
  progress_end_line(t->shown);
  if (t->rank < 0) {
    fprintf(stderr, "train_gpt: %s: %s\n", what, why);
  } else {
    fprintf(stderr, "train_gpt: rank %d: %s: %s\n", t->rank, what, why);
  }
}

bool trainer_fail(trainer* t, const char* what, const char* why) {
  trainer_complain(t, what, why);
  if (t->comm) {
    char reason[256];
    snprintf(reason, sizeof(reason), "%s: %.200s", what, why);
    shard_error_free(shard_comm_abort(t->comm, reason));
  }
  return false;
}

bool trainer_ok(trainer* t, const char* what, shard_error* error) {
  if (!error) return true;
  const shard_code code = shard_error_code(error);
  char why[1024];
  snprintf(why, sizeof(why), "%s: %s", shard_code_name(code),
           shard_error_message(error));
  shard_error_free(error);
  if (code == SHARD_RANK_LOST) t->followed = true;
  if (code == SHARD_DESYNC || code == SHARD_RANK_LOST ||
      code == SHARD_POISONED || code == SHARD_DEADLINE_EXCEEDED) {
    // These codes concern the group: every rank is told.
    trainer_complain(t, what, why);
    return false;
  }
  return trainer_fail(t, what, why);
}
