// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/option_search.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/dtype.h"
#include "core/base/element_type.h"
#include "core/base/offload.h"
#include "core/base/strings.h"
#include "core/engine/transfer/collectives_memory.h"
#include "core/flat/report.h"
#include "core/model/model.h"
#include "core/model/wrap.h"
#include "core/optim/groups.h"
#include "core/optim/optimizer.h"

namespace shard {

namespace {

// The items of all plans that one explanation makes: a second of work or two,
// so that ranks which wait for the error have it before their deadline.
constexpr size_t kMostItems = size_t{1} << 22;

// Returns a measure of the work of making a plan again.
size_t ItemsOf(const Plan& plan) {
  // An optimizer's text is parsed and written.
  constexpr size_t kPerGroup = 16;
  const Model& model = plan.model();
  return model.params().size() + model.modules().size() +
         model.references().size() + model.host_tensors().size() +
         kPerGroup * model.groups().size();
}

// Returns the spec of the device with `offload`, or without one: null. Other
// options are kept.
std::string DeviceWith(const Offload* offload, const RankPlacement& placement) {
  std::string spec = placement.PlainDevice();
  const char* separator = "?";
  if (placement.transport != Transport::kStaged) {
    StrAppend(&spec, separator,
              "collectives=", TransportName(placement.transport));
    separator = "&";
  }
  if (placement.one_kernel) {
    StrAppend(&spec, separator, "step=one_kernel");
    separator = "&";
  }
  if (offload != nullptr) {
    StrAppend(&spec, separator, "offload=states");
    if (offload->threads != Offload().threads) {
      StrAppend(&spec, "&offload_threads=", offload->threads);
    }
  }
  return spec;
}

// Returns the dtype of 16 bits to which sums of gradients over ranks are
// rounded; nothing where they are not (docs/numerics.md).
std::optional<DType> RoundedSums(const Plan& plan,
                                 const RankPlacement& placement) {
  if (plan.options().world_size == 1) return std::nullopt;
  if (placement.shares_tensors && !plan.shards_grads()) return std::nullopt;
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    if (buffer.trainable && IsHalf(buffer.sum_dtype)) return buffer.sum_dtype;
  }
  return std::nullopt;
}

// Returns a pointer that owns nothing.
template <typename T>
std::shared_ptr<const T> Borrow(const T& object) {
  return std::shared_ptr<const T>(std::shared_ptr<void>(), &object);
}

// Options that differ from those of the plan that does not fit.
struct Change {
  int world_size = 0;  // 0: the plan's.
  int stage = 0;       // 0: the plan's.
  // Sets the options that keep tensors whole to their defaults.
  bool shards_all = false;
  bool wraps_all = false;  // Makes a unit of every module.
  bool any_order = false;  // Sums gradients in any order, and in their dtype.
  bool own_grads = false;  // Keeps gradients in the parameters' dtype.
  std::optional<DType> states;
  std::optional<Masters> masters;
  std::optional<const Offload*> offload;  // Null: none.
};

// Returns an optimizer's options with states of another dtype, or the same
// options where its states have one dtype only.
GroupOptions WithStates(const GroupOptions& group, DType states) {
  const auto own = Optimizer::Parse(group.optimizer);
  if (!own.ok()) return group;
  const DType dtype = own->state_dtype();
  if (dtype == states || dtype == DType::kQ8) return group;
  const auto changed =
      Optimizer::Parse(StrCat("?states=", DTypeName(states)), &*own);
  return changed.ok() ? PlanGroup(*changed) : group;
}

bool HasMuon(const Plan& plan) {
  const std::vector<GroupOptions>& groups = plan.options().groups;
  return std::any_of(groups.begin(), groups.end(), [](const auto& group) {
    return group.optimizer.starts_with("muon");
  });
}

class OptionSearch {
 public:
  OptionSearch(const Plan& plan, const RankPlacement& placement,
               const Rooms& rooms, const Deadline& deadline,
               const ReplacedPlan* before)
      : plan_(plan),
        before_(before == nullptr ? nullptr : before->plan),
        placement_(placement),
        most_(MostOf(placement, rooms)),
        deadline_(deadline) {
    if (before == nullptr) return;
    // Where options differ, so does the memory of the plan that is replaced.
    const MemoryNeed held = NeedOf(*before->plan, placement, nullptr);
    most_ = most_ + held;
  }

