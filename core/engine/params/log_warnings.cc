// SPDX-License-Identifier: Apache-2.0

#include "core/engine/params/log_warnings.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string_view>

namespace shard {

std::vector<std::string> NewWarnings(const Plan& plan, const Plan* before) {
  std::vector<std::string> warnings = plan.Warnings();
  if (before == nullptr) return warnings;
  const std::vector<std::string> known = before->Warnings();
  const std::set<std::string_view> set(known.begin(), known.end());
  std::erase_if(warnings, [&](const std::string& warning) {
    return set.contains(warning);
  });
  return warnings;
}

void LogWarnings(const std::vector<std::string>& warnings, Observer* observer) {
  constexpr size_t kMost = 8;
  for (size_t w = 0; w < std::min(kMost, warnings.size()); ++w) {
    observer->Log(EventId::kPlanWarning, warnings[w]);
  }
  if (warnings.size() > kMost) {
    observer->Log(EventId::kPlanWarning, "the plan has ",
                  warnings.size() - kMost,
                  " more warnings; shard_plan_warnings lists them");
  }
}

}  // namespace shard
