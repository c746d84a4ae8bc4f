// SPDX-License-Identifier: Apache-2.0
//
// The compute stream of "cpu" and the host's own, which work in the call.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#include "core/device/device.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/kernel_inputs.h"

namespace {

// The number of allocations of this thread so far.
thread_local int64_t allocations = 0;

}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace shard {
namespace {

using testing::CaseOf;
using testing::FormulaCase;
using testing::FusedTensors;
using testing::kCount;
using testing::kNoClip;
using testing::Latched;
using testing::ListOf;
using testing::Tensors;

// On a host the engine uses such a stream, as if it called the kernels itself.
TEST(InlineStreamTest, AllocatesNothing) {
  auto device = OpenDevice("cpu");
  ASSERT_OK(device);
  auto made = (*device)->CreateStream(StreamKind::kCompute);
  ASSERT_OK(made);
  Stream* const stream = made->get();
  auto host = (*device)->WrapStream(nullptr);
  ASSERT_OK(host);
  const FormulaCase adamw = CaseOf<AdamW>(Formula::kAdamW, "AdamW");
  Tensors tensors = FusedTensors(DType::kF32, DType::kF32);
  const UpdateList list = ListOf(adamw, DType::kF32, DType::kF32, &tensors);
  const GradientSources gradients = list.GradientsOf(list.ranges[0], false);
  Latched latched(adamw, 1);
  NormSum sum = {};

  const int64_t before = allocations;
  stream->Wait((*host)->Record(), Deadline::After(1));
  stream->AddToNorm(list, 0, NormPass::kFirst, &latched.block, &sum);
  stream->FinishNorm(NormPass::kFirst, &sum, 1, &latched.block);
  stream->Update(list, 0, StepBlocks::Shared(&latched.block), nullptr);
  stream->SumGradients(gradients, 0, kCount, 1, kNoClip, tensors.param.data());
  stream->Copy(tensors.param.data(), tensors.grads[0].data(), kCount);
  const Event event = stream->Record();
  stream->Wait(event, Deadline::After(1));
  EXPECT_TRUE(stream->Synchronize(Deadline::After(1)).ok());
  (*host)->Wait(event, Deadline::After(1));
  EXPECT_TRUE((*host)->status().ok());
  EXPECT_EQ(allocations, before);

  // Shows that the counter counts.
  ::operator delete(::operator new(1));
  EXPECT_GT(allocations, before);
}

}  // namespace
}  // namespace shard
