// SPDX-License-Identifier: Apache-2.0
//
// Dice: the choices of a random test, the same ones for the same seed.

#ifndef SHARD_TESTS_CORE_BASE_DICE_H_
#define SHARD_TESTS_CORE_BASE_DICE_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace shard::testing {

class Dice {
 public:
  explicit Dice(uint64_t seed) : bits_(seed) {}

  // Returns a number from 0 to sides - 1.
  int Roll(int sides) {
    return static_cast<int>(bits_() % static_cast<uint64_t>(sides));
  }
  bool Chance(int percent) { return Roll(100) < percent; }
  template <typename T>
  T Pick(const std::vector<T>& from) {
    return from[static_cast<size_t>(Roll(static_cast<int>(from.size())))];
  }
  template <typename T>
  void Shuffle(std::vector<T>* items) {
    for (size_t i = items->size(); i > 1; --i) {
      std::swap((*items)[i - 1],
                (*items)[static_cast<size_t>(Roll(static_cast<int>(i)))]);
    }
  }

 private:
  std::mt19937_64 bits_;
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_BASE_DICE_H_