  // Returns the options that make the plan fit, with the memory that they need.
  std::vector<std::string> Find() {
    if (before_ != nullptr) TryPlanAlone();
    const std::vector<Change> shardings = FindShardings();
    TryExact(shardings);
    if (!found_.empty()) return std::move(found_);
    const std::vector<Change> concessions = Concessions();
    for (const Change& concession : concessions) {
      if (TryConcession(concession, shardings)) break;
    }
    TryMoreRanks({{}});
    if (found_.empty()) TryMoreRanks(GradConcessions());
    return std::move(found_);
  }

  // Returns false where the model is too large, or the time too short, for
  // trying all options.
  bool tried_all() const { return tried_all_; }

 private:
  using Plans = std::vector<std::shared_ptr<const Plan>>;

  const PlanOptions& options() const { return plan_.options(); }

  // Returns the most that a plan may need to fit.
  static MemoryNeed MostOf(const RankPlacement& placement, const Rooms& rooms) {
    MemoryNeed most = {UINT64_MAX, rooms.host};
    if (rooms.device) {
      most.device =
          rooms.device->free / static_cast<uint64_t>(placement.ranks_on_device);
    }
    if (!rooms.least) return most;
    return {std::min(most.device, rooms.least->device),
            std::min(most.host, rooms.least->host)};
  }

  bool Fits(const MemoryNeed& need) const {
    return need.host <= most_.host && need.device <= most_.device;
  }

  // Returns the changes that shard more than the plan does, least first.
  std::vector<Change> FindShardings() const {
    std::vector<Change> shardings;
    if (options().world_size == 1) return shardings;
    for (const int stage : {2, 3}) {
      if (stage > options().stage) shardings.push_back({.stage = stage});
    }
    if (KeepsWhole()) shardings.push_back({.stage = 3, .shards_all = true});
    if (IsOneUnit()) {
      shardings.push_back({.stage = 3, .shards_all = true, .wraps_all = true});
    }
    return shardings;
  }

  bool KeepsWhole() const {
    return options().whole_grads || options().keep_after_forward ||
           options().shard_group_size != 0;
  }
  bool IsOneUnit() const {
    return plan_.units().size() == 1 && plan_.model().modules().size() > 1;
  }

  // Returns the plans with other options; none where one cannot be made, where
  // too many were made already, or where no time is left.
  Plans Make(const Change& change) {
    Plans plans;
    for (const Plan* const from : {&plan_, before_}) {
      if (from == nullptr) continue;
      made_items_ += ItemsOf(*from);
      tried_all_ = made_items_ <= kMostItems && !deadline_.Expired();
      if (!tried_all_) return {};
      PlanOptions changed = from->options();
      changed.wrap = from->UnitsAsPolicy();
      if (change.wraps_all) {
        changed.wrap = WrapPolicy::OfModules(
            std::vector<bool>(from->model().modules().size(), true), "always");
      }
      if (change.world_size != 0) changed.world_size = change.world_size;
      if (change.stage != 0) changed.stage = change.stage;
      if (change.shards_all) {
        changed.whole_grads = false;
        changed.keep_after_forward = false;
        changed.shard_group_size = 0;
      }
      if (change.any_order) changed.deterministic = false;
      if (change.own_grads) changed.f32_grads = false;
      changed.masters = change.masters.value_or(changed.masters);
      if (change.states) {
        for (GroupOptions& group : changed.groups) {
          group = WithStates(group, *change.states);
        }
      }
      // The made plan ends before the one that owns the model.
      auto made = Plan::Create(Borrow(from->model()), std::move(changed));
      if (!made.ok()) return {};
      plans.push_back(*std::move(made));
    }
    return plans;
  }

  Plans Unchanged() const {
    Plans plans = {Borrow(plan_)};
    if (before_ != nullptr) plans.push_back(Borrow(*before_));
    return plans;
  }

  RankPlacement PlacementWith(const Change& change) const {
    RankPlacement placement = placement_;
    placement.offload = change.offload.value_or(placement.offload);
    // The further ranks are on other hosts.
    if (change.world_size != 0) placement.shares_tensors = false;
    return placement;
  }

