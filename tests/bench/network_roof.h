// SPDX-License-Identifier: Apache-2.0
//
// What a step between two hosts is compared with: the same step written with
// Gloo's collectives, and the same bytes over a plain TCP connection.

#ifndef SHARD_TESTS_BENCH_NETWORK_ROOF_H_
#define SHARD_TESTS_BENCH_NETWORK_ROOF_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/base/fd.h"

namespace gloo::rendezvous {
class Context;
}  // namespace gloo::rendezvous

namespace shard::bench {

// One of two ranks that train as a loop without libshard does: clone the
// gradients, all-reduce the clone, update half of the parameters with the
// simplest loop, and broadcast both halves.
class GlooStep {
 public:
  // `folder`: empty, and shared by both ranks. Ends the program on an error.
  GlooStep(int rank, const std::string& address, const std::string& folder,
           size_t numel);
  ~GlooStep();
  void Step();

 private:
  const int rank_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::vector<float> grads_, clone_, params_, m_, v_;
  volatile float zero_ = 0;
};

// A TCP connection of two ranks, which sends and receives at the same time.
class RawTcp {
 public:
  // Rank 0 listens on `address`, which is its own.
  RawTcp(int rank, const std::string& address);
  // Sends so many bytes, and receives as many.
  void Exchange(size_t bytes);

 private:
  Fd socket_;
};

}  // namespace shard::bench

#endif  // SHARD_TESTS_BENCH_NETWORK_ROOF_H_
