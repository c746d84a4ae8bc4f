// SPDX-License-Identifier: Apache-2.0
//
// An operation on tensors, as one rank calls it.

#ifndef SHARD_TESTS_FAKE_NCCL_WORK_H_
#define SHARD_TESTS_FAKE_NCCL_WORK_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fake_nccl/abi.h"
#include "tests/fake_nccl/sums.h"

namespace shard::testing::fake_nccl {

enum class WorkKind : uint32_t {
  kReduceScatter,
  kAllReduce,
  kAllGather,
  kBroadcast,
  kSend,
  kRecv,
};

struct Work {
  WorkKind kind;
  const std::byte* send = nullptr;
  std::byte* recv = nullptr;
  size_t count = 0;
  DataType type = DataType::kInt8;
  RedOp op = RedOp::kSum;
  int peer = -1;  // The root, or the other rank.
  // Whether what it reads and writes is registered.
  bool send_is_registered = false;
  bool recv_is_registered = false;
  // The window, by its round, and the offset there of what all ranks read or
  // write in each other's memory: a reduction's input, a gather's output.
  uint64_t window = 0;  // 0: none.
  uint64_t window_offset = 0;

  // Returns the bytes of `count` elements.
  size_t bytes() const { return count * SizeOf(type); }
  bool is_collective() const {
    return kind != WorkKind::kSend && kind != WorkKind::kRecv;
  }
  const char* symbol() const {
    switch (kind) {
      case WorkKind::kReduceScatter:
        return "ncclReduceScatter";
      case WorkKind::kAllReduce:
        return "ncclAllReduce";
      case WorkKind::kAllGather:
        return "ncclAllGather";
      case WorkKind::kBroadcast:
        return "ncclBroadcast";
      case WorkKind::kSend:
        return "ncclSend";
      case WorkKind::kRecv:
        return "ncclRecv";
    }
    return "";
  }
};

}  // namespace shard::testing::fake_nccl

#endif  // SHARD_TESTS_FAKE_NCCL_WORK_H_
