// SPDX-License-Identifier: Apache-2.0
//
// Shared: a value that the ranks of a test have in common, where ranks are
// processes: what they tell each other, and what the test reads afterwards.
//
//   struct Board {
//     std::atomic<int> ended = 0;
//   };
//   const Shared<Board> board;
//   RunRanks(2, [&](const Rank&) { ++board->ended; });
//   EXPECT_EQ(board->ended, 2);

#ifndef SHARD_TESTS_RANKS_SHARED_H_
#define SHARD_TESTS_RANKS_SHARED_H_

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <new>

namespace shard::testing {

// Memory with a T, which this process shares with those that it forks later. T
// is made of atomics and plain data, without pointers. Aborts where there is no
// memory.
template <typename T>
class Shared {
 public:
  Shared() : value_(new (Map()) T()) {}
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { ::munmap(value_, sizeof(T)); }

  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  static void* Map() {
    void* const memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      std::perror("mmap of what ranks share");
      std::abort();
    }
    return memory;
  }

  T* const value_;
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_RANKS_SHARED_H_
