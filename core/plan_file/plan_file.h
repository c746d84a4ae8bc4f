// SPDX-License-Identifier: Apache-2.0
//
// A plan as bytes: a header (core/checkpoint/manifest/file_header.h) and a
// FlatBuffer (plan.fbs).
//
// The bytes hold the model, the options, the modules that are units, and the
// fingerprint, but no layout. A plan is a pure function of the first three, so
// DecodePlan makes the plan anew, by Plan::Create, and compares the
// fingerprint. A layout in the bytes would be a second way to make a plan: the
// memory safety of an engine would depend on further checks that slots lie
// inside their buffers and owners are right. It would be no faster, either:
// planning takes less time than reading the names.
//
// So a library whose planner decides differently cannot read the bytes, and
// returns an error. Class names and the order in which names were added are no
// part of the fingerprint, but are in the bytes: a decoded plan gives the same
// answer to every question, ids included.
//
// Pure functions: any thread.

#ifndef SHARD_CORE_PLAN_FILE_PLAN_FILE_H_
#define SHARD_CORE_PLAN_FILE_PLAN_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/checkpoint/manifest/file_header.h"
#include "core/flat/plan.h"

namespace shard {

inline constexpr uint32_t kPlanFileVersion = 1;
inline constexpr uint64_t kMaxPlanFileBytes = uint64_t{1} << 30;

inline constexpr FileFormat kPlanFormat = {
    "plan", "SHRDPLAN", kPlanFileVersion,
    [](uint32_t) { return kMaxPlanFileBytes; }};

// Returns the limit on the total length of the names of all modules and
// parameters, with their paths (PlanPathBytes), and of the classes of all
// modules. In a deep tree the paths grow with the square of the bytes.
constexpr uint64_t MaxPlanTextBytes(uint64_t file_bytes) {
  return (uint64_t{16} << 20) + 16 * file_bytes;
}
// Returns the path length of a name of `name_bytes` in `module`. REQUIRES: a
// valid id.
inline uint64_t PlanPathBytes(const Model& model, ModuleId module,
                              size_t name_bytes) {
  return model.modules()[static_cast<size_t>(module)].fqn_bytes + 1 +
         name_bytes;
}

// Encodes a plan. Equal plans with equal ids have equal bytes. Errors:
// kResourceExhausted beyond kMaxPlanFileBytes or MaxPlanTextBytes;
// kInvalidArgument for a param group without optimizer and for an
// alignment_bytes other than the default, which only tests plan with.
StatusOr<std::vector<std::byte>> EncodePlan(const Plan& plan);

// Returns a plan that equals the encoded one. Errors: kCorrupt names the
// defect; kUnimplemented for a newer version of the format, for another version
// of the layout, and for optimizers and enum values that this library does not
// know. For any bytes, decoding takes at most 64 times their
// number, 96 bytes per rank of the plan's world size (kMaxWorldSize at most)
// and 32 MiB of memory, and time in proportion to their number and the ranks.
StatusOr<std::shared_ptr<const Plan>> DecodePlan(
    std::span<const std::byte> bytes);

}  // namespace shard

#endif  // SHARD_CORE_PLAN_FILE_PLAN_FILE_H_
