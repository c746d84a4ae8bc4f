// SPDX-License-Identifier: Apache-2.0
//
// The hooks of a pass: a module's tensors are touched while the module is
// entered and at no other time, so that they may be elsewhere, or nowhere, for
// the rest of the pass.

#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "samples/gpt/gpt.h"

namespace hooks_test {
namespace {

constexpr gpt_config kSmall = {
    .layers = 3, .width = 8, .heads = 2, .context = 4};
constexpr int kBatch = 2;

// A model whose pointers are null except for modules that are entered; those
// point to another place each time. `enter` copies parameters in, `leave` takes
// gradients out.
class HooksTest : public ::testing::Test {
 protected:
  // Whether the call enters, and the module.
  using Call = std::pair<bool, int>;

  HooksTest() {
    const int count = gpt_tensor_count(&kSmall);
    for (int i = 0; i < count; i++) {
      const size_t numel = gpt_tensor_at(&kSmall, i).numel;
      params_.emplace_back(numel);
      gpt_initialize(&kSmall, i, 7, params_.back().data());
      grads_.emplace_back(numel);
      lent_params_.emplace_back();
      lent_grads_.emplace_back();
    }
    param_pointers_.resize(count);
    grad_pointers_.resize(count);
    for (int i = 0; i < kBatch * (kSmall.context + 1); i++) {
      sequences_.push_back(static_cast<uint8_t>('a' + i * i % 7));
    }
    const gpt_hooks hooks = {.enter = Enter, .leave = Leave, .user_data = this};
    size_t bytes = 0;
    model_ = gpt_create(&kSmall, kBatch, param_pointers_.data(),
                        grad_pointers_.data(), &hooks, nullptr, &bytes);
  }
  ~HooksTest() override { gpt_free(model_); }

  bool Forward(int batch, double* nats) {
    calls_.clear();
    return gpt_forward(model_, sequences_.data(), batch, kSmall.context, nats);
  }
  bool Backward() {
    calls_.clear();
    return gpt_backward(model_, sequences_.data());
  }

  std::vector<Call> calls_;    // The calls of the last pass.
  size_t refused_ = SIZE_MAX;  // The call that returns false.
  std::vector<std::vector<float>> params_;
  std::vector<std::vector<float>> grads_;
  std::vector<uint8_t> sequences_;
  gpt* model_ = nullptr;

 private:
  static bool Enter(void* self, int module, bool backward) {
    return static_cast<HooksTest*>(self)->Called(true, module, backward);
  }
  static bool Leave(void* self, int module, bool backward) {
    return static_cast<HooksTest*>(self)->Called(false, module, backward);
  }

  bool Called(bool enters, int module, bool backward) {
    for (int i = 0; i < gpt_tensor_count(&kSmall); i++) {
      if (gpt_tensor_at(&kSmall, i).module != module) continue;
      if (enters) {
        lent_params_[i] = params_[i];
        if (backward) lent_grads_[i].assign(grads_[i].size(), 1e6f);
      } else {
        if (backward) grads_[i] = lent_grads_[i];
        lent_params_[i].clear();
        lent_grads_[i].clear();
      }
      param_pointers_[i] = enters ? lent_params_[i].data() : nullptr;
      grad_pointers_[i] = enters && backward ? lent_grads_[i].data() : nullptr;
    }
    calls_.emplace_back(enters, module);
    return calls_.size() - 1 != refused_;
  }

  std::vector<std::vector<float>> lent_params_;
  std::vector<std::vector<float>> lent_grads_;
  std::vector<float*> param_pointers_;
  std::vector<float*> grad_pointers_;
};

TEST_F(HooksTest, TensorsAreTouchedOnlyWhileTheirModuleIsEntered) {
  double nats = 0;
  ASSERT_TRUE(Forward(kBatch, &nats));
  ASSERT_TRUE(Backward());

  // Makes the same passes with pointers that stay.
  auto grads = grads_;
  std::vector<float*> params_at;
  std::vector<float*> grads_at;
  for (auto& param : params_) params_at.push_back(param.data());
  for (auto& grad : grads) grads_at.push_back(grad.data());
  size_t bytes = 0;
  gpt* plain = gpt_create(&kSmall, kBatch, params_at.data(), grads_at.data(),
                          nullptr, nullptr, &bytes);
  double expected = 0;
  EXPECT_TRUE(
      gpt_forward(plain, sequences_.data(), kBatch, kSmall.context, &expected));
  EXPECT_TRUE(gpt_backward(plain, sequences_.data()));
  gpt_free(plain);
  EXPECT_EQ(nats, expected);
  EXPECT_EQ(grads_, grads);
}

TEST_F(HooksTest, EachModuleIsEnteredOncePerPassWithinItsParent) {
  double nats = 0;
  for (const bool backward : {false, true}) {
    ASSERT_TRUE(backward ? Backward() : Forward(kBatch, &nats));
    std::vector<int> entered(gpt_module_count(&kSmall));
    std::vector<int> open;
    for (const auto& [enters, module] : calls_) {
      if (enters) {
        const int parent = gpt_module_at(&kSmall, module).parent;
        // wte stays entered beside its siblings.
        if (!open.empty() && open.back() == GPT_WTE) {
          EXPECT_EQ(parent, GPT_ROOT);
        } else {
          EXPECT_EQ(open.empty() ? -1 : open.back(), parent);
        }
        open.push_back(module);
        entered[module]++;
      } else {
        ASSERT_FALSE(open.empty());
        EXPECT_EQ(open.back(), module);
        open.pop_back();
      }
    }
    EXPECT_TRUE(open.empty());
    std::vector<int> once(gpt_module_count(&kSmall), 1);
    once[gpt_lm_head_module(&kSmall)] = 0;  // It is tied to wte.
    EXPECT_EQ(entered, once) << backward;
  }
}

TEST_F(HooksTest, ABatchOfZeroCallsThemAsAnyOther) {
  double nats = 0;
  ASSERT_TRUE(Forward(kBatch, &nats));
  const auto calls = calls_;
  nats = 1;
  ASSERT_TRUE(Forward(0, &nats));
  EXPECT_EQ(calls_, calls);
  EXPECT_EQ(nats, 0);
}

TEST_F(HooksTest, OneThatSaysNoIsTheLastOfThePass) {
  double nats = 0;
  ASSERT_TRUE(Forward(kBatch, &nats));
  const size_t count = calls_.size();
  for (refused_ = 0; refused_ < count; refused_++) {
    EXPECT_FALSE(Forward(kBatch, &nats)) << refused_;
    EXPECT_EQ(calls_.size(), refused_ + 1);
  }
  for (size_t i = 0; i < count; i++) {
    refused_ = SIZE_MAX;
    ASSERT_TRUE(Forward(kBatch, &nats));
    refused_ = i;
    EXPECT_FALSE(Backward()) << i;
    EXPECT_EQ(calls_.size(), i + 1);
  }
}

}  // namespace
}  // namespace hooks_test
