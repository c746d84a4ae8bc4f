// SPDX-License-Identifier: Apache-2.0
//
// Whether all that is in the files of a store is as it was written.

#ifndef SHARD_CORE_CHECKPOINT_VERIFY_H_
#define SHARD_CORE_CHECKPOINT_VERIFY_H_

#include "core/base/status.h"
#include "core/checkpoint/data/file_store.h"

namespace shard {

// Reads every byte. kCorrupt says what is wrong first; all of it is the detail:
// {"problems": ["tensor '...' is damaged in FILE ...", ...]}. Other errors:
// where reading was not possible.
Status VerifyStore(const FileStore& store, const ReadOptions& options);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_VERIFY_H_
