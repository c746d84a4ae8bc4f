// SPDX-License-Identifier: Apache-2.0

#include "core/flat/plan.h"

#include <cstddef>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/base/strings.h"
#include "core/flat/fingerprint.h"
#include "core/flat/inventory.h"
#include "core/flat/owners.h"

namespace shard {

namespace {

// Part of every fingerprint: raise it when the same inputs would be laid out,
// or hashed, differently.
constexpr uint32_t kLayoutVersion = 2;

Status CheckStates(const std::vector<StateTensor>& states) {
  for (size_t i = 0; i < states.size(); ++i) {
    const std::string& name = states[i].name;
    if (name.empty()) {
      return InvalidArgument("the name of optimizer state ", i, " is empty");
    }
    if (!IsValidUtf8(name)) {
      return InvalidArgument("the name of optimizer state ", i,
                             " is not valid UTF-8 without NUL");
    }
    const Status known =
        DTypeFromValue(static_cast<int32_t>(states[i].dtype)).status();
    if (!known.ok()) {
      return known.WithContext(StrCat("optimizer state '", name, "'"));
    }
    for (size_t k = 0; k < i; ++k) {
      if (states[k].name == name) {
        return InvalidArgument("optimizer state '", name, "' stands twice");
      }
    }
  }
  return Status();
}

Status CheckOptions(const PlanOptions& options) {
  if (options.stage < 0 || options.stage > 3) {
    return InvalidArgument("stage ", options.stage, " is outside 0 to 3");
  }
  if (options.world_size < 1 || options.world_size > kMaxWorldSize) {
    return InvalidArgument("world size ", options.world_size,
                           " is outside 1 to ", kMaxWorldSize);
  }
  const auto partition = static_cast<int32_t>(options.partition);
  if (partition < 1 || partition > 4) {
    return InvalidArgument(
        "unknown partition ", partition,
        "; known: 1 (even), 2 (greedy), 3 (bucket), 4 (manual)");
  }
  if (options.alignment_bytes < 1) {
    return InvalidArgument("alignment_bytes ", options.alignment_bytes,
                           " is below 1");
  }
  if (options.bucket_bytes < 1) {
    return InvalidArgument("bucket_bytes ", options.bucket_bytes,
                           " is below 1");
  }
  if (!IsValidUtf8(options.optimizer)) {
    return InvalidArgument("the optimizer's text is not valid UTF-8");
  }
  return CheckStates(options.states);
}

Status CheckManualOwners(const Model& model, const PlanOptions& options,
                         const Inventory& inventory) {
  if (options.partition != Partition::kManual) return Status();
  if (options.manual_owners.size() != model.params().size()) {
    return InvalidArgument("manual_owners has ", options.manual_owners.size(),
                           " entries, but the model has ",
                           model.params().size(), " parameters");
  }
  for (const BufferInventory& buffer : inventory.buffers) {
    if (!buffer.trainable) continue;
    for (const ParamId param : buffer.params) {
      const auto index = static_cast<size_t>(param);
      const int32_t owner = options.manual_owners[index];
      if (owner >= 0 && owner < options.world_size) continue;
      return InvalidArgument("the manual owner of parameter '",
                             model.ParamFqns()[index], "' is rank ", owner,
                             ", but the world size is ", options.world_size);
    }
  }
  return Status();
}

uint64_t RoundUpToPage(uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// The engine counts bytes of one buffer, and of all, in 64 bits.
Status CheckBytes(const std::vector<FlatBufferPlan>& buffers,
                  const std::vector<StateTensor>& states) {
  // 8 buffers at most: this leaves room for their sum and for page rounding.
  constexpr int64_t kMaxBytes = std::numeric_limits<int64_t>::max() / 16;
  for (const FlatBufferPlan& buffer : buffers) {
    int64_t element_bytes = static_cast<int64_t>(DTypeSize(buffer.dtype));
    for (const StateTensor& state : states) {
      element_bytes += static_cast<int64_t>(DTypeSize(state.dtype));
    }
    int64_t bytes = 0;
    if (__builtin_mul_overflow(buffer.layout.padded_numel(), element_bytes,
                               &bytes) ||
        bytes > kMaxBytes) {
      return InvalidArgument("a flat buffer of ", buffer.layout.padded_numel(),
                             " elements of ", DTypeName(buffer.dtype), " and ",
                             states.size(),
                             " optimizer states takes more than 2^59 bytes");
    }
  }
  return Status();
}

void AddOptions(const PlanOptions& options, Fingerprint* fingerprint) {
  fingerprint->Add(kLayoutVersion);
  fingerprint->Add(static_cast<int32_t>(options.stage));
  fingerprint->Add(static_cast<int32_t>(options.world_size));
  fingerprint->Add(static_cast<int32_t>(options.partition));
  fingerprint->Add(options.bucket_bytes);
  fingerprint->Add(static_cast<int32_t>(options.shard_buckets));
  fingerprint->Add(options.alignment_bytes);
  fingerprint->AddString(options.optimizer);
  fingerprint->Add(static_cast<uint32_t>(options.states.size()));
  for (const StateTensor& state : options.states) {
    fingerprint->AddString(state.name);
    fingerprint->Add(static_cast<int32_t>(state.dtype));
  }
}

}  // namespace

StatusOr<std::shared_ptr<const Plan>> Plan::Create(
    std::shared_ptr<const Model> model, PlanOptions options) {
  if (model == nullptr) return InvalidArgument("the plan was given no model");
  SHARD_RETURN_IF_ERROR(CheckOptions(options));

  Fingerprint fingerprint;
  AddOptions(options, &fingerprint);
  const Inventory inventory = TakeInventory(*model, &fingerprint);
  if (inventory.walk.empty()) {
    if (model->params().empty()) {
      return InvalidArgument("the model has no parameters");
    }
    return InvalidArgument("the model has no parameter to store: all ",
                           model->params().size(), " are ignored");
  }
  SHARD_RETURN_IF_ERROR(CheckManualOwners(*model, options, inventory));
  std::vector<std::vector<int32_t>> owners;
  if (options.partition != Partition::kEven) {
    SHARD_ASSIGN_OR_RETURN(owners, ChooseOwners(*model, options, inventory));
  }

  std::shared_ptr<Plan> plan(new Plan);
  plan->units_.push_back({kRootModule, {}});
  plan->places_.resize(model->params().size());
  for (size_t i = 0; i < inventory.buffers.size(); ++i) {
    const BufferInventory& buffer = inventory.buffers[i];
    // The least number of elements whose bytes are a multiple of it.
    const int64_t alignment =
        options.alignment_bytes /
        std::gcd(options.alignment_bytes,
                 static_cast<int64_t>(DTypeSize(buffer.dtype)));
    const bool whole =
        options.partition != Partition::kEven && buffer.trainable;
    SHARD_ASSIGN_OR_RETURN(
        FlatLayout layout,
        whole ? FlatLayout::Owned(buffer.params, buffer.numels, owners[i],
                                  options.world_size, alignment)
              : FlatLayout::Even(buffer.params, buffer.numels,
                                 options.world_size, alignment));
    const auto index = static_cast<int32_t>(i);
    for (const Slot& slot : layout.slots()) {
      plan->places_[static_cast<size_t>(slot.param)] = {index, slot.offset};
    }
    fingerprint.Add(layout.shard_numel());
    plan->units_[0].buffers.push_back(index);
    plan->buffers_.push_back(
        {0, buffer.dtype, buffer.trainable, std::move(layout)});
  }
  SHARD_RETURN_IF_ERROR(CheckBytes(plan->buffers_, options.states));

  // In walk order, so that the order in which a rank added things is no
  // difference.
  for (const ParamId param : inventory.walk) {
    fingerprint.Add(plan->places_[static_cast<size_t>(param)].offset);
  }
  plan->fingerprint_ = fingerprint.Finish();
  plan->model_ = std::move(model);
  plan->options_ = std::move(options);
  return std::shared_ptr<const Plan>(std::move(plan));
}

MemoryReport Plan::Memory() const {
  MemoryReport memory;
  for (const FlatBufferPlan& buffer : buffers_) {
    const auto padded = static_cast<uint64_t>(buffer.layout.padded_numel());
    const auto shard = static_cast<uint64_t>(buffer.layout.shard_numel());
    const uint64_t size = DTypeSize(buffer.dtype);
    memory.param_bytes += RoundUpToPage(padded * size);
    if (!buffer.trainable) continue;
    memory.grad_bytes +=
        RoundUpToPage((options_.stage >= 2 ? shard : padded) * size);
    for (const StateTensor& state : options_.states) {
      memory.state_bytes += RoundUpToPage(shard * DTypeSize(state.dtype));
    }
  }
  return memory;
}

}  // namespace shard
