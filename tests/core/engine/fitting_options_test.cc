// SPDX-License-Identifier: Apache-2.0
//
// What explanations of plans that do not fit promise, for many plans in many
// rooms: each option that is named is read as a host reads it, and the plan
// with it fits; where none is named, none of all there are would do.

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/offload.h"
#include "core/base/strings.h"
#include "core/base/transport.h"
#include "core/device/device.h"
#include "core/engine/step/explain_misfit.h"
#include "core/flat/plan.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/misfits.h"

namespace shard::fitting_options_test {
namespace {

using misfits::Explain;
using misfits::Form;
using misfits::kOffload;
using misfits::kPlenty;
using misfits::OnGpus;
using misfits::PlanOf;
using misfits::RoomsOf;

// A plan and where its ranks are.
struct Setting {
  std::string what;
  Form form;
  RankPlacement placement;
};

// `plan`: the setting's.
MemoryNeed NeedOf(const Setting& setting, const Plan& plan) {
  return shard::NeedOf(plan, setting.placement, nullptr);
}

MemoryNeed NeedOf(const Setting& setting) {
  return NeedOf(setting, *PlanOf(setting.form));
}

bool Fits(const MemoryNeed& need, const Setting& setting, const Rooms& rooms) {
  const auto ranks = static_cast<uint64_t>(setting.placement.ranks_on_device);
  return need.host <= rooms.host &&
         (!rooms.device || need.device * ranks <= rooms.device->free);
}

std::vector<std::string> Split(const std::string& text,
                               const std::string& separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = text.find(separator); end != std::string::npos;
       end = text.find(separator, begin)) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

void Erase(std::string* text, const std::string& part) {
  const size_t at = text->find(part);
  if (at != std::string::npos) text->erase(at, part.size());
}

// Returns an optimizer's text with other states.
std::string WithStates(const std::string& optimizer, const std::string& type) {
  std::string plain = optimizer;
  for (const char* const own : {"?states=bf16", "?states=f32"}) {
    Erase(&plain, own);
  }
  return StrCat(plain, plain.find('?') == std::string::npos ? '?' : '&',
                "states=", type);
}

// Holds the offload to which a placement points.
using Held = std::optional<Offload>;

// Sets what one word of a remedy says: "stage 3", "8 ranks".
void Apply(const std::string& word, Setting* to, Held* held) {
  const auto rest_of = [&](std::string_view begin) {
    return word.substr(begin.size());
  };
  Form& form = to->form;
  if (word.starts_with("device \"")) {
    const std::string spec = rest_of("device \"");
    const auto choice = ReadDeviceSpec(spec.substr(0, spec.size() - 1));
    ASSERT_OK(choice);
    EXPECT_EQ(choice->transport, to->placement.transport) << word;
    EXPECT_EQ(choice->one_kernel, to->placement.one_kernel) << word;
    *held = choice->offload;
    to->placement.offload = held->has_value() ? &**held : nullptr;
  } else if (word.ends_with(" ranks")) {
    form.world_size = std::stoi(word);
    to->placement.shares_tensors = false;
  } else if (word.starts_with("stage ")) {
    form.stage = std::stoi(rest_of("stage "));
  } else if (word == "whole_grads 0") {
    form.whole_grads = false;
  } else if (word == "keep_after_forward 0") {
    form.keep_after_forward = false;
  } else if (word == "shard_group_size 0") {
    form.shard_group_size = 0;
  } else if (word == "wrap \"always\"") {
    form.wrap = "always";
  } else if (word == "deterministic 0") {
    form.deterministic = false;
  } else if (word == "f32_grads 0") {
    form.f32_grads = false;
  } else if (word == "masters none_stochastic") {
    form.masters = Masters::kNoneStochastic;
  } else if (word == "masters none_nearest") {
    form.masters = Masters::kNoneNearest;
  } else if (word == "\"states=bf16\" of the optimizer") {
    form.optimizer = WithStates(form.optimizer, "bf16");
  } else if (word == "\"states=q8\" of the optimizer") {
    form.optimizer = WithStates(form.optimizer, "q8");
  } else {
    ADD_FAILURE() << "'" << word << "' is no option";
  }
}

struct Remedies {
  std::vector<std::string> texts;
  bool none = false;  // The explanation says that nothing fits.
};

// Reads the explanation of a plan that does not fit.
Remedies ReadRemedies(const std::string& explanation) {
  const size_t end = explanation.find("; see shardctl plan");
  EXPECT_NE(end, std::string::npos) << explanation;
  constexpr std::string_view kFits = "; it fits with ";
  Remedies remedies;
  remedies.none = explanation.find("; no stage, ") != std::string::npos;
  const size_t begin = explanation.find(kFits);
  EXPECT_EQ(begin == std::string::npos, remedies.none) << explanation;
  if (begin == std::string::npos) return remedies;
  const size_t at = begin + kFits.size();
  remedies.texts = Split(explanation.substr(at, end - at), ", or with ");
  return remedies;
}

// Plans again with the options of one remedy, and expects that they fit and
// need what it says. Returns whether these are offload and stages alone.
bool ExpectFits(const std::string& remedy, const Setting& setting,
                const Rooms& rooms) {
  SCOPED_TRACE(remedy);
  const size_t memory = remedy.rfind(" (");
  EXPECT_NE(memory, std::string::npos);
  std::string options = remedy.substr(0, memory);
  for (const char* const remark :
       {", less precise", ", which rounds sums of gradients to bf16",
        ", which rounds sums of gradients to f16",
        ", which multiplies muon's matrices on the host",
        ", as many on each host and device as now",
        ", as many on each host as now"}) {
    Erase(&options, remark);
  }
  const size_t after_ranks = options.find(", and ");
  if (after_ranks != std::string::npos) options.erase(after_ranks, 1);
  Setting changed = setting;
  Held held;
  bool exact = true;
  for (const std::string& word : Split(options, " and ")) {
    Apply(word, &changed, &held);
    exact =
        exact && (word.starts_with("device ") || word.starts_with("stage "));
  }
  const MemoryNeed need = NeedOf(changed);
  EXPECT_TRUE(Fits(need, changed, rooms))
      << "it needs " << need.device << " and " << need.host;
  const std::string host = FormatBytes(need.host);
  if (setting.placement.has_device_memory) {
    const bool shared = setting.placement.ranks_on_device > 1;
    EXPECT_EQ(
        remedy.substr(memory),
        StrCat(" (", FormatBytes(need.device), " of the device",
               shared ? " for each rank" : "", " and ", host, " of the host)"));
  } else {
    EXPECT_EQ(remedy.substr(memory), StrCat(" (", host, ")"));
  }
  return exact;
}

// Returns a setting with each way to have the states.
std::vector<Setting> WithOffloads(const Setting& setting) {
  static constexpr Offload kOneThread = {.threads = 1};
  std::vector<Setting> all = {setting};
  if (!setting.placement.has_device_memory) return all;
  for (const Offload* const offload :
       {static_cast<const Offload*>(nullptr), &kOffload, &kOneThread}) {
    all.push_back(setting);
    all.back().placement.offload = offload;
  }
  return all;
}

void ExpectNoneFits(const Setting& setting, const Rooms& rooms,
                    const std::string& with) {
  const auto plan = PlanOf(setting.form);
  for (const Setting& each : WithOffloads(setting)) {
    EXPECT_FALSE(Fits(NeedOf(each, *plan), each, rooms))
        << with << (each.placement.offload == nullptr ? "" : " and offload");
  }
}

// Expects that no stage fits, with or without offload.
void ExpectNoStageFits(const Setting& setting, const Rooms& rooms,
                       const std::string& with = "") {
  for (int stage = 1; stage <= 3; ++stage) {
    Setting changed = setting;
    changed.form.stage = stage;
    ExpectNoneFits(changed, rooms, StrCat(with, "stage ", stage));
  }
}

// Returns the settings that give up one thing that the plan asks for.
std::vector<std::pair<std::string, Setting>> Concessions(
    const Setting& setting) {
  std::vector<std::pair<std::string, Setting>> all;
  const auto add = [&](const char* what) -> Form& {
    return all.emplace_back(what, setting).second.form;
  };
  const Form& own = setting.form;
  if (own.deterministic) add("deterministic 0, ").deterministic = false;
  if (own.f32_grads) add("f32_grads 0, ").f32_grads = false;
  if (own.optimizer.starts_with("adam")) {
    for (const char* const type : {"bf16", "q8"}) {
      add(type).optimizer = WithStates(own.optimizer, type);
    }
  }
  if (own.dtype != DType::kF32) {
    add("no masters, ").masters = Masters::kNoneNearest;
  }
  return all;
}

// Expects that nothing fits of what an explanation says it tried.
void ExpectNothingFits(const Setting& setting, const Rooms& rooms) {
  ExpectNoStageFits(setting, rooms);
  Setting sharded = setting;
  sharded.form.whole_grads = false;
  sharded.form.keep_after_forward = false;
  sharded.form.shard_group_size = 0;
  Setting wrapped = sharded;
  wrapped.form.wrap = "always";
  ExpectNoStageFits(sharded, rooms, "nothing whole, ");
  ExpectNoStageFits(wrapped, rooms, "always wrapped, ");
  for (const auto& [what, changed] : Concessions(setting)) {
    ExpectNoStageFits(changed, rooms, what);
  }
  for (int ranks = 2 * setting.form.world_size; ranks <= 4096; ranks *= 2) {
    for (Setting more : {sharded, wrapped}) {
      more.form.world_size = ranks;
      more.placement.shares_tensors = false;
      ExpectNoStageFits(more, rooms, StrCat(ranks, " ranks, "));
    }
  }
}

std::vector<Setting> Settings() {
  RankPlacement together = OnGpus(4);
  together.ranks_on_device = 4;
  RankPlacement offloaded = OnGpus(2);
  offloaded.device = "cuda:0?offload=states&offload_threads=4";
  offloaded.offload = &kOffload;
  RankPlacement by_nccl = OnGpus(4);
  by_nccl.transport = Transport::kNccl;
  RankPlacement one_kernel = by_nccl;
  one_kernel.one_kernel = true;
  const RankPlacement threads = {.shares_tensors = true, .ranks_on_host = 4};
  const RankPlacement processes = {.ranks_on_host = 4};
  return {
      {"a GPU", {}, OnGpus()},
      {"a GPU, bf16", {.dtype = DType::kBF16}, OnGpus()},
      {"two GPUs", {.world_size = 2}, OnGpus(2)},
      {"two GPUs, one unit", {.world_size = 2, .wrap = ""}, OnGpus(2)},
      {"two GPUs, stage 3, one unit",
       {.world_size = 2, .stage = 3, .wrap = ""},
       OnGpus(2)},
      {"two GPUs, stage 3", {.world_size = 2, .stage = 3}, OnGpus(2)},
      {"two GPUs, offloaded", {.world_size = 2}, offloaded},
      {"four GPUs, what is kept whole",
       {.world_size = 4,
        .stage = 3,
        .whole_grads = true,
        .keep_after_forward = true},
       OnGpus(4)},
      {"four GPUs, shard groups",
       {.world_size = 4, .stage = 3, .shard_group_size = 2},
       OnGpus(4)},
      {"four GPUs, bf16",
       {.world_size = 4,
        .stage = 2,
        .dtype = DType::kBF16,
        .f32_grads = true,
        .deterministic = true},
       OnGpus(4)},
      {"four GPUs, f16", {.world_size = 4, .dtype = DType::kF16}, OnGpus(4)},
      {"four GPUs, narrower states",
       {.world_size = 4, .optimizer = "adamw?states=bf16"},
       OnGpus(4)},
      {"four GPUs, muon",
       {.world_size = 4, .optimizer = "muon", .frozen = 1},
       OnGpus(4)},
      {"four GPUs, whole parameters",
       {.world_size = 4, .optimizer = "adafactor", .wrap = ""},
       OnGpus(4)},
      {"four GPUs, NCCL", {.world_size = 4}, by_nccl},
      {"four GPUs, one kernel", {.world_size = 4}, one_kernel},
      {"four ranks on a GPU", {.world_size = 4}, together},
      {"threads", {.world_size = 4}, threads},
      {"threads, bf16", {.world_size = 4, .dtype = DType::kBF16}, threads},
      {"processes", {.world_size = 4, .stage = 2}, processes},
      {"processes, stage 3", {.world_size = 4, .stage = 3}, processes},
  };
}

// Returns rooms in which the plan does not fit: parts of what it needs of the
// device, beside a host with much memory, enough for some ways of offload, and
// too little.
std::vector<Rooms> RoomsFor(const Setting& setting) {
  // A sanitizer, under which a plan takes fifty times as long, sees two.
  constexpr uint64_t kParts = kSanitized ? 3 : 12;
  const MemoryNeed need = NeedOf(setting);
  std::vector<Rooms> rooms;
  for (uint64_t part = 1; part < kParts; ++part) {
    if (!setting.placement.has_device_memory) {
      rooms.push_back({.host = need.host * part / kParts});
      continue;
    }
    const auto ranks = static_cast<uint64_t>(setting.placement.ranks_on_device);
    const uint64_t device = need.device * ranks * part / kParts;
    for (const uint64_t host :
         {kPlenty, need.host + need.device, need.host, need.host / 2}) {
      rooms.push_back(RoomsOf(device, host));
    }
  }
  // The device has room, and the host has not.
  if (setting.placement.has_device_memory && need.host > 0) {
    rooms.push_back(RoomsOf(need.device * 4, need.host - 1));
  }
  return rooms;
}

TEST(FittingOptionsTest, PlansFitWithTheOptionsThatAreNamed) {
  size_t named = 0;
  size_t without = 0;
  for (const Setting& setting : Settings()) {
    const auto plan = PlanOf(setting.form);
    for (const Rooms& rooms : RoomsFor(setting)) {
      const std::string explanation = Explain(*plan, setting.placement, rooms);
      SCOPED_TRACE(StrCat(setting.what, ": ", explanation));
      ASSERT_NE(explanation, "");
      const Remedies remedies = ReadRemedies(explanation);
      bool exact = false;
      for (const std::string& remedy : remedies.texts) {
        exact |= ExpectFits(remedy, setting, rooms);
        ++named;
      }
      if (!exact) ExpectNoStageFits(setting, rooms);
      if (remedies.none) {
        ExpectNothingFits(setting, rooms);
        ++without;
      }
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(named, kSanitized ? 20u : 100u);
  EXPECT_GT(without, kSanitized ? 0u : 10u);
}

}  // namespace
}  // namespace shard::fitting_options_test
