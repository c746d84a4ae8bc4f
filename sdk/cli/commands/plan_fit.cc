// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/plan_fit.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "sdk/cli/text.h"

namespace shardctl {

namespace {

// Larger worlds are not tried.
constexpr int32_t kMostRanks = 4096;

uint64_t Missing(uint64_t needed, uint64_t limit) {
  return limit > 0 && needed > limit ? needed - limit : 0;
}

shard_memory MemoryAt(const shard_plan* plan, const MemoryLimits& limits,
                      const std::string& device) {
  shard_plan_info info = SHARD_PLAN_INFO_INIT;
  Check(shard_plan_get_info(plan, &info));
  shard_placement placement = SHARD_PLACEMENT_INIT;
  placement.ranks_per_host = std::min(limits.ranks_per_host, info.world_size);
  placement.device = device.c_str();
  shard_memory memory = SHARD_MEMORY_INIT;
  Check(shard_plan_memory(plan, &placement, &memory));
  return memory;
}

Shortfall MissingOf(const shard_memory& memory, const MemoryLimits& limits) {
  return {.rank = Missing(memory.device_bytes, limits.memory),
          .host = Missing(memory.host_bytes, limits.host_memory)};
}

// Returns the spec of a device without the options of offload, and with all
// others.
std::string WithoutOffload(const std::string& device) {
  const size_t query = device.find('?');
  std::string kept = device.substr(0, query);
  char separator = '?';
  for (size_t end = query; end < device.size();) {
    const size_t begin = end + 1;
    end = std::min(device.find('&', begin), device.size());
    const std::string option = device.substr(begin, end - begin);
    if (option.starts_with("offload=") ||
        option.starts_with("offload_threads=")) {
      continue;
    }
    kept += separator + option;
    separator = '&';
  }
  return kept;
}

bool Offloads(const std::string& device) {
  return device.find("offload=states") != std::string::npos;
}

}  // namespace

bool IsGpuWithStates(const std::string& device) {
  return device.starts_with("cuda") && !Offloads(device);
}

namespace {

// Returns the spec of a device with the options of offload, and with all
// others.
std::string Offloaded(const std::string& device, std::string_view options) {
  std::string spec = WithoutOffload(device);
  spec += spec.find('?') == std::string::npos ? '?' : '&';
  return spec.append(options);
}

// The ways to offload. One thread needs the least memory of the host.
constexpr std::string_view kUsualOffload = "offload=states";
constexpr std::string_view kOneThread = "offload=states&offload_threads=1";

// Returns the option of shardctl, quoted where a shell needs it.
std::string DeviceOption(const std::string& device) {
  const char* const quote = device.find('?') == std::string::npos ? "" : "'";
  return "--device " + (quote + Shown(device)) + quote;
}

// Returns the optimizer's text with states of another type; "" where its states
// are as narrow.
std::string WithStates(const std::string& optimizer, const std::string& type) {
  if (optimizer.find("states=" + type) != std::string::npos ||
      optimizer.find("states=q8") != std::string::npos) {
    return "";
  }
  std::string text = optimizer;
  for (const char* const other : {"states=f32", "states=bf16"}) {
    const size_t at = text.find(other);
    if (at == std::string::npos) continue;
    return text.replace(at, std::string(other).size(), "states=" + type);
  }
  return text + (text.find('?') == std::string::npos ? "?" : "&") +
         "states=" + type;
}

class OptionSearch {
 public:
  OptionSearch(const PlanVariant& nearest, const MemoryLimits& limits,
               const std::function<Plan(const PlanVariant&)>& make)
      : nearest_(nearest), limits_(limits), make_(make) {}

  std::vector<std::string> Find() {
    TryOtherOffload();
    const std::vector<PlanVariant> shardings = Shardings(nearest_);
    if (TryFirst(shardings) || !found_.empty()) return std::move(found_);
    for (const PlanVariant& concession : Concessions()) {
      std::vector<PlanVariant> variants = Shardings(concession);
      variants.insert(variants.begin(), concession);
      if (TryFirst(variants)) break;
    }
    TryMoreRanks({nearest_});
    if (found_.empty()) TryMoreRanks(GradConcessions());
    return std::move(found_);
  }

