// SPDX-License-Identifier: Apache-2.0
//
// Files that are made to harm. With any contents, DecodePlan takes no more
// memory than it promises, and allocates no more in all than in proportion to
// the size of the file. All files are a few MiB of something that costs memory
// or time. Time is not measured, because it depends on the machine: work that
// grows with the square of these numbers shows where it allocates as often, or
// where the square is so large that the test exceeds its limit.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/optim/optimizer.h"
#include "core/plan_file/plan_file.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/checkpoint/allocation_meter.h"
#include "tests/core/plan_file/raw_plan.h"

namespace shard {
namespace {

constexpr double kMiB = 1 << 20;

// Decodes `raw` within the limits of memory, and expects an error whose message
// has `parts`. The fingerprint of RawPlan is wrong, so a plan that could be
// made is refused in the end.
void ExpectWithinLimits(const RawPlan& raw,
                        std::initializer_list<std::string_view> parts) {
  const std::vector<std::byte> file = raw.Build();
  const int64_t before = AllocatedBytes();
  ResetAllocatedPeak();
  const int64_t begin = AllocatedInAll();
  const auto decoded = DecodePlan(file);
  const double work = static_cast<double>(AllocatedInAll() - begin) / kMiB;
  const double memory = static_cast<double>(AllocatedPeak() - before) / kMiB;
  const double mib = static_cast<double>(file.size()) / kMiB;
  std::printf("%s: %.1f MiB, %.1f MiB of memory (%.1f times), %.1f in all\n",
              ::testing::UnitTest::GetInstance()->current_test_info()->name(),
              mib, memory, memory / mib, work);
  ExpectError(decoded, StatusCode::kCorrupt, parts);
  const double most = 64 * mib + 96.0 * raw.world_size / kMiB + 32;
  EXPECT_LE(memory, most);
  EXPECT_LE(work, 4 * most);
}

constexpr std::string_view kMade = "its fingerprint";

// Returns short names that differ.
std::string Name(size_t i) {
  std::string name;
  do {
    name.push_back(static_cast<char>('0' + i % 75));
    i /= 75;
  } while (i > 0);
  // No character is a '.', which comes before '0'.
  return name;
}

TEST(HostilePlan, ModulesWithNothingInThem) {
  RawPlan raw;
  raw.AddParam("p");
  for (size_t i = 0; i < 200000; ++i) raw.modules.push_back({Name(i)});
  for (auto& module : raw.modules) module.unit = true;
  ExpectWithinLimits(raw, {"already has a module"});  // "p".
  raw.names[0].name = "parameter";
  ExpectWithinLimits(raw, {kMade});
}

TEST(HostilePlan, ModulesInALine) {
  RawPlan raw;
  raw.AddParam("parameter");
  for (uint32_t i = 0; i < 5000; ++i) {
    raw.modules.push_back({"m", i, 0, false, true});
  }
  ExpectWithinLimits(raw, {"too long with their paths"});
  raw.modules.resize(3000);
  ExpectWithinLimits(raw, {kMade});
}

// A deep path is repeated by very many modules at its end.
TEST(HostilePlan, ALongPathManyTimes) {
  RawPlan raw;
  raw.AddParam("parameter");
  raw.modules.push_back({std::string(60000, 'a')});
  for (size_t i = 0; i < 100000; ++i) raw.modules.push_back({Name(i), 1});
  for (auto& module : raw.modules) module.unit = true;
  ExpectWithinLimits(raw, {"too long with their paths"});
}

TEST(HostilePlan, ALongClassManyTimes) {
  RawPlan raw;
  raw.AddParam("parameter");
  raw.classes = {std::string(60000, 'a')};
  for (size_t i = 0; i < 100000; ++i) raw.modules.push_back({Name(i)});
  ExpectWithinLimits(raw, {"too long with their paths"});
  // As many modules as are allowed. The narrowed copy of the model has the
  // class once more for each.
  raw.modules.resize(250);
  raw.param_dtype = 2;
  ExpectWithinLimits(raw, {kMade});
}

// Each parameter has a buffer of its own, with state layouts of its own.
TEST(HostilePlan, ParametersInBuffersOfTheirOwn) {
  for (const char* optimizer : {"", "lamb", "adafactor"}) {
    RawPlan raw;
    for (size_t i = 0; i < 20000; ++i) {
      raw.AddParam("p", static_cast<uint32_t>(i + 1));
      raw.modules.push_back({Name(i), 0, 0, false, true});
      raw.params.back().shape = {1, 1};
    }
    raw.buffer_bytes = 1;
    if (*optimizer != '\0') {
      raw.optimizers = {Optimizer::Parse(optimizer)->ToString()};
    }
    for (const int world_size : {2, 1 << 20}) {
      raw.world_size = world_size;
      for (const int partition : {1, 2, 3}) {
        raw.partition = partition;
        ExpectWithinLimits(raw, {kMade});
      }
    }
  }
}

// No parameter takes fewer bytes in the file, and the model exists twice.
TEST(HostilePlan, ScalarsThatAreNarrowed) {
  RawPlan raw;
  for (size_t i = 0; i < 100000; ++i) {
    raw.AddParam(Name(i));
    raw.params.back().shape = {};
  }
  raw.param_dtype = 2;
  raw.stage = 3;
  raw.buffer_bytes = 1;
  ExpectWithinLimits(raw, {kMade});
}

TEST(HostilePlan, HostTensorsWithNothingInThem) {
  RawPlan raw;
  raw.AddParam("parameter");
  raw.modules.push_back({"_orig_mod"});
  for (size_t i = 0; i < 100000; ++i) raw.host_tensors.push_back({Name(i), 1});
  raw.param_dtype = 2;
  ExpectWithinLimits(raw, {kMade});
  raw.modules[1].name = std::string(60000, 'a');
  ExpectWithinLimits(raw, {"too long with their paths"});
}

TEST(HostilePlan, GroupsOfOne) {
  RawPlan raw;
  raw.AddParam("first");
  for (uint32_t i = 0; i < 30000; ++i) {
    raw.AddParam(Name(i));
    raw.params.back().group = i + 1;
    raw.optimizers.push_back(RawPlan::kSgd);
  }
  ExpectWithinLimits(raw, {kMade});
}

TEST(HostilePlan, ClassesTimesModules) {
  RawPlan raw;
  raw.AddParam("parameter");
  raw.param_dtype = 2;
  for (uint32_t i = 0; i < 150000; ++i) {
    raw.classes.push_back(StrCat("class", i));
    raw.f32_classes.push_back(raw.classes.back());
    raw.modules.push_back({Name(i), 0, i + 1});
  }
  ExpectWithinLimits(raw, {kMade});
}

// All keys are compared with each other.
TEST(HostilePlan, NamesWithKeys) {
  RawPlan raw;
  raw.modules.push_back({"state"});
  raw.modules.push_back({std::string(200, 'a'), 1});
  for (size_t i = 0; i < 60000; ++i) raw.AddParam(Name(i), 2);
  ExpectWithinLimits(raw, {kMade});
}

TEST(HostilePlan, NamesOfOneParameter) {
  RawPlan raw;
  raw.AddParam("parameter");
  for (size_t i = 0; i < 200000; ++i) raw.names.push_back({Name(i), 0, 0});
  ExpectWithinLimits(raw, {kMade});
}

}  // namespace
}  // namespace shard
