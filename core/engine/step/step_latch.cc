// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/step_latch.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <new>

#include "core/base/rounding.h"

namespace shard {

namespace {

static_assert(sizeof(StepBlock) % alignof(StepRow) == 0);
static_assert(sizeof(StepRow) % alignof(uint32_t) == 0);

}  // namespace

StatusOr<StepLatch> StepLatch::Create(const Plan& plan, Device* device) {
  StepLatch latch;
  latch.seed_ = plan.options().seed;
  latch.positions_.resize(plan.options().groups.size());
  size_t trainable = 0;
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    if (!buffer.trainable) continue;
    auto& positions = latch.positions_[static_cast<size_t>(buffer.group)];
    for (const Slot& slot : buffer.layout.slots()) {
      positions.push_back(
          static_cast<uint32_t>(plan.place(slot.param).position));
      ++trainable;
    }
  }
  latch.by_step_.reserve(trainable);
  const size_t rows = std::max(trainable, latch.positions_.size());
  const size_t rows_at = sizeof(StepBlock);
  const size_t param_rows_at = rows_at + rows * sizeof(StepRow);
  latch.launches_at_ = RoundUp(
      param_rows_at + plan.NumStored() * sizeof(uint32_t), sizeof(uint64_t));
  const size_t bytes =
      latch.launches_at_ + GraphLaunches::kWords * sizeof(uint32_t);
  SHARD_ASSIGN_OR_RETURN(latch.memory_,
                         device->AllocateHost(bytes, "values of a step"));
  latch.copies_ = !device->IsHostMemory();
  if (latch.copies_) {
    SHARD_ASSIGN_OR_RETURN(latch.device_memory_,
                           device->Allocate(bytes, "values of a step"));
  }
  std::byte* const base = latch.memory_.data();
  ::new (base) StepBlock();
  latch.launches_ =
      GraphLaunches(reinterpret_cast<uint32_t*>(base + latch.launches_at_));
  latch.rows_ = reinterpret_cast<StepRow*>(base + rows_at);
  latch.param_rows_ = reinterpret_cast<uint32_t*>(base + param_rows_at);
  return latch;
}

void StepLatch::Latch(const StepInput& input) {
  StepBlock& block = *reinterpret_cast<StepBlock*>(memory_.data());
  block.gradient_scale = input.gradient_scale;
  block.max_grad_norm = input.max_grad_norm;
  block.clip_value = input.clip_value > 0
                         ? input.clip_value
                         : std::numeric_limits<double>::infinity();
  block.has_norm = input.needs_norm();
  block.norm_type = input.norm_type;
  block.norm_p = input.norm_p;
  block.random_step = static_cast<uint32_t>(input.step);
  block.seed = seed_;
  block.largest = 0;
  block.grad_norm = -1;
  block.scale = input.gradient_scale;
  block.skipped = false;
  if (input.param_steps == nullptr) {
    block.SetRows(rows_, nullptr);
    MakeRows(input);
  } else {
    block.SetRows(rows_, param_rows_);
    MakeRowsByStep(input);
  }
}

Event StepLatch::Upload(Stream* stream) const {
  if (!copies_) return Event();
  constexpr size_t kLatched = offsetof(StepBlock, gradient_scale);
  std::byte* const to = device_memory_.data();
  const std::byte* const from = memory_.data();
  const auto offset = [&](const void* address) {
    return static_cast<size_t>(static_cast<const std::byte*>(address) - from);
  };
  const size_t rows_end = offset(rows_ + made_rows_);
  if (host_block().has_param_rows()) {
    const size_t begin = offset(param_rows_);
    stream->Fill({{to + kLatched, from + kLatched, rows_end - kLatched},
                  {to + begin, from + begin, launches_at_ - begin}});
  } else {
    stream->Copy(to + kLatched, from + kLatched, rows_end - kLatched);
  }
  return stream->Record();
}

void StepLatch::Download(Stream* stream) const {
  if (!copies_) return;
  constexpr size_t kResults = offsetof(StepBlock, largest);
  stream->Copy(memory_.data() + kResults, device_memory_.data() + kResults,
               sizeof(StepBlock) - kResults);
}

void StepLatch::CountBegin(Stream* stream) const {
  if (!copies_) return;
  constexpr size_t kWord = GraphLaunches::kBegun * sizeof(uint32_t);
  stream->Count(
      reinterpret_cast<uint32_t*>(device_memory_.data() + launches_at_),
      reinterpret_cast<uint32_t*>(memory_.data() + launches_at_ + kWord));
}

void StepLatch::CountEnd(Stream* stream) const {
  if (!copies_) return;
  constexpr size_t kWord = GraphLaunches::kEnded * sizeof(uint32_t);
  stream->Copy(memory_.data() + launches_at_ + kWord,
               device_memory_.data() + launches_at_, sizeof(uint32_t));
}

void StepLatch::Poison() {
  auto* const block = reinterpret_cast<StepBlock*>(memory_.data());
  std::atomic_ref(block->poisoned).store(1);
}

void StepLatch::UploadPoison(Stream* stream) const {
  stream->Copy(&kernels_block()->poisoned, &host_block().poisoned,
               sizeof(StepBlock::poisoned));
}

void StepLatch::MakeRows(const StepInput& input) {
  for (size_t g = 0; g < positions_.size(); ++g) {
    const Optimizer& optimizer = (*input.optimizers)[g];
    rows_[g] = {input.step,
                {optimizer.formula(), optimizer.hypers().data(), input.step}};
  }
  made_rows_ = positions_.size();
}

void StepLatch::MakeRowsByStep(const StepInput& input) {
  uint32_t made = 0;
  for (size_t g = 0; g < positions_.size(); ++g) {
    const Optimizer& optimizer = (*input.optimizers)[g];
    by_step_.clear();
    for (const uint32_t position : positions_[g]) {
      const int64_t step = input.param_steps[position];
      if (step == 0) {
        param_rows_[position] = kNotStepped;
        continue;
      }
      auto row = std::lower_bound(
          by_step_.begin(), by_step_.end(), step,
          [this](uint32_t r, int64_t least) { return rows_[r].step < least; });
      if (row == by_step_.end() || rows_[*row].step != step) {
        rows_[made] = {step,
                       {optimizer.formula(), optimizer.hypers().data(), step}};
        row = by_step_.insert(row, made++);
      }
      param_rows_[position] = *row;
    }
  }
  made_rows_ = made;
}

}  // namespace shard