 private:
  // The host may be too small for what is offloaded, or for that of so many
  // threads, and the GPU not.
  void TryOtherOffload() {
    if (!Offloads(limits_.device)) return;
    const Plan plan = make_(nearest_);
    for (const std::string& device : {WithoutOffload(limits_.device),
                                      Offloaded(limits_.device, kOneThread)}) {
      const Shortfall missing =
          MissingOf(MemoryAt(plan.get(), limits_, DeviceSpec(device)), limits_);
      if (!missing.none()) continue;
      found_.push_back(DeviceOption(device));
      return;
    }
  }

  // Returns variants that give up what the plan asks of gradients. These are
  // whole for a unit, however many ranks there are.
  std::vector<PlanVariant> GradConcessions() const {
    std::vector<PlanVariant> variants;
    if (nearest_.deterministic) {
      variants.emplace_back(nearest_).deterministic = false;
    }
    if (nearest_.f32_grads) variants.emplace_back(nearest_).f32_grads = false;
    if (variants.size() == 2) {
      PlanVariant both = variants[0];
      both.f32_grads = false;
      variants.push_back(both);
    }
    return variants;
  }

  // Returns all variants that give up what the plan asks for, the least first.
  std::vector<PlanVariant> Concessions() const {
    std::vector<PlanVariant> variants = GradConcessions();
    for (const char* const type : {"bf16", "q8"}) {
      const std::string narrower = WithStates(nearest_.optimizer, type);
      if (!narrower.empty()) {
        variants.emplace_back(nearest_).optimizer = narrower;
      }
    }
    if (nearest_.masters == "f32") {
      // f16 has no stochastic rounding, and then no plan is made.
      for (const char* const masters : {"stochastic", "none"}) {
        variants.emplace_back(nearest_).masters = masters;
      }
    }
    return variants;
  }

  // Returns variants that shard more, least first.
  static std::vector<PlanVariant> Shardings(const PlanVariant& from) {
    std::vector<PlanVariant> variants;
    if (from.ranks == 1) return variants;
    PlanVariant variant = from;
    for (variant.stage = std::max(2, from.stage + 1); variant.stage <= 3;
         ++variant.stage) {
      variants.push_back(variant);
    }
    variant.stage = 3;
    if (!from.whole.empty()) {
      variant.whole.clear();
      variants.push_back(variant);
    }
    if (from.wrap.empty()) {
      variant.wrap = "always";
      variants.push_back(variant);
    }
    return variants;
  }

  bool TryFirst(const std::vector<PlanVariant>& variants) {
    return std::any_of(variants.begin(), variants.end(),
                       [&](const auto& variant) { return Try(variant); });
  }

  // Appends the options of a variant that fits. A variant that cannot be
  // planned, as of an optimizer whose states have one type, does not fit.
  bool Try(const PlanVariant& variant) {
    PlanFit fit;
    try {
      const Plan plan = make_(variant);
      fit = FitOf(plan.get(), limits_);
    } catch (const Failure&) {
      return false;
    }
    if (!fit.fits() && !fit.fits_with_offload()) return false;
    std::string text;
    const auto add = [&](const std::string& option) {
      text += (text.empty() ? "" : " ") + option;
    };
    if (variant.ranks != nearest_.ranks) {
      add("--ranks " + std::to_string(variant.ranks));
    }
    if (variant.stage != nearest_.stage) {
      add("--stages " + std::to_string(variant.stage));
    }
    if (variant.wrap != nearest_.wrap) add("--wrap " + variant.wrap);
    if (variant.optimizer != nearest_.optimizer) {
      add("--optimizer '" + Shown(variant.optimizer) + "'");
    }
    if (variant.masters != nearest_.masters) {
      add("--masters " + variant.masters);
    }
    if (!fit.fits()) {
      add(DeviceOption(Offloaded(limits_.device, fit.offload)));
    }
    std::string without;
    if (variant.whole != nearest_.whole) without += " " + nearest_.whole;
    if (variant.deterministic != nearest_.deterministic) {
      without += " --deterministic";
    }
    if (variant.f32_grads != nearest_.f32_grads) without += " --f32-grads";
    if (!without.empty()) add("without" + without);
    found_.push_back(std::move(text));
    return true;
  }

