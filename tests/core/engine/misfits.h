// SPDX-License-Identifier: Apache-2.0
//
// Explanations of a plan of five units that does not fit, for tests that
// compare them with numbers worked out by hand. A figure of memory is checked
// from both sides: the option is named where there is room for it to the byte,
// and not where a byte is missing.

#ifndef SHARD_TESTS_CORE_ENGINE_MISFITS_H_
#define SHARD_TESTS_CORE_ENGINE_MISFITS_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/dtype.h"
#include "core/base/element_type.h"
#include "core/base/offload.h"
#include "core/engine/step/explain_misfit.h"
#include "core/flat/plan.h"
#include "core/model/model.h"
#include "core/model/wrap.h"
#include "core/optim/groups.h"
#include "tests/core/base/expect_status.h"

namespace shard::misfits {

inline constexpr uint64_t kMiB = 1 << 20;
inline constexpr uint64_t kPlenty = uint64_t{1} << 50;
inline constexpr Offload kOffload;

struct Form {
  int world_size = 1;
  int stage = 1;
  std::string optimizer = "adamw";
  std::string wrap = "class?names=Block";
  bool whole_grads = false;
  bool keep_after_forward = false;
  int shard_group_size = 0;
  int frozen = 0;  // The first so many blocks.
  int64_t host_tensor = 0;
  DType dtype = DType::kF32;
  bool f32_grads = false;
  bool deterministic = false;
  Masters masters = Masters::kF32;
};

// Returns a plan of 5 x 2^20 elements in 5 units; in f32, 20 MiB of parameters,
// as much of gradients, and 40 MiB of AdamW's states over all ranks.
inline std::shared_ptr<const Plan> PlanOf(const Form& form) {
  auto model = std::make_shared<Model>("Net");
  EXPECT_OK(model->AddParam(kRootModule, "embed", form.dtype, {1024, 1024}));
  for (int b = 0; b < 4; ++b) {
    const ModuleId block =
        *model->AddModule(kRootModule, std::string(1, char('a' + b)), "Block");
    const auto weight = model->AddParam(block, "w", form.dtype, {1024, 1024});
    EXPECT_OK(weight);
    if (b < form.frozen) EXPECT_OK(model->SetTrainable(*weight, false));
  }
  if (form.host_tensor > 0) {
    EXPECT_OK(model->AddHostTensor(kRootModule, "h", ElementType::kU8,
                                   {form.host_tensor}, false));
  }
  PlanOptions options;
  options.world_size = form.world_size;
  options.stage = form.stage;
  options.prefetch = 0;
  options.whole_grads = form.whole_grads;
  options.keep_after_forward = form.keep_after_forward;
  options.shard_group_size = form.shard_group_size;
  options.f32_grads = form.f32_grads;
  options.deterministic = form.deterministic;
  options.masters = form.masters;
  options.wrap = *WrapPolicy::Parse(form.wrap);
  options.groups = *PlanGroups(*model, form.optimizer);
  auto plan = Plan::Create(std::move(model), std::move(options));
  EXPECT_OK(plan);
  return *plan;
}

// Returns where ranks on GPUs are, each on its own.
inline RankPlacement OnGpus(int ranks = 1) {
  return {.shares_tensors = ranks == 1,
          .device = "cuda:0",
          .has_device_memory = true,
          .has_staging = true,
          .ranks_on_host = ranks};
}

inline Rooms RoomsOf(uint64_t device, uint64_t host = kPlenty) {
  return {.device = DeviceRoom{.free = device, .total = 100 * kMiB},
          .host = host};
}

// Returns an explanation for which there is time.
inline std::string Explain(const Plan& plan, const RankPlacement& placement,
                           const Rooms& rooms,
                           const ReplacedPlan* before = nullptr) {
  return ExplainMisfit(plan, placement, rooms, Deadline::After(3600), before);
}

// The host's memory of one rank on a GPU: staging memory of collectives, and
// with offload that of windows: 4 threads have 2 windows each of 2^18 gradients
// and parameters.
inline constexpr uint64_t kStaging = 4 * kMiB;
inline constexpr uint64_t kWindows = 4 * 2 * 2 * kMiB;

// Returns the part of an explanation that names options.
inline std::string Remedy(const Form& form, const RankPlacement& placement,
                          const Rooms& rooms) {
  const std::string text = Explain(*PlanOf(form), placement, rooms);
  const size_t begin = text.find("missing; ");
  const size_t end = text.find("; see shardctl plan");
  EXPECT_NE(begin, std::string::npos) << text;
  EXPECT_NE(end, std::string::npos) << text;
  return text.substr(begin + 9, end - begin - 9);
}

}  // namespace shard::misfits

#endif  // SHARD_TESTS_CORE_ENGINE_MISFITS_H_
