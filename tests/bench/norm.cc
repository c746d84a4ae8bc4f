// SPDX-License-Identifier: Apache-2.0
//
// The 2-norm of 64 M fp32 gradients on one and on two threads, beside a plain
// sum of squares in double of the same bytes. All are interleaved; times are
// medians over the rounds. "normal" values are normally distributed; "wide"
// ones are spread over another 2^30 in magnitude everywhere, which takes two
// doubles more.

#include "kernels/cpu/norm.h"

#include <barrier>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/bench.h"
#include "tests/bench/roof.h"

namespace shard::bench {
namespace {

constexpr size_t kElements = size_t{64} << 20;
constexpr int kRounds = 9;

// Returns the milliseconds until `body` has run on all threads' parts: [begin,
// begin+count).
double Parallel(size_t threads,
                const std::function<void(size_t, size_t)>& body) {
  std::barrier start(static_cast<std::ptrdiff_t>(threads) + 1);
  std::vector<std::thread> running;
  const size_t part = kElements / threads;
  for (size_t t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      start.arrive_and_wait();
      body(t * part, part);
    });
  }
  start.arrive_and_wait();
  const double begin = Seconds();
  for (std::thread& thread : running) thread.join();
  return (Seconds() - begin) * 1e3;
}

int Main() {
  std::vector<float> values(kElements);
  std::mt19937 generator(1);
  volatile double result = 0;
  for (const bool wide : {false, true}) {
    // A million different values suffice.
    constexpr size_t kDistinct = size_t{1} << 20;
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < kElements; ++i) {
      if (i >= kDistinct) {
        values[i] = values[i - kDistinct];
        continue;
      }
      values[i] = normal(generator);
      if (wide) values[i] = std::ldexp(values[i], -static_cast<int>(i % 31));
    }
    for (const size_t threads : {size_t{1}, size_t{2}}) {
      std::vector<double> times[3];
      for (int round = -1; round < kRounds; ++round) {
        const double plain = Parallel(threads, [&](size_t begin, size_t count) {
          result = SquaresRoof(values.data() + begin, count);
        });
        const double two = Parallel(threads, [&](size_t begin, size_t count) {
          NormSum sum = {};
          AddToNorm(NormType::kTwo, 2, 0, values.data() + begin, count, &sum);
          result = FinishNorm(NormType::kTwo, 2, 0, sum);
        });
        const double one = Parallel(threads, [&](size_t begin, size_t count) {
          NormSum sum = {};
          AddToNorm(NormType::kOne, 1, 0, values.data() + begin, count, &sum);
          result = FinishNorm(NormType::kOne, 1, 0, sum);
        });
        if (round < 0) continue;
        times[0].push_back(plain);
        times[1].push_back(two);
        times[2].push_back(one);
      }
      const std::string prefix = std::string(wide ? "wide" : "normal") +
                                 ".threads" + std::to_string(threads) + ".";
      constexpr double kBytes = 4.0 * static_cast<double>(kElements);
      const double plain = Median(times[0]);
      Bench("norm", (prefix + "plain_squares.bandwidth").c_str(),
            kBytes / plain / 1e6, "GB/s");
      Bench("norm", (prefix + "norm_two.ratio_to_plain").c_str(),
            Median(times[1]) / plain, "x");
      Bench("norm", (prefix + "norm_one.ratio_to_plain").c_str(),
            Median(times[2]) / plain, "x");
    }
  }
  return 0;
}

}  // namespace
}  // namespace shard::bench

int main() { return shard::bench::Main(); }
