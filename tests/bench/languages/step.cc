// SPDX-License-Identifier: Apache-2.0
//
// The training of tests/bench/ffi.cc in C++.

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "shard/shard.hpp"

namespace {

constexpr int kSteps = 4;

using Units = std::vector<std::vector<shard::ParamId>>;

shard::Plan ReadPlan(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  return shard::Plan::decode(std::as_bytes(std::span(bytes)));
}

// Trains for a step, and returns the loss.
double Train(shard::Engine& engine, const Units& units) {
  double loss = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    auto unit = engine.unit_acquire(static_cast<shard::UnitId>(u),
                                    shard::Pass::forward);
    for (const shard::ParamId param : units[u]) {
      const double p = unit.param<float>(param)[0];
      loss += 0.5 * p * p;
    }
    unit.release();
  }
  for (std::size_t u = units.size(); u-- > 0;) {
    auto unit = engine.unit_acquire(static_cast<shard::UnitId>(u),
                                    shard::Pass::backward);
    for (const shard::ParamId param : units[u]) {
      const auto values = unit.param<float>(param);
      unit.grad<float>(param)[0] = values[0];
    }
    unit.mark_grads_ready();
    unit.release();
  }
  engine.step();
  return loss;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) return 2;
  const shard::Plan plan = ReadPlan(argv[1]);
  auto comm = shard::Comm::open("local:");
  auto engine = shard::Engine::create(plan, comm);
  Units units(static_cast<std::size_t>(plan.info().num_units));
  for (const shard::ParamId param : plan.params()) {
    const auto id = static_cast<std::int32_t>(param);
    const std::vector<float> values(
        static_cast<std::size_t>(plan.param_info(param).numel),
        1 + static_cast<float>(id) / 256);
    engine.set_param(param, std::span<const float>(values));
    units[static_cast<std::size_t>(plan.unit_of(param))].push_back(param);
  }
  engine.broadcast_params();

  double loss = 0;
  std::puts("peer: ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    double answer = loss;
    if (line == "train") {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kSteps; ++i) loss = Train(engine, units);
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - start;
      answer = took.count();
    }
    std::printf("peer: %.17g\n", answer);
    std::fflush(stdout);
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "step_cc: %s\n", error.what());
  return 1;
}