  // Appends the change to what was found, where the plans fit with it.
  bool TryWith(const Plans& plans, const Change& change) {
    if (plans.empty()) return false;
    const RankPlacement placement = PlacementWith(change);
    MemoryNeed need;
    if (plans.size() == 1) {
      need = NeedOf(*plans[0], placement, nullptr);
    } else {
      const Plan& before = *plans[1];
      const ReplacedPlan replaced = {&before, ReduceMemoryOf(before)};
      need = NeedOf(*plans[0], placement, &replaced) +
             NeedOf(before, placement, nullptr);
    }
    if (!Fits(need)) return false;
    std::string text = TextOf(change);
    const auto rounded = RoundedSums(*plans[0], placement);
    if (rounded && !RoundedSums(plan_, placement_)) {
      StrAppend(&text, ", which rounds sums of gradients to ",
                DTypeName(*rounded));
    }
    if (change.offload.value_or(nullptr) != nullptr && HasMuon(*plans[0])) {
      StrAppend(&text, ", which multiplies muon's matrices on the host");
    }
    found_.push_back(text + TextOf(need));
    return true;
  }

  // As TryWith, with another offload. One thread needs the least memory of the
  // host.
  bool TryOffloads(const Plans& plans, Change change) {
    static constexpr Offload kUsual;
    static constexpr Offload kOneThread = {.threads = 1};
    const Offload* const own = placement_.offload;
    if (!placement_.has_device_memory) return false;
    change.offload = own == nullptr ? &kUsual : nullptr;
    if (TryWith(plans, change)) return true;
    change.offload = &kOneThread;
    return (own == nullptr || own->threads > 1) && TryWith(plans, change);
  }

  // As TryWith, then as TryOffloads.
  bool TryEither(const Change& change) {
    const Plans plans = Make(change);
    return TryWith(plans, change) || TryOffloads(plans, change);
  }

  void TryPlanAlone() {
    const MemoryNeed need = NeedOf(plan_, placement_, nullptr);
    if (!Fits(need)) return;
    found_.push_back(
        "an engine of its own: save, free this engine, make one with the new "
        "plan and load" +
        TextOf(need));
  }

  // Tries options that keep the states' precision: one by one, then together.
  void TryExact(const std::vector<Change>& shardings) {
    TryOffloads(Unchanged(), {});
    std::vector<Plans> made;
    for (const Change& sharding : shardings) {
      made.push_back(Make(sharding));
      if (TryWith(made.back(), sharding)) return;
    }
    if (!found_.empty()) return;
    for (size_t i = 0; i < shardings.size(); ++i) {
      if (TryOffloads(made[i], shardings[i])) return;
    }
  }

  // Returns the changes that give up what the plan asks of gradients. These are
  // whole for a unit, however many ranks there are.
  std::vector<Change> GradConcessions() const {
    std::vector<Change> changes;
    if (options().deterministic) changes.push_back({.any_order = true});
    if (options().f32_grads) changes.push_back({.own_grads = true});
    if (changes.size() == 2) {
      changes.push_back({.any_order = true, .own_grads = true});
    }
    return changes;
  }

  // Returns all changes that give up what the plan asks for, the least first.
  std::vector<Change> Concessions() const {
    std::vector<Change> changes = GradConcessions();
    for (const DType states : {DType::kBF16, DType::kQ8}) {
      const bool narrows = std::any_of(
          options().groups.begin(), options().groups.end(), [&](const auto& g) {
            return WithStates(g, states).optimizer != g.optimizer;
          });
      if (narrows) changes.push_back({.states = states});
    }
    if (options().masters == Masters::kF32) {
      // f16 has no stochastic rounding, and then no plan is made.
      for (const Masters masters :
           {Masters::kNoneStochastic, Masters::kNoneNearest}) {
        changes.push_back({.masters = masters});
      }
    }
    return changes;
  }

  // Returns a change that also gives up what a concession does.
  static Change With(Change change, const Change& concession) {
    change.any_order = concession.any_order;
    change.own_grads = concession.own_grads;
    change.states = concession.states;
    change.masters = concession.masters;
    return change;
  }

