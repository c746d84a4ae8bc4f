// SPDX-License-Identifier: Apache-2.0
//
// Notices of tests: a number, and a value that says who has posted it.

#ifndef SHARD_TESTS_CORE_COMM_POSTED_H_
#define SHARD_TESTS_CORE_COMM_POSTED_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/comm/communicator.h"
#include "core/comm/notices.h"
#include "tests/core/comm/backends.h"

namespace shard::testing {

struct Posted {
  uint64_t number;
  int64_t rank;
};

// Posts and awaits notices, and checks the numbers and ranks of those of
// others.
class Poster {
 public:
  // Called with the rank of each notice that was compared.
  using Seen = std::function<void(int rank, uint64_t number)>;

  Poster(Communicator* comm, std::unique_ptr<Notices> notices)
      : rank_(comm->rank()),
        world_size_(comm->world_size()),
        notices_(std::move(notices)) {}

  Notices* operator->() { return notices_.get(); }
  uint64_t number() const { return number_; }

  Status Post(
      const Seen& seen = [](int, uint64_t) {},
      const Deadline& deadline = Soon()) {
    const Posted mine = {++number_, rank_};
    const Status posted = notices_->Post(&mine, CheckEach(seen), deadline);
    if (!posted.ok()) --number_;
    return posted;
  }

  Status Await(const Deadline& deadline = Soon()) {
    return Await(
        number_, [](int, uint64_t) {}, deadline);
  }
  Status Await(uint64_t number, const Seen& seen,
               const Deadline& deadline = Soon()) {
    std::vector<Posted> all(static_cast<size_t>(world_size_));
    SHARD_RETURN_IF_ERROR(
        notices_->Await(number, CheckEach(seen), all.data(), deadline));
    Check(all, number);
    return Status();
  }

  Status Meet(
      const Seen& seen = [](int, uint64_t) {},
      const Deadline& deadline = Soon()) {
    const Posted mine = {++number_, rank_};
    std::vector<Posted> all(static_cast<size_t>(world_size_));
    SHARD_RETURN_IF_ERROR(
        notices_->Meet(&mine, CheckEach(seen), all.data(), deadline));
    Check(all, number_);
    return Status();
  }

 private:
  Notices::Compare CheckEach(const Seen& seen) {
    return [this, seen](int rank, uint64_t number, const void* theirs,
                        const void* ours) {
      const auto* other = static_cast<const Posted*>(theirs);
      const auto* own = static_cast<const Posted*>(ours);
      EXPECT_NE(rank, rank_);
      EXPECT_LE(number, number_);
      EXPECT_EQ(own->number, number);
      EXPECT_EQ(own->rank, rank_);
      EXPECT_EQ(other->number, own->number);
      EXPECT_EQ(other->rank, rank);
      seen(rank, own->number);
    };
  }
  static void Check(const std::vector<Posted>& all, uint64_t number) {
    for (size_t r = 0; r < all.size(); ++r) {
      EXPECT_EQ(all[r].number, number);
      EXPECT_EQ(all[r].rank, static_cast<int64_t>(r));
    }
  }

  const int rank_;
  const int world_size_;
  const std::unique_ptr<Notices> notices_;
  uint64_t number_ = 0;
};

// Opens notices. COLLECTIVE. Returns null, and fails the test, on an error.
inline std::unique_ptr<Poster> OpenPoster(Communicator* comm) {
  auto notices = comm->OpenNotices("unit", sizeof(Posted), Soon());
  EXPECT_TRUE(notices.ok()) << notices.status().ToString();
  if (!notices.ok()) return nullptr;
  return std::make_unique<Poster>(comm, *std::move(notices));
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_COMM_POSTED_H_
