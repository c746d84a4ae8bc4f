/* SPDX-License-Identifier: Apache-2.0
 *
 * A libshard.so.0 that records which functions a program calls. Each function
 * of the library is a few instructions here: they set the function's byte in
 * the file SHARD_USES_FILE, and jump to the function of the same name in the
 * real library, whose path is SHARD_USES_LIBRARY. Without SHARD_USES_FILE
 * nothing is recorded. The file is mapped shared, so that processes that the
 * program forks record too; uses.sh reads it.
 *
 * SHARD_USES_VERSION and SHARD_USES_ABI_VERSION, where they are set, are the
 * versions that the program sees, for tests of a library that is older or newer
 * than the headers.
 *
 * functions.inc has a line FUNCTION(name, index) for each function. x86-64
 * only: elsewhere this library is empty. */

#define _GNU_SOURCE

#if defined(__x86_64__)

#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static const char* const kNames[] = {
#define FUNCTION(name, index) [index] = #name,
#include "tests/sdk/uses/functions.inc"
#undef FUNCTION
};

enum { kCount = sizeof(kNames) / sizeof(kNames[0]) };

/* Read by the instructions below, hence neither static nor exported. */
#define HIDDEN __attribute__((visibility("hidden"), used))
HIDDEN void* uses_targets[kCount];
HIDDEN unsigned char* uses_called;

/* %r11 is the register that no caller expects to keep and no argument is in. */
#define FUNCTION(name, index)                                  \
  __asm__(".pushsection .text; .globl " #name "; .type " #name \
          ", @function; " #name                                \
          ": movq uses_called(%rip), %r11; "                   \
          "movb $1, " #index                                   \
          "(%r11); "                                           \
          "jmp *uses_targets+8*" #index                        \
          "(%rip); "                                           \
          ".size " #name ", .-" #name "; .popsection");
#include "tests/sdk/uses/functions.inc"
#undef FUNCTION

static const char* SeenVersion(void) { return getenv("SHARD_USES_VERSION"); }

static int32_t SeenAbiVersion(void) {
  return (int32_t)atoi(getenv("SHARD_USES_ABI_VERSION"));
}

/* A program that runs with half a recorder would prove nothing. */
static void require(int condition, const char* what, const char* value) {
  if (condition) return;
  fprintf(stderr, "uses: %s: %s\n", what, value == NULL ? "(not set)" : value);
  abort();
}

/* Returns the function of that name, or the one that replaces it. */
static void* target(void* library, const char* name) {
  /* ISO C has no cast between functions and objects; POSIX has. */
  union {
    const char* (*version)(void);
    int32_t (*abi_version)(void);
    void* address;
  } found;
  found.address = dlsym(library, name);
  if (getenv("SHARD_USES_VERSION") != NULL &&
      found.address == dlsym(library, "shard_version")) {
    found.version = SeenVersion;
  } else if (getenv("SHARD_USES_ABI_VERSION") != NULL &&
             found.address == dlsym(library, "shard_abi_version")) {
    found.abi_version = SeenAbiVersion;
  }
  return found.address;
}

__attribute__((constructor)) static void begin(void) {
  static unsigned char nowhere[kCount];
  const char* path = getenv("SHARD_USES_LIBRARY");
  require(path != NULL, "SHARD_USES_LIBRARY", path);
  /* Deeply bound, so that calls of the library to itself are not recorded. */
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  require(library != NULL, "cannot load SHARD_USES_LIBRARY", dlerror());
  for (int i = 0; i < kCount; ++i) {
    uses_targets[i] = target(library, kNames[i]);
    require(uses_targets[i] != NULL, "the library has no function", kNames[i]);
  }
  uses_called = nowhere;
  const char* record = getenv("SHARD_USES_FILE");
  if (record == NULL) return;
  const int file = open(record, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  require(file >= 0 && ftruncate(file, kCount) == 0, "SHARD_USES_FILE", record);
  void* bytes = mmap(NULL, kCount, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  require(bytes != MAP_FAILED, "cannot map SHARD_USES_FILE", record);
  uses_called = bytes;
  close(file);
}

#endif
