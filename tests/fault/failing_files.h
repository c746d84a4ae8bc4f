// SPDX-License-Identifier: Apache-2.0
//
// The file system of a test program, which can be told to fail: the calls that
// take space or change a folder (create, write, sync, resize, rename). In a
// program that links this file system, it replaces that of libc, for
// libshard.so too. It can fail together with the allocator of
// failing_allocator.h, before or after it.
//
// Calls of all threads count.

#ifndef SHARD_TESTS_FAULT_FAILING_FILES_H_
#define SHARD_TESTS_FAULT_FAILING_FILES_H_

#include <cstdint>

#include "tests/fault/failing_allocator.h"

namespace shard {

struct FileFault {
  int64_t at = 0;  // The number of the call that fails, from 1; 0 for none.
  bool and_after = false;  // Whether all calls after it fail as well.
  int error = 0;
  // Counts calls only after an allocation has failed.
  bool after_memory = false;
  // Arms the allocator when the first call fails.
  Outage then_outage = Outage::kNone;
  int64_t then_at = 0;
};

// Sets the fault and counts calls from 1. REQUIRES: the allocator is armed.
void ArmFiles(const FileFault& fault);
void DisarmFiles();
// Returns true when a call has failed since the files were armed.
bool FileFailed();

}  // namespace shard

#endif  // SHARD_TESTS_FAULT_FAILING_FILES_H_
