/* SPDX-License-Identifier: Apache-2.0
 *
 * A library that is older than the headers, for tests. */

#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

EXPORTED const char* shard_version(void);
EXPORTED int32_t shard_abi_version(void);

const char* shard_version(void) { return "0.1.9"; }

int32_t shard_abi_version(void) { return 0; }
