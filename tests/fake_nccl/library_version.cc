// SPDX-License-Identifier: Apache-2.0

#include "tests/fake_nccl/state.h"

namespace shard::testing::fake_nccl {

int LibraryVersion() { return SHARD_FAKE_NCCL_VERSION; }

}  // namespace shard::testing::fake_nccl
