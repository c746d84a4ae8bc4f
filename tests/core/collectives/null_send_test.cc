// SPDX-License-Identifier: Apache-2.0
//
// Ranks that have nothing to add to a reduce-scatter: the result is the one
// that zeros would have, to the bit.

#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/dtype.h"
#include "core/comm/communicator.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/collectives/blocking_collectives.h"
#include "tests/core/comm/backends.h"

namespace shard::testing::null_send_test {
namespace {

class NullSendTest : public ::testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  void Run(const std::function<void(BlockingCollectives*)>& body) {
    RunGroup(std::get<0>(GetParam()), std::get<1>(GetParam()),
             [&](Communicator* comm) {
               BlockingCollectives collectives(comm);
               body(&collectives);
             });
  }
};

float Value(int rank, size_t index) {
  if (index % 3 == 0) return -0.0f;
  return std::ldexp(static_cast<float>(index % 101) - 50.0f, rank * 7 - 20);
}

// Compares a reduce-scatter with nulls to one with zeros. The bits of `absent`
// are the ranks that have nothing.
void Check(BlockingCollectives* comm, unsigned absent, size_t count, bool add) {
  const RankSet all = RankSet::All(comm->world_size());
  const auto blocks = static_cast<size_t>(all.count);
  const bool mine = (absent >> comm->rank() & 1) == 0;
  std::vector<float> zeros(blocks * count);
  std::vector<float> values(blocks * count);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = Value(comm->rank(), i);
  }
  std::vector<float> expected(count, -0.0f);
  std::vector<float> result(count, -0.0f);
  SHARD_ASSERT_OK(
      comm->ReduceScatter("zeros", all,
                          {.send = mine ? values.data() : zeros.data(),
                           .count = count,
                           .recv = expected.data(),
                           .add = add}));
  SHARD_ASSERT_OK(comm->ReduceScatter("null", all,
                                      {.send = mine ? values.data() : nullptr,
                                       .count = count,
                                       .recv = result.data(),
                                       .add = add}));
  EXPECT_EQ(std::memcmp(result.data(), expected.data(), count * sizeof(float)),
            0)
      << absent << " " << count << " " << add;
}

TEST_P(NullSendTest, EqualsZeros) {
  Run([](BlockingCollectives* comm) {
    const unsigned everyone = (1u << comm->world_size()) - 1;
    for (unsigned absent = 0; absent <= everyone; ++absent) {
      for (const bool add : {false, true}) Check(comm, absent, 1500, add);
    }
    // The tensors have several tiles, and do not reuse the halves of the calls
    // before.
    for (const unsigned absent : {1u, everyone - 1, everyone, 0u, everyone}) {
      Check(comm, absent, kSanitized ? 300001 : 700001, true);
    }
  });
}

// The dtype is another one, and the sets have two of the four ranks; one rank
// has nothing.
TEST_P(NullSendTest, EqualsZerosInSets) {
  Run([](BlockingCollectives* comm) {
    if (comm->world_size() != 4) return;
    const RankSet set = RankSet::Of(comm->rank(), 2, 2);
    const uint16_t one = 0x3F80;  // 1 in bf16.
    const std::vector<uint16_t> send(2 * 70, one);
    std::vector<float> recv(70, 5);
    SHARD_ASSERT_OK(
        comm->ReduceScatter("sets", set,
                            {.send = comm->rank() == 0 ? send.data() : nullptr,
                             .dtype = DType::kBF16,
                             .count = 70,
                             .recv = recv.data(),
                             .add = true}));
    const float expected = comm->rank() % 2 == 0 ? 6 : 5;
    for (const float value : recv) ASSERT_EQ(value, expected);
  });
}

INSTANTIATE_TEST_SUITE_P(All, NullSendTest,
                         ::testing::Combine(::testing::Values(Backend::kThreads,
                                                              Backend::kShm),
                                            ::testing::Values(1, 2, 4)),
                         [](const auto& info) {
                           return StrCat(BackendName(std::get<0>(info.param)),
                                         std::get<1>(info.param));
                         });

}  // namespace
}  // namespace shard::testing::null_send_test
