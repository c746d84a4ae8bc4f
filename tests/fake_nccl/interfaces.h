// SPDX-License-Identifier: Apache-2.0
//
// The network interfaces that NCCL looks for when it starts.

#ifndef SHARD_TESTS_FAKE_NCCL_INTERFACES_H_
#define SHARD_TESTS_FAKE_NCCL_INTERFACES_H_

namespace shard::testing::fake_nccl {

// The text of NCCL's error where it finds none.
inline constexpr char kNoInterface[] = "Bootstrap : no socket interface found";

// Returns whether the machine has an interface with an address that
// NCCL_SOCKET_IFNAME names: beginnings of names, separated by commas; after "="
// whole names, and after "^" all other interfaces. Without the variable no name
// is asked for, and NCCL takes any interface.
bool HasInterface();

}  // namespace shard::testing::fake_nccl

#endif  // SHARD_TESTS_FAKE_NCCL_INTERFACES_H_
