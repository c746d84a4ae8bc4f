/* SPDX-License-Identifier: Apache-2.0
 *
 * A host that loads the library as a plugin is loaded, by dlopen, and is
 * careless: it unloads the library after each of many runs and loads it again,
 * and it exits from one thread while others are ranks that train and save.
 *
 * Usage: plugin LIBRARY; checkpoints are in the folder TEST_TMPDIR. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shard/shard.h"

#define FUNCTIONS(F)               \
  F(shard_comm_open)               \
  F(shard_comm_shutdown)           \
  F(shard_comm_free)               \
  F(shard_model_create)            \
  F(shard_model_add_param)         \
  F(shard_model_free)              \
  F(shard_plan_create)             \
  F(shard_plan_free)               \
  F(shard_engine_create)           \
  F(shard_engine_broadcast_params) \
  F(shard_engine_step)             \
  F(shard_engine_free)             \
  F(shard_checkpoint_save)         \
  F(shard_save_free)               \
  F(shard_error_message)           \
  F(shard_error_free)

/* The functions of the library that is loaded: api.shard_comm_open and so on.
 */
static struct {
  void* library;
#define DECLARE(name) __typeof__(name)* name;
  FUNCTIONS(DECLARE)
} api;

static void fail(const char* what, const char* why) {
  fprintf(stderr, "plugin: %s: %s\n", what, why);
  _exit(1);
}

#define CHECK(call)                                                 \
  do {                                                              \
    shard_error* const error = (call);                              \
    if (error != NULL) fail(#call, api.shard_error_message(error)); \
  } while (0)

static void load(const char* path) {
  api.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (api.library == NULL) fail("dlopen", dlerror());
#define FIND(name)                                      \
  if ((api.name = dlsym(api.library, #name)) == NULL) { \
    fail("dlsym", #name);                               \
  }
  FUNCTIONS(FIND)
}

/* Unloads the library, and fails if anything of it stays, such as a thread or
 * a destructor that would run later. */
static void unload(const char* path) {
  dlclose(api.library);
  if (dlopen(path, RTLD_NOW | RTLD_NOLOAD) != NULL) {
    fail("dlclose", "the library is still loaded");
  }
}

enum { RANKS = 2 };

/* A run of RANKS threads. */
struct run {
  const char* url;
  const char* folder;
  int forever; /* The ranks train until the process exits. */
  pthread_barrier_t trained;
};

struct rank {
  struct run* run;
  int rank;
};

static void* train(void* argument) {
  const struct rank* const me = argument;
  struct run* const run = me->run;
  shard_comm* comm;
  shard_model* model;
  shard_plan* plan;
  shard_engine* engine;
  shard_save* save = NULL;
  int32_t param;
  shard_comm_options comm_options = SHARD_COMM_OPTIONS_INIT;
  comm_options.rank = me->rank;
  comm_options.world_size = RANKS;
  CHECK(api.shard_comm_open(run->url, &comm_options, &comm));
  CHECK(api.shard_model_create("Net", &model));
  CHECK(api.shard_model_add_param(model, 0, "weight", SHARD_F32,
                                  (int64_t[]){4096}, 1, &param));
  shard_plan_options plan_options = SHARD_PLAN_OPTIONS_INIT;
  plan_options.stage = 1;
  plan_options.world_size = RANKS;
  plan_options.optimizer = "adamw";
  CHECK(api.shard_plan_create(model, &plan_options, &plan));
  shard_engine_options options = SHARD_ENGINE_OPTIONS_INIT;
  options.device = "cpu-async";
  CHECK(api.shard_engine_create(plan, comm, &options, &engine));
  CHECK(api.shard_engine_broadcast_params(engine, 0));
  CHECK(api.shard_engine_step(engine, NULL, NULL));
  if (run->folder != NULL) {
    shard_save_options save_options = SHARD_SAVE_OPTIONS_INIT;
    save_options.overwrite = 1;
    CHECK(api.shard_checkpoint_save(engine, run->folder, &save_options, &save));
  }
  pthread_barrier_wait(&run->trained);
  while (run->forever) CHECK(api.shard_engine_step(engine, NULL, NULL));
  CHECK(api.shard_comm_shutdown(comm, 0));
  api.shard_save_free(save);
  api.shard_engine_free(engine);
  api.shard_plan_free(plan);
  api.shard_model_free(model);
  api.shard_comm_free(comm);
  return NULL;
}

/* Starts the ranks, and returns when all have trained. */
static void start(struct run* run, struct rank* ranks, pthread_t* threads) {
  pthread_barrier_init(&run->trained, NULL, RANKS + 1);
  for (int r = 0; r < RANKS; ++r) {
    ranks[r] = (struct rank){run, r};
    if (pthread_create(&threads[r], NULL, train, &ranks[r]) != 0) {
      fail("pthread_create", "no thread");
    }
  }
  pthread_barrier_wait(&run->trained);
}

static int count(const char* folder) {
  DIR* const entries = opendir(folder);
  int number = 0;
  if (entries == NULL) fail(folder, "cannot be read");
  while (readdir(entries) != NULL) ++number;
  closedir(entries);
  return number;
}

static void unload_after_each_run(const char* library, const char* url,
                                  const char* folder) {
  int descriptors = 0, tasks = 0;
  for (int i = 0; i < 50; ++i) {
    struct run run = {url, i % 10 == 0 ? folder : NULL, 0, {{0}}};
    struct rank ranks[RANKS];
    pthread_t threads[RANKS];
    load(library);
    start(&run, ranks, threads);
    for (int r = 0; r < RANKS; ++r) pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&run.trained);
    unload(library);
    if (i == 0) {
      descriptors = count("/proc/self/fd");
      tasks = count("/proc/self/task");
    }
  }
  if (count("/proc/self/fd") != descriptors) fail(url, "descriptors stay");
  if (count("/proc/self/task") != tasks) fail(url, "threads stay");
}

/* The handles live, ranks are in a step, and saves are in progress. */
static void exit_without_freeing(const char* library, const char* url,
                                 const char* folder) {
  for (int i = 0; i < 20; ++i) {
    int status = -1;
    const pid_t child = fork();
    if (child == 0) {
      static struct run run;
      static struct rank ranks[RANKS];
      static pthread_t threads[RANKS];
      alarm(20);
      load(library);
      run.url = url;
      run.folder = i % 2 == 0 ? folder : NULL;
      run.forever = 1;
      start(&run, ranks, threads);
      exit(0);
    }
    if (waitpid(child, &status, 0) != child || status != 0) {
      char why[64];
      snprintf(why, sizeof(why), "the status is 0x%x", (unsigned)status);
      fail("exit", why);
    }
  }
}

int main(int argc, char** argv) {
  static const char* const urls[] = {"threads:2?name=plugin",
                                     "threads:2?name=plugin&direct=0"};
  const char* const folder = getenv("TEST_TMPDIR");
  if (argc != 2 || folder == NULL)
    fail("usage", "TEST_TMPDIR=. plugin LIBRARY");
  for (int i = 0; i < 2; ++i) {
    exit_without_freeing(argv[1], urls[i], folder);
    unload_after_each_run(argv[1], urls[i], folder);
  }
  puts("plugin: passed");
  return 0;
}
