// SPDX-License-Identifier: Apache-2.0
//
// The calls of NCCL that a rank has made, as the fake of NCCL has logged them,
// and those that steps of nccl_training are to make: for each buffer of the
// plan one reduction on each level of ranks, and one all-gather; in stage 3 one
// for each pass whose parameters are not there. Units have different sizes, so
// each call tells its buffer.

#ifndef SHARD_TESTS_CORE_ENGINE_NCCL_CALLS_H_
#define SHARD_TESTS_CORE_ENGINE_NCCL_CALLS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/transfer/collectives_memory.h"
#include "core/flat/plan.h"
#include "kernels/cpu/norm.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_nccl/fake_nccl.h"

namespace shard {

namespace nccl_training {
inline std::ostream& operator<<(std::ostream& out, const Form& form) {
  return out << form.Text();
}
}  // namespace nccl_training

namespace nccl_calls {

using nccl_training::Form;
using testing::fake_nccl::CallRecord;

// The number of calls, by symbol, ranks of the communicator, and bytes of a
// block.
using Calls = std::map<std::tuple<std::string, int, size_t>, int>;

inline std::string TextOf(const Calls& calls) {
  std::string text;
  for (const auto& [call, count] : calls) {
    const auto& [symbol, size, bytes] = call;
    StrAppend(&text, count, " ", symbol, " of ", bytes, " bytes over ", size,
              " ranks\n");
  }
  return text;
}

inline size_t BytesOf(const CallRecord& call) {
  switch (call.type) {
    case testing::fake_nccl::DataType::kFloat32:
      return call.count * sizeof(float);
    case testing::fake_nccl::DataType::kFloat16:
    case testing::fake_nccl::DataType::kBfloat16:
      return call.count * sizeof(uint16_t);
    default:
      return call.count;
  }
}

// Returns the bytes of the parameters, or gradients, of a rank's range.
inline size_t OwnBytes(const FlatBufferPlan& buffer, DType dtype) {
  return DTypeBytes(dtype, buffer.layout.shard_numel());
}

// Returns a rank's calls on communicators so far.
inline std::vector<CallRecord> CallsOf(int rank) {
  std::vector<CallRecord> calls;
  for (const CallRecord& call : testing::fake_nccl::Log()) {
    if (call.rank == rank) calls.push_back(call);
  }
  return calls;
}

// Adds what is called `times` times.
inline void AddTimes(const Calls& calls, int times, Calls* sum) {
  for (const auto& [call, count] : calls) {
    if (times > 0) (*sum)[call] += count * times;
  }
}

inline Calls CallsIn(std::span<const CallRecord> log) {
  Calls calls;
  for (const CallRecord& call : log) {
    ++calls[{call.symbol, call.size, BytesOf(call)}];
  }
  return calls;
}

inline Calls WithoutGathers(Calls calls) {
  std::erase_if(calls, [](const auto& call) {
    return std::get<0>(call.first) == "ncclAllGather";
  });
  return calls;
}

// Returns the calls that reduce the gradients of all units once.
inline Calls Reductions(const Plan& plan, const Form& form) {
  Calls calls;
  const int ranks = form.world_size;
  const int group = form.shard_group_size;
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    // A rank's range, and the group's block of it and of its replicas.
    const size_t replicas = static_cast<size_t>(ranks / std::max(group, 1));
    const size_t own = OwnBytes(buffer, buffer.grad_dtype);
    if (form.deterministic || buffer.grad_dtype != DType::kF32) {
      // An all-to-all of all ranks on one level: a block for each peer.
      calls[{"ncclSend", ranks, own}] += ranks - 1;
      calls[{"ncclRecv", ranks, own}] += ranks - 1;
    } else if (group > 0) {
      // In the group, and then among replicas.
      ++calls[{"ncclReduceScatter", group, own * replicas}];
      ++calls[{"ncclReduceScatter", ranks / group, own}];
    } else {
      ++calls[{"ncclReduceScatter", ranks, own}];
    }
  }
  return calls;
}

// Returns how often a step reduces a unit after `pass` passes: gradients that
// are whole accumulate before.
inline int NumReductions(const Plan& plan, const Form& form, int pass) {
  if (plan.shards_grads()) return pass;
  return pass == form.passes ? 1 : 0;
}

// Returns how often a step gathers a unit, by its passes or after its update.
inline int NumGathers(const Plan& plan, const Form& form, int32_t unit) {
  // The root's parameters stay in a slot of its own.
  if (!plan.shards_params() || unit == 0) return 1;
  // A backward pass finds the parameters of the last units, for which there are
  // slots, and a forward pass after it those of the first ones.
  const int slots = 1 + form.prefetch;
  const int turns = (unit + slots >= form.units ? form.passes : 0) +
                    (unit <= slots ? form.passes - 1 : 0);
  return 2 * form.passes - turns;
}

// Returns the calls that one step is to make.
inline Calls ExpectedCalls(const Plan& plan, const Form& form, bool clips) {
  Calls calls;
  const int ranks = form.world_size;
  const int group = form.shard_group_size;
  if (clips) ++calls[{"ncclAllGather", ranks, sizeof(NormSum)}];
  AddTimes(Reductions(plan, form), NumReductions(plan, form, form.passes),
           &calls);
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    const size_t replicas = static_cast<size_t>(ranks / std::max(group, 1));
    const int gathers = NumGathers(plan, form, buffer.unit);
    const size_t params = OwnBytes(buffer, buffer.dtype);
    if (group > 0) {
      // To the replicas, and for the passes from the group.
      ++calls[{"ncclAllGather", ranks / group, params}];
      calls[{"ncclAllGather", group, params * replicas}] += gathers;
    } else {
      calls[{"ncclAllGather", ranks, params}] += gathers;
    }
  }
  return calls;
}

