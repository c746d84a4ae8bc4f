/* SPDX-License-Identifier: Apache-2.0
 *
 * Usage: call [NAME...]
 *
 * Calls functions of libshard.so.0 by their names, each with zeros: all of them
 * refuse NULL or give a constant. Prints the version that it sees. */

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

typedef void* (*function)(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t,
                          intptr_t, intptr_t, intptr_t);

int main(int argc, char** argv) {
  void* library = dlopen("libshard.so.0", RTLD_NOW);
  if (library == NULL) return puts(dlerror()), 2;
  /* ISO C has no cast between functions and objects; POSIX has. */
  union {
    void* address;
    function call;
    const char* (*text)(void);
    int32_t (*number)(void);
  } found;
  for (int i = 1; i < argc; ++i) {
    found.address = dlsym(library, argv[i]);
    if (found.address == NULL) return puts(argv[i]), 3;
    found.call(0, 0, 0, 0, 0, 0, 0, 0);
  }
  found.address = dlsym(library, "shard_version");
  printf("version %s", found.text());
  found.address = dlsym(library, "shard_abi_version");
  printf(", ABI %d\n", (int)found.number());
  return 0;
}
