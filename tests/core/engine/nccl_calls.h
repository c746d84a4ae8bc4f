// SPDX-License-Identifier: Apache-2.0
//
// The calls of NCCL that a rank has made, as the fake of NCCL has logged them,
// the loop of the ranks that make them, and the calls that steps of
// nccl_training are to make: for each buffer of the plan one reduction on each
// level of ranks, and one all-gather; in stage 3 one for each pass whose
// parameters are not there. Units have different sizes, so each call tells its
// buffer.

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
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_nccl/fake_nccl.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

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

// One of the levels on which gradients are summed: in shard groups two, the
// group and then the replicas, unless sums are deterministic.
struct Level {
  int ranks;
  size_t ranges;  // Of ranks, in the block that a rank sends to each other.
  bool is_first;
};

inline std::vector<Level> LevelsOf(const Form& form) {
  const int group = form.shard_group_size;
  if (group == 0 || form.deterministic) return {{form.world_size, 1, true}};
  const int replicas = form.world_size / group;
  return {{group, static_cast<size_t>(replicas), true}, {replicas, 1, false}};
}

// Whether a rank has no gradients of the unit, whose sums are sharded. It sends
// zeros on the first level, and has a sum on the second.
inline bool IsLacked(const Plan& plan, const Form& form, int32_t unit) {
  return plan.shards_grads() && form.lacks >= 0 && unit % 2 == 1;
}

// Whether blocks are sent to the ranks that add them, which NCCL does not do.
inline bool AreSent(const Plan& plan, const Form& form, const Level& level,
                    const FlatBufferPlan& buffer) {
  return form.deterministic || buffer.grad_dtype != DType::kF32 ||
         (level.is_first && IsLacked(plan, form, buffer.unit));
}

// Returns the bytes of the parts in which a block is sent: of all of it, but
// where a rank lacks gradients no more than there are zeros, and room for the
// blocks of all others. Parts are of whole 16 elements.
inline std::vector<size_t> PartsOf(const Plan& plan, const Form& form,
                                   const Level& level,
                                   const FlatBufferPlan& buffer) {
  const ReduceMemory memory = ReduceMemoryOf(plan);
  size_t left = OwnBytes(buffer, buffer.grad_dtype) * level.ranges;
  if (!IsLacked(plan, form, buffer.unit) || !level.is_first) return {left};
  const size_t at_once = 16 * DTypeSize(buffer.grad_dtype);
  const size_t most = std::min(
      memory.zeros, memory.blocks / static_cast<size_t>(level.ranks - 1));
  std::vector<size_t> parts;
  for (; left > most; left -= parts.back()) {
    parts.push_back(most / at_once * at_once);
  }
  parts.push_back(left);
  return parts;
}

// Returns the calls that reduce the gradients of all units once.
inline Calls Reductions(const Plan& plan, const Form& form) {
  Calls calls;
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    for (const Level& level : LevelsOf(form)) {
      if (!AreSent(plan, form, level, buffer)) {
        ++calls[{"ncclReduceScatter", level.ranks,
                 OwnBytes(buffer, buffer.grad_dtype) * level.ranges}];
        continue;
      }
      // A block for each peer.
      for (const size_t bytes : PartsOf(plan, form, level, buffer)) {
        calls[{"ncclSend", level.ranks, bytes}] += level.ranks - 1;
        calls[{"ncclRecv", level.ranks, bytes}] += level.ranks - 1;
      }
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

// Returns how often the passes of a step up to `pass` do: whole gradients that
// ranks may lack wait for the step.
inline int NumReductionsInPasses(const Plan& plan, const Form& form, int pass) {
  const bool wait = !plan.shards_grads() && form.lacks >= 0;
  return wait ? 0 : NumReductions(plan, form, pass);
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
// many as there is room for blocks. In groups of which a rank lacks gradients
// there is room for one buffer.
inline int ReductionLaunches(const Plan& plan, const Form& form) {
  const size_t room = ReduceMemoryOf(plan).blocks;
  const std::vector<Level> levels = LevelsOf(form);
  int launches = 0;
  for (size_t u = 0; u < plan.units().size(); ++u) {
    const bool one_by_one =
        levels.size() > 1 && IsLacked(plan, form, static_cast<int32_t>(u));
    for (const Level& level : levels) {
      const auto peers = static_cast<size_t>(level.ranks - 1);
      size_t taken = 0;
      bool is_open = false;
      for (const int32_t index : plan.units()[u].buffers) {
        const FlatBufferPlan& buffer = plan.buffer(index);
        if (one_by_one) is_open = false;
        size_t blocks = 0;
        if (AreSent(plan, form, level, buffer)) {
          const auto parts = PartsOf(plan, form, level, buffer);
          launches += static_cast<int>(parts.size()) - 1;
          blocks = peers * parts.back();
        }
        if (!is_open || taken + blocks > room) {
          ++launches;
          taken = 0;
        }
        is_open = true;
        taken += blocks;
      }
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

// Calls `body(rank, plan)` on every rank, which has parameters and no calls
// that still run, and then meets the others.
template <typename Body>
void OnRanks(Form form, const Body& body) {
  form.params = kParams;
  const testing::FakeNccl fake(Gpus(form));
  const auto plan = CheckedPlan(form);
  RunThreadRanks(
      form.world_size,
      [&](const std::shared_ptr<Communicator>& comm) {
        nccl_training::RankTraining rank(form, plan, comm, 30);
        ASSERT_OK(rank.Create());
        ASSERT_OK(rank.Fill());
        ASSERT_OK(rank.Synchronize());
        body(&rank, *plan);
        ASSERT_OK(rank.Meet("trained"));
      },
      30, "direct=0");
}

// The calls of a rank since the last time that it asked.
class CallsSince {
 public:
  explicit CallsSince(nccl_training::RankTraining* rank)
      : rank_(*rank), begin_(CallsOf(rank->rank()).size()) {}

  // Waits for the rank's GPU. The result holds until the next call.
  std::span<const CallRecord> Look() {
    EXPECT_OK(rank_.Synchronize());
    log_ = CallsOf(rank_.rank());
    return std::span(log_).subspan(begin_);
  }
  // The same, and begins anew.
  std::span<const CallRecord> Take() {
    const auto calls = Look();
    begin_ = log_.size();
    return calls;
  }

 private:
  nccl_training::RankTraining& rank_;
  size_t begin_;
  std::vector<CallRecord> log_;
};

// As RankTraining has it.
inline bool Clips(int step) { return step % 2 == 0; }

inline std::string NameOf(const ::testing::TestParamInfo<Form>& info) {
  const Form& form = info.param;
  const bool has_buckets = form.partition == Partition::kBucket;
  return StrCat(
      "stage", form.stage, form.overlap ? "_overlap" : "",
      form.shard_group_size > 0 ? "_groups" : "",
      form.keep_after_forward ? "_keeps" : "", form.has_bf16 ? "_bf16" : "",
      form.f32_grads ? "_f32_grads" : "",
      form.whole_grads ? "_whole_grads" : "",
      form.prefetch > 0 ? StrCat("_prefetch", form.prefetch) : "",
      form.passes > 1 ? StrCat("_passes", form.passes) : "",
      form.buffer_bytes == kSmallBuffer ? "_small_buffers" : "",
      has_buckets ? StrCat("_buckets", form.bucket_bytes) : "",
      form.lacks >= 0 ? "_lacks" : "", form.large_numel > 0 ? "_in_parts" : "",
      form.deterministic ? "_deterministic" : "");
}

}  // namespace nccl_calls
}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_NCCL_CALLS_H_
