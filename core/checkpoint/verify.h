// SPDX-License-Identifier: Apache-2.0
//
// Verifies that the files of a store have the bytes that were written.

#ifndef SHARD_CORE_CHECKPOINT_VERIFY_H_
#define SHARD_CORE_CHECKPOINT_VERIFY_H_

#include "core/base/status.h"
#include "core/checkpoint/data/file_store.h"

namespace shard {

// Reads every byte of a store and compares checksums. The message of kCorrupt
// names the first problem, the detail lists all: {"problems": ["tensor '...' is
// damaged in FILE ...", ...]}. Other errors say that reading was not possible.
Status VerifyStore(const FileStore& store, const ReadOptions& options);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_VERIFY_H_