  // Tries a concession, alone and with each sharding.
  bool TryConcession(const Change& concession,
                     const std::vector<Change>& shardings) {
    return TryEither(concession) ||
           std::any_of(shardings.begin(), shardings.end(),
                       [&](const Change& sharding) {
                         return TryEither(With(sharding, concession));
                       });
  }

  void TryMoreRanks(const std::vector<Change>& concessions) {
    if (TryMoreRanks(concessions, {.stage = 3, .shards_all = KeepsWhole()})) {
      return;
    }
    if (!IsOneUnit()) return;
    TryMoreRanks(concessions,
                 {.stage = 3, .shards_all = true, .wraps_all = true});
  }

  // Finds the smallest world in which the plan fits with `most` and one of the
  // concessions, then the lowest stage that does there. Where parameters stay
  // whole, a world may be too large as well as too small: the largest part
  // counts once for each rank.
  bool TryMoreRanks(const std::vector<Change>& concessions,
                    const Change& most) {
    int ranks = options().world_size;
    while (ranks <= FittingOptions::kMostRanks / 2) {
      ranks *= 2;
      for (const Change& concession : concessions) {
        Change change = With(most, concession);
        change.world_size = ranks;
        if (!TryEither(change)) continue;
        for (int stage = options().stage; stage < 3 && !most.wraps_all;
             ++stage) {
          change = With({.world_size = ranks, .stage = stage}, concession);
          if (!TryEither(change)) continue;
          found_.erase(found_.end() - 2);
          break;
        }
        return true;
      }
    }
    return false;
  }

  // Returns the options that a change sets: "stage 3 and wrap \"always\"".
  std::string TextOf(const Change& change) const {
    std::vector<std::string> words;
    if (change.world_size != 0) {
      words.push_back(StrCat(change.world_size, " ranks, as many on each host",
                             placement_.has_device_memory ? " and device" : "",
                             " as now"));
    }
    if (change.offload) {
      words.push_back(
          StrCat("device \"", DeviceWith(*change.offload, placement_), "\""));
    }
    if (change.stage != 0 && change.stage != options().stage) {
      words.push_back(StrCat("stage ", change.stage));
    }
    if (change.shards_all) {
      if (options().whole_grads) words.push_back("whole_grads 0");
      if (options().keep_after_forward) {
        words.push_back("keep_after_forward 0");
      }
      if (options().shard_group_size != 0) {
        words.push_back("shard_group_size 0");
      }
    }
    if (change.wraps_all) words.push_back("wrap \"always\"");
    if (change.any_order) words.push_back("deterministic 0");
    if (change.own_grads) words.push_back("f32_grads 0, less precise");
    if (change.masters) {
      words.push_back(
          StrCat("masters ", MastersName(*change.masters), ", less precise"));
    }
    if (change.states) {
      words.push_back(StrCat("\"states=", DTypeName(*change.states),
                             "\" of the optimizer, less precise"));
    }
    std::string text;
    for (size_t i = 0; i < words.size(); ++i) {
      const bool after_ranks = i == 1 && change.world_size != 0;
      StrAppend(&text,
                i == 0        ? ""
                : after_ranks ? ", and "
                              : " and ",
                words[i]);
    }
    return text;
  }

  std::string TextOf(const MemoryNeed& need) const {
    if (!placement_.has_device_memory) {
      return StrCat(" (", FormatBytes(need.host), ")");
    }
    return StrCat(" (", FormatBytes(need.device), " of the device",
                  placement_.ranks_on_device > 1 ? " for each rank" : "",
                  " and ", FormatBytes(need.host), " of the host)");
  }

  const Plan& plan_;
  const Plan* const before_;
  const RankPlacement& placement_;
  MemoryNeed most_;
  const Deadline deadline_;
  size_t made_items_ = 0;
  bool tried_all_ = true;
  std::vector<std::string> found_;
};

}  // namespace

FittingOptions FindFittingOptions(const Plan& plan,
                                  const RankPlacement& placement,
                                  const Rooms& rooms, const Deadline& deadline,
                                  const ReplacedPlan* before) {
  OptionSearch search(plan, placement, rooms, deadline, before);
  FittingOptions found;
  found.texts = search.Find();
  found.tried_all = search.tried_all();
  return found;
}

}  // namespace shard
