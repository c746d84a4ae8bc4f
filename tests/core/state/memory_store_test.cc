// SPDX-License-Identifier: Apache-2.0
//
// State dicts whose parts are fetched from elsewhere.

#include "core/state/memory_store.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/core/base/expect_status.h"

namespace shard::memory_store_test {
namespace {

// Some more than two pieces.
constexpr int64_t kNumel = 2 * int64_t{MemoryStore::kFetchedBytes} / 8 + 5;

std::vector<double> Numbers() {
  std::vector<double> numbers(kNumel);
  std::iota(numbers.begin(), numbers.end(), 1.0);
  return numbers;
}

// Adds `numbers` as part of a tensor that begins three elements earlier. The
// store's addresses are those of `elsewhere`, which it must not read.
void AddElsewhere(const std::vector<double>& numbers,
                  const std::vector<double>& elsewhere, MemoryStore* store) {
  const auto* const to = reinterpret_cast<const std::byte*>(numbers.data());
  const auto* const from = reinterpret_cast<const std::byte*>(elsewhere.data());
  store->FetchPartsWith(
      [=](const std::byte* at, size_t bytes, void* copy) {
        std::memcpy(copy, to + (at - from), bytes);
        return Status();
      },
      nullptr);
  MemoryStore::Tensor tensor;
  tensor.key = "weight";
  tensor.type = ElementType::kF64;
  tensor.shape = {kNumel + 3};
  ASSERT_OK(store->AddPart(std::move(tensor), {3, kNumel, from}));
}

TEST(MemoryStoreTest, PartsAreFetchedInPieces) {
  const std::vector<double> numbers = Numbers();
  const std::vector<double> elsewhere(numbers.size());
  MemoryStore store;
  AddElsewhere(numbers, elsewhere, &store);
  std::vector<double> read(numbers.size());
  int pieces = 0;
  const ReadRequest request = {0, 4, kNumel - 1};
  ASSERT_OK(store.Read(
      {&request, 1}, ReadOptions(),
      [&](size_t index, int64_t begin, int64_t numel, const std::byte* data) {
        EXPECT_EQ(index, 0u);
        std::memcpy(read.data() + (begin - 3), data,
                    static_cast<size_t>(numel) * sizeof(double));
        ++pieces;
        return Status();
      }));
  EXPECT_EQ(pieces, 3);
  read[0] = numbers[0];  // Which was not requested.
  EXPECT_TRUE(read == numbers);

  const auto copy = store.CopyPart(0);
  ASSERT_OK(copy);
  ASSERT_EQ(copy->size(), numbers.size() * sizeof(double));
  EXPECT_EQ(std::memcmp(copy->data(), numbers.data(), copy->size()), 0);
}

TEST(MemoryStoreTest, AnErrorOfFetchingIsReturned) {
  const std::vector<double> numbers = Numbers();
  MemoryStore store;
  AddElsewhere(numbers, numbers, &store);
  store.FetchPartsWith([](const std::byte*, size_t,
                          void*) { return DeadlineExceeded("too late"); },
                       nullptr);
  const ReadRequest request = {0, 3, kNumel};
  ExpectError(store.Read({&request, 1}, ReadOptions(),
                         [](size_t, int64_t, int64_t, const std::byte*) {
                           return Internal("was not to be called");
                         }),
              StatusCode::kDeadlineExceeded, {"too late"});
  ExpectError(store.CopyPart(0), StatusCode::kDeadlineExceeded, {"too late"});
}

TEST(MemoryStoreTest, ReservesForPartsThatAreFetched) {
  const std::vector<double> numbers = Numbers();
  const auto* const from = reinterpret_cast<const std::byte*>(numbers.data());
  MemoryStore store;
  AddElsewhere(numbers, numbers, &store);
  MemoryStore::Tensor alias;
  alias.key = "same";
  alias.type = ElementType::kF64;
  alias.shape = {kNumel + 3};
  alias.alias_of = 0;
  ASSERT_OK(store.AddPart(std::move(alias), {}));
  MemoryStore::Tensor elsewhere;  // Another rank has its elements.
  elsewhere.key = "other";
  elsewhere.type = ElementType::kF64;
  elsewhere.shape = {2};
  ASSERT_OK(store.AddPart(std::move(elsewhere), {}));
  std::vector<const std::byte*> reserved;
  store.FetchPartsWith(
      [](const std::byte*, size_t, void*) { return Status(); },
      [&](const std::byte* part) {
        reserved.push_back(part);
        return reserved.size() < 2 ? Status() : ResourceExhausted("no room");
      });
  ASSERT_OK(store.ReserveRead(2));
  EXPECT_TRUE(reserved.empty());
  ASSERT_OK(store.ReserveRead(0));
  ExpectError(store.ReserveRead(1), StatusCode::kResourceExhausted,
              {"no room"});
  EXPECT_EQ(reserved, std::vector<const std::byte*>({from, from}));
}

}  // namespace
}  // namespace shard::memory_store_test