  void TryMoreRanks(const std::vector<PlanVariant>& variants) {
    if (TryMoreRanks(variants, "") || !nearest_.wrap.empty()) return;
    TryMoreRanks(variants, "always");
  }

  // Tries the smallest world first, then the lowest stage that fits in it.
  // `wrap` "": that of the plan.
  bool TryMoreRanks(const std::vector<PlanVariant>& variants,
                    const std::string& wrap) {
    for (int32_t ranks = nearest_.ranks; ranks <= kMostRanks / 2;) {
      ranks *= 2;
      for (PlanVariant lower : variants) {
        lower.ranks = ranks;
        PlanVariant most = lower;
        most.stage = 3;
        most.whole.clear();
        if (!wrap.empty()) most.wrap = wrap;
        if (!Try(most)) continue;
        for (; wrap.empty() && lower.stage < 3; ++lower.stage) {
          if (!Try(lower)) continue;
          found_.erase(found_.end() - 2);
          break;
        }
        return true;
      }
    }
    return false;
  }

  const PlanVariant& nearest_;
  const MemoryLimits& limits_;
  const std::function<Plan(const PlanVariant&)>& make_;
  std::vector<std::string> found_;
};

}  // namespace

std::string ShortfallText(const Shortfall& missing) {
  std::string text;
  if (missing.rank > 0) text = BytesText(missing.rank);
  if (missing.host > 0) {
    text += (text.empty() ? "" : " and ") + BytesText(missing.host) +
            " of the host";
  }
  return text;
}

std::string PlanFit::Text() const {
  if (fits()) return "yes";
  if (fits_with_offload()) {
    return std::string("with offload") +
           (offload == kOneThread ? " by one thread, " : ", ") +
           BytesText(offload_host_bytes) + " of the host";
  }
  std::string text = "no, " + ShortfallText(missing) + " missing";
  if (tries_offload) {
    text += "; with offload " + ShortfallText(offload_missing);
  }
  return text;
}

std::string DeviceSpec(const std::string& device) {
  constexpr std::string_view kCuda = "cuda";
  if (!device.starts_with(kCuda)) return device;
  const std::string rest = device.substr(kCuda.size());
  return rest.empty() || rest[0] == '?' ? "cuda:0" + rest : device;
}

uint64_t TotalBytes(const shard_memory& memory) {
  return memory.param_bytes + memory.grad_bytes + memory.state_bytes +
         memory.workspace_bytes + memory.transient_bytes +
         memory.model_buffer_bytes;
}

PlanFit FitOf(const shard_plan* plan, const MemoryLimits& limits) {
  PlanFit fit;
  if (limits.device.empty()) {
    shard_placement placement = SHARD_PLACEMENT_INIT;
    placement.separate_memory = limits.shared ? 0 : 1;
    shard_memory memory = SHARD_MEMORY_INIT;
    Check(shard_plan_memory(plan, &placement, &memory));
    fit.missing.rank = Missing(TotalBytes(memory), limits.memory);
    return fit;
  }
  const std::string device = DeviceSpec(limits.device);
  const shard_memory memory = MemoryAt(plan, limits, device);
  fit.host_bytes = memory.host_bytes;
  fit.missing = MissingOf(memory, limits);
  fit.tries_offload = limits.any() && IsGpuWithStates(device);
  if (!fit.tries_offload) return fit;
  for (const std::string_view offload : {kUsualOffload, kOneThread}) {
    const shard_memory offloaded =
        MemoryAt(plan, limits, Offloaded(device, offload));
    fit.offload = offload;
    fit.offload_device_bytes = offloaded.device_bytes;
    fit.offload_host_bytes = offloaded.host_bytes;
    fit.offload_missing = MissingOf(offloaded, limits);
    if (fit.offload_missing.none()) break;
  }
  return fit;
}

std::vector<std::string> FindFittingOptions(
    const PlanVariant& nearest, const MemoryLimits& limits,
    const std::function<Plan(const PlanVariant&)>& make) {
  return OptionSearch(nearest, limits, make).Find();
}

}  // namespace shardctl
