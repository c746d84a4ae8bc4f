// SPDX-License-Identifier: Apache-2.0
//
// A vector clock: how far each stream had come when something happened.

#ifndef SHARD_TESTS_FAKE_CUDA_CLOCK_H_
#define SHARD_TESTS_FAKE_CUDA_CLOCK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace shard::testing::fake_cuda {

class Clock {
 public:
  // The host has a place beside the streams. Its threads share one, since the
  // fake does not see how they synchronize.
  static constexpr size_t kHost = 0;

  // Returns whether operation `number` of `stream` happened before.
  bool Has(size_t stream, uint64_t number) const {
    return stream < seen_.size() && seen_[stream] >= number;
  }
  // Counts an operation of `stream`, and returns its number.
  uint64_t Tick(size_t stream) {
    if (stream >= seen_.size()) seen_.resize(stream + 1);
    return ++seen_[stream];
  }
  void Join(const Clock& other) {
    if (other.seen_.size() > seen_.size()) seen_.resize(other.seen_.size());
    for (size_t i = 0; i < other.seen_.size(); ++i) {
      seen_[i] = std::max(seen_[i], other.seen_[i]);
    }
  }

 private:
  std::vector<uint64_t> seen_;
};

}  // namespace shard::testing::fake_cuda

#endif  // SHARD_TESTS_FAKE_CUDA_CLOCK_H_
