// SPDX-License-Identifier: Apache-2.0
//
// Runs ranks that have a communicator and a duplicate, and has collectives to
// run on either.

#ifndef SHARD_TESTS_CORE_COMM_DUPLICATES_H_
#define SHARD_TESTS_CORE_COMM_DUPLICATES_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/communicator.h"
#include "core/comm/exchange.h"
#include "tests/core/comm/backends.h"

namespace shard::testing {

using Handle = std::shared_ptr<Communicator>;

// Runs body(first, duplicate) on every rank. Shuts neither down afterwards.
inline void RunFamily(Backend backend, int world_size,
                      const std::function<void(Handle, Handle)>& body,
                      const std::string& parameters = "") {
  const std::string url = UrlFor(backend, UniqueName(), world_size, parameters);
  RunEach(backend, world_size, [&](int rank) {
    auto first = OpenCommunicator(
        url, {.rank = rank, .world_size = world_size, .timeout = 17});
    ASSERT_TRUE(first.ok()) << first.status().ToString();
    auto duplicate = (*first)->Duplicate("engine", /*direct=*/true, Soon());
    ASSERT_TRUE(duplicate.ok()) << duplicate.status().ToString();
    body(*std::move(first), *std::move(duplicate));
  });
}

// Calls every collective `rounds` times, with values that only this caller has,
// and those of an exchange too.
inline void Work(Communicator* comm, int rounds, int32_t salt) {
  auto exchange = comm->OpenExchange(StrCat("exchange ", salt), Soon());
  ASSERT_TRUE(exchange.ok()) << exchange.status().ToString();
  const RankSet all = RankSet::All(comm->world_size());
  const auto world_size = static_cast<size_t>(all.count);
  for (int i = 0; i < rounds; ++i) {
    const std::string what = StrCat("work ", salt, " ", i);
    SHARD_ASSERT_OK(comm->Barrier(what, Soon()));

    std::vector<int32_t> mine(i % 7 == 0 ? 3000 : 3, salt + comm->rank() + i);
    std::vector<int32_t> gathered(mine.size() * world_size);
    SHARD_ASSERT_OK(comm->AllGather(what, mine.data(), mine.size() * 4,
                                    gathered.data(), Soon()));
    for (size_t j = 0; j < gathered.size(); ++j) {
      ASSERT_EQ(gathered[j], salt + static_cast<int>(j / mine.size()) + i);
    }

    const size_t count = i % 10 == 0 ? 200000 : 100;
    const std::vector<float> send(count * world_size,
                                  static_cast<float>(salt + comm->rank() + i));
    std::vector<float> recv(count);
    const ReduceScatterArgs sums = {
        .send = send.data(), .count = count, .recv = recv.data()};
    SHARD_ASSERT_OK((*exchange)->ReduceScatter(what, all, sums, Soon()));
    float sum = 0;
    for (int r = 0; r < all.count; ++r) sum += static_cast<float>(salt + r + i);
    for (const float value : recv) ASSERT_EQ(value, sum);

    SHARD_ASSERT_OK((*exchange)->AllGatherBlocks(
        what, all, mine.data(), mine.size() * 4, gathered.data(), Soon()));
    for (size_t j = 0; j < gathered.size(); ++j) {
      ASSERT_EQ(gathered[j], salt + static_cast<int>(j / mine.size()) + i);
    }

    int32_t word = salt + comm->rank();
    const int root = i % comm->world_size();
    SHARD_ASSERT_OK(comm->Broadcast(what, root, &word, 4, Soon()));
    ASSERT_EQ(word, salt + root);
    word = salt + comm->rank();
    SHARD_ASSERT_OK((*exchange)->Broadcast(what, root, &word, 4, Soon()));
    ASSERT_EQ(word, salt + root);

    if (!comm->direct() || i % 4 != 0) continue;
    auto buffer = comm->Allocate(what, 4, SymmetricKind::kPerRank, Soon());
    ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
    auto* own = reinterpret_cast<int32_t*>((*buffer)->region(comm->rank()));
    ASSERT_EQ(*own, 0);
    *own = salt + comm->rank();
    SHARD_ASSERT_OK(comm->Barrier(what, Soon()));
    for (int r = 0; r < all.count; ++r) {
      ASSERT_EQ(*reinterpret_cast<int32_t*>((*buffer)->region(r)), salt + r);
    }
  }
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_COMM_DUPLICATES_H_
