// SPDX-License-Identifier: Apache-2.0
//
// The calls of NCCL that a step with a forward pass makes for each buffer of
// the plan, and no others: one reduction on each level of ranks, and one
// all-gather; in stage 3 one for each pass whose parameters are not there.
// A buffer has several parameters, none of which has a call of its own. Units
// have different sizes, so each call tells its buffer. What has its place in
// the engine's buffers is reduced and gathered in place.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "kernels/cpu/norm.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard {

namespace nccl_training {
std::ostream& operator<<(std::ostream& out, const Form& form) {
  return out << form.Text();
}
}  // namespace nccl_training

namespace nccl_calls_test {
namespace {

using nccl_training::Form;
using nccl_training::kUnits;
using nccl_training::MakePlan;
using nccl_training::RankTraining;
using testing::FakeNccl;
using testing::fake_nccl::CallRecord;

// The number of calls, by symbol, ranks of the communicator, and bytes of a
// block.
using Calls = std::map<std::tuple<std::string, int, size_t>, int>;

std::string TextOf(const Calls& calls) {
  std::string text;
  for (const auto& [call, count] : calls) {
    const auto& [symbol, size, bytes] = call;
    StrAppend(&text, count, " ", symbol, " of ", bytes, " bytes over ", size,
              " ranks\n");
  }
  return text;
}

size_t BytesOf(const CallRecord& call) {
  switch (call.type) {
    case testing::fake_nccl::DataType::kFloat32:
      return call.count * sizeof(float);
    case testing::fake_nccl::DataType::kBfloat16:
      return call.count * sizeof(uint16_t);
    default:
      return call.count;
  }
}

// Returns the bytes of the parameters, or gradients, of a rank's range.
size_t OwnBytes(const FlatBufferPlan& buffer, DType dtype) {
  return DTypeBytes(dtype, buffer.layout.shard_numel());
}

// Returns a rank's calls on communicators so far.
std::vector<CallRecord> CallsOf(int rank) {
  std::vector<CallRecord> calls;
  for (const CallRecord& call : testing::fake_nccl::Log()) {
    if (call.rank == rank) calls.push_back(call);
  }
  return calls;
}

// Returns the calls that one step is to make.
Calls ExpectedCalls(const Plan& plan, const Form& form, bool clips) {
  Calls calls;
  const int ranks = form.world_size;
  if (clips) ++calls[{"ncclAllGather", ranks, sizeof(NormSum)}];
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
    // The backward pass finds the parameters of the last unit, and those of the
    // root, which stay.
    const bool stays = form.keep_after_forward || buffer.unit == 0 ||
                       buffer.unit + 1 == kUnits;
    const int passes = form.stage == 3 && !stays ? 2 : 1;
    const size_t params = OwnBytes(buffer, buffer.dtype);
    if (group > 0) {
      // To the replicas, and for the passes from the group.
      ++calls[{"ncclAllGather", ranks / group, params}];
      calls[{"ncclAllGather", group, params * replicas}] += passes;
    } else {
      calls[{"ncclAllGather", ranks, params}] += passes;
    }
  }
  return calls;
}

// Whether a call has its place in buffers of the engine: sharded gradients are
// reduced, and sharded parameters gathered, between a slot of the unit and the
// rank's shard.
bool HasPlace(const CallRecord& call, const Plan& plan, const Form& form) {
  if (call.symbol == "ncclReduceScatter") return form.stage == 1;
  // A norm's sums are gathered behind the rank's own.
  if (call.symbol != "ncclAllGather" || BytesOf(call) == sizeof(NormSum)) {
    return false;
  }
  if (form.stage < 3) return true;
  const auto& buffers = plan.buffers();
  return form.shard_group_size > 0 &&
         std::any_of(buffers.begin(), buffers.end(), [&](const auto& it) {
           return BytesOf(call) == OwnBytes(it, it.dtype);
         });
}

bool IsInPlace(const CallRecord& call) {
  const auto* const send = static_cast<const std::byte*>(call.send);
  const auto* const recv = static_cast<const std::byte*>(call.recv);
  const size_t offset = BytesOf(call) * static_cast<size_t>(call.index);
  return call.symbol == "ncclAllGather" ? send == recv + offset
                                        : recv == send + offset;
}

constexpr int kParams = 3;

class NcclCallsTest : public ::testing::TestWithParam<Form> {};

TEST_P(NcclCallsTest, AreOneReductionAndOneGatherForEachBuffer) {
  Form form = GetParam();
  form.params = kParams;
  testing::fake_cuda::Options gpus;
  gpus.devices = form.world_size;
  const FakeNccl fake(gpus);
  const auto plan = MakePlan(form);
  const size_t dtypes = form.has_bf16 ? 2 : 1;
  ASSERT_EQ(plan->buffers().size(), kUnits * dtypes);
  ASSERT_EQ(plan->places().size(), kUnits * dtypes * kParams);
  RunThreadRanks(
      form.world_size,
      [&](const std::shared_ptr<Communicator>& comm) {
        RankTraining rank(form, plan, comm, 30);
        ASSERT_OK(rank.Create());
        ASSERT_OK(rank.Fill());
        ASSERT_OK(rank.Synchronize());
        for (const int step : {1, 2, 3}) {
          // As RankTraining has it.
          const bool clips = step % 2 == 0;
          const size_t before = CallsOf(comm->rank()).size();
          ASSERT_OK(rank.Step(step));
          ASSERT_OK(rank.Synchronize());
          const auto log = CallsOf(comm->rank());
          Calls calls;
          size_t in_place = 0;
          for (size_t i = before; i < log.size(); ++i) {
            ++calls[{log[i].symbol, log[i].size, BytesOf(log[i])}];
            if (!HasPlace(log[i], *plan, form)) continue;
            ++in_place;
            EXPECT_TRUE(IsInPlace(log[i])) << log[i].symbol;
          }
          const bool has_place = form.stage < 3 || form.shard_group_size > 0;
          EXPECT_EQ(in_place > 0, has_place);
          EXPECT_EQ(TextOf(calls), TextOf(ExpectedCalls(*plan, form, clips)))
              << "rank " << comm->rank() << ", step " << step;
        }
        ASSERT_OK(comm->Barrier("trained", Deadline::After(30)));
      },
      30, "direct=0");
}

INSTANTIATE_TEST_SUITE_P(
    Forms, NcclCallsTest,
    ::testing::Values(Form{.stage = 1}, Form{.stage = 2}, Form{.stage = 3},
                      Form{.stage = 1, .overlap = true},
                      Form{.stage = 2, .overlap = true},
                      Form{.stage = 3, .overlap = true},
                      Form{.stage = 3, .keep_after_forward = true},
                      Form{.world_size = 4, .stage = 3, .shard_group_size = 2},
                      Form{.stage = 1, .deterministic = true},
                      Form{.stage = 2, .deterministic = true},
                      Form{.stage = 3, .deterministic = true},
                      Form{.world_size = 4,
                           .stage = 3,
                           .shard_group_size = 2,
                           .deterministic = true},
                      Form{.stage = 1, .has_bf16 = true},
                      Form{.stage = 2, .has_bf16 = true},
                      Form{.stage = 3, .has_bf16 = true},
                      Form{.stage = 2, .f32_grads = true, .has_bf16 = true}),
    [](const auto& info) {
      const Form& form = info.param;
      return StrCat("stage", form.stage, form.overlap ? "_overlap" : "",
                    form.shard_group_size > 0 ? "_groups" : "",
                    form.keep_after_forward ? "_keeps" : "",
                    form.has_bf16 ? "_bf16" : "",
                    form.f32_grads ? "_f32_grads" : "",
                    form.deterministic ? "_deterministic" : "");
    });

}  // namespace
}  // namespace nccl_calls_test
}  // namespace shard
