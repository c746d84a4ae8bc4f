// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/rank_threads.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct rank_thread {
  pthread_t thread;
  int (*run_rank)(const options* opts, int rank);
  const options* opts;
  int rank;
  int status;
} rank_thread;

static void* run(void* argument) {
  rank_thread* self = argument;
  self->status = self->run_rank(self->opts, self->rank);
  return NULL;
}

int rank_threads_run(int (*run_rank)(const options* opts, int rank),
                     const options* opts) {
  const int count = opts->rank_threads;
  rank_thread* ranks = calloc((size_t)count, sizeof(*ranks));
  if (!ranks) {
    fprintf(stderr, "train_gpt: out of memory\n");
    return 1;
  }
  int status = 0;
  int started = 0;
  for (; started < count; started++) {
    rank_thread* self = &ranks[started];
    *self = (rank_thread){.run_rank = run_rank, .opts = opts, .rank = started};
    const int error = pthread_create(&self->thread, NULL, run, self);
    if (error) {
      // The ranks that started will miss this one, and report it at their
      // deadline.
      fprintf(stderr, "train_gpt: thread of rank %d: %s\n", started,
              strerror(error));
      status = 1;
      break;
    }
  }
  for (int r = 0; r < started; r++) {
    pthread_join(ranks[r].thread, NULL);
    if (ranks[r].status != 0) status = ranks[r].status;
  }
  free(ranks);
  return status;
}