// Returns the kernels of NCCL that reduce the gradients of all units once: one
// for all buffers of a unit and each level, or, where blocks are sent, for as
// many as there is room for blocks.
inline int ReductionLaunches(const Plan& plan, const Form& form) {
  const bool all_sent = form.deterministic;
  const int levels = form.shard_group_size > 0 && !all_sent ? 2 : 1;
  const size_t room = ReduceMemoryOf(plan).blocks;
  const auto peers = static_cast<size_t>(form.world_size - 1);
  int launches = 0;
  for (const UnitPlan& unit : plan.units()) {
    launches += levels;
    size_t taken = 0;
    for (const int32_t index : unit.buffers) {
      const FlatBufferPlan& buffer = plan.buffer(index);
      if (!all_sent && buffer.grad_dtype == DType::kF32) continue;
      const size_t bytes = peers * OwnBytes(buffer, buffer.grad_dtype);
      if (taken + bytes > room) {
        ++launches;
        taken = 0;
      }
      taken += bytes;
    }
  }
  return launches;
}

// Returns the kernels of NCCL that one step is to launch: one for all buffers
// of a unit that passes gather, and one for each that is updated.
inline uint64_t ExpectedLaunches(const Plan& plan, const Form& form,
                                 bool clips) {
  const auto buffers = static_cast<int>(plan.buffers().size());
  int launches = clips ? 1 : 0;
  launches +=
      ReductionLaunches(plan, form) * NumReductions(plan, form, form.passes);
  if (form.shard_group_size > 0) launches += buffers;
  for (int32_t unit = 0; plan.shards_params() && unit < form.units; ++unit) {
    launches += NumGathers(plan, form, unit);
  }
  if (!plan.shards_params()) launches += buffers;
  return static_cast<uint64_t>(launches);
}

inline constexpr int kParams = 4;

// Units have 16000 bytes and more: the first one has one buffer, the next two
// have two, and the last two have three.
inline constexpr int64_t kSmallBuffer = 16384;
inline constexpr size_t kSmallBuffers = 11;

inline std::shared_ptr<const Plan> CheckedPlan(const Form& form) {
  auto plan = MakePlan(form);
  const auto units = static_cast<size_t>(form.units);
  const size_t dtypes = form.has_bf16 ? 2 : 1;
  EXPECT_EQ(plan->buffers().size(),
            form.buffer_bytes == kSmallBuffer ? kSmallBuffers : units * dtypes);
  EXPECT_EQ(plan->places().size(), units * dtypes * kParams);
  return plan;
}

inline testing::fake_cuda::Options Gpus(const Form& form) {
  testing::fake_cuda::Options gpus;
  gpus.devices = form.world_size;
  return gpus;
}

// As RankTraining has it.
inline bool Clips(int step) { return step % 2 == 0; }

inline std::string NameOf(const ::testing::TestParamInfo<Form>& info) {
  const Form& form = info.param;
  const bool has_buckets = form.partition == Partition::kBucket;
  return StrCat("stage", form.stage, form.overlap ? "_overlap" : "",
                form.shard_group_size > 0 ? "_groups" : "",
                form.keep_after_forward ? "_keeps" : "",
                form.has_bf16 ? "_bf16" : "",
                form.f32_grads ? "_f32_grads" : "",
                form.whole_grads ? "_whole_grads" : "",
                form.prefetch > 0 ? StrCat("_prefetch", form.prefetch) : "",
                form.passes > 1 ? StrCat("_passes", form.passes) : "",
                form.buffer_bytes == kSmallBuffer ? "_small_buffers" : "",
                has_buckets ? StrCat("_buckets", form.bucket_bytes) : "",
                form.deterministic ? "_deterministic" : "");
}

}  // namespace nccl_calls
}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_NCCL_CALLS_H_
