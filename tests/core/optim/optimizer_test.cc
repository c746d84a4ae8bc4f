// SPDX-License-Identifier: Apache-2.0

#include "core/optim/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace shard {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string MessageOf(const char* text) {
  const auto optimizer = Optimizer::Parse(text);
  EXPECT_FALSE(optimizer.ok()) << text;
  EXPECT_EQ(optimizer.status().code(), StatusCode::kInvalidArgument) << text;
  return optimizer.status().message();
}

TEST(OptimizerTest, DefaultIsAdamWWithTorchsValues) {
  const auto optimizer = Optimizer::Parse("");
  ASSERT_TRUE(optimizer.ok()) << optimizer.status().ToString();
  EXPECT_EQ(optimizer->formula(), Formula::kAdamW);
  EXPECT_EQ(optimizer->ToString(),
            "adamw?lr=0.001&beta1=0.9&beta2=0.999&eps=1e-08&weight_decay=0.01&"
            "maximize=0");
  EXPECT_THAT(optimizer->state_names(), ElementsAre("exp_avg", "exp_avg_sq"));
}

TEST(OptimizerTest, TextReadsBackToTheSameOptimizer) {
  const auto first = Optimizer::Parse("sgd?momentum=0.9&lr=3e-2&nesterov=1");
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  const auto second = Optimizer::Parse(first->ToString());
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->ToString(), first->ToString());
  EXPECT_EQ(second->hypers(), first->hypers());
}

TEST(OptimizerTest, MomentumDecidesAboutStates) {
  const auto plain = Optimizer::Parse("sgd?lr=0.1");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->formula(), Formula::kSgd);
  EXPECT_THAT(plain->state_names(), IsEmpty());
  const auto momentum = Optimizer::Parse("sgd?lr=0.1&momentum=0.9");
  ASSERT_TRUE(momentum.ok());
  EXPECT_EQ(momentum->formula(), Formula::kSgdMomentum);
  EXPECT_THAT(momentum->state_names(), ElementsAre("momentum_buffer"));
}

TEST(OptimizerTest, ErrorsNameWhatIsWrong) {
  EXPECT_THAT(MessageOf("adam2"), AllOf(HasSubstr("'adam2'"),
                                        HasSubstr("known: adamw, sgd,")));
  EXPECT_THAT(MessageOf("adamw?learning_rate=1"),
              AllOf(HasSubstr("'learning_rate'"), HasSubstr("lr, beta1")));
  EXPECT_THAT(MessageOf("adamw?lr=fast"), HasSubstr("lr='fast'"));
  EXPECT_THAT(MessageOf("adamw?lr=-0.5"),
              AllOf(HasSubstr("lr=-0.5"), HasSubstr("at least 0")));
  EXPECT_THAT(MessageOf("adamw?beta1=1"),
              AllOf(HasSubstr("beta1=1"), HasSubstr("[0, 1)")));
  EXPECT_THAT(MessageOf("adamw?maximize=2"), HasSubstr("0 or 1"));
  EXPECT_THAT(MessageOf("adamw?lr=1&lr=2"), HasSubstr("twice"));
  EXPECT_THAT(MessageOf("adamw?lr"), HasSubstr("key=value"));
  EXPECT_THAT(MessageOf("adamw?lr=nan"), HasSubstr("lr='nan'"));
  EXPECT_THAT(MessageOf("sgd?nesterov=1"), HasSubstr("momentum above 0"));
  EXPECT_THAT(MessageOf("sgd?nesterov=1&momentum=0.9&dampening=0.1"),
              HasSubstr("dampening 0"));
}

TEST(OptimizerTest, SetChecksAndKeepsTheOldValueOnError) {
  auto optimizer = Optimizer::Parse("adamw?lr=0.5");
  ASSERT_TRUE(optimizer.ok());
  EXPECT_TRUE(optimizer->Set("lr", 0.25).ok());
  EXPECT_EQ(*optimizer->Get("lr"), 0.25);
  EXPECT_EQ(optimizer->Set("lr", -1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(optimizer->Set("lr", std::numeric_limits<double>::quiet_NaN())
                .code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(*optimizer->Get("lr"), 0.25);
  EXPECT_EQ(optimizer->Set("nothing", 1).code(), StatusCode::kNotFound);
  EXPECT_EQ(optimizer->Get("nothing").status().code(), StatusCode::kNotFound);
}

TEST(OptimizerTest, SetRefusesWhatNeedsOtherStates) {
  auto optimizer = Optimizer::Parse("sgd?lr=0.5");
  ASSERT_TRUE(optimizer.ok());
  EXPECT_EQ(optimizer->Set("momentum", 0.9).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(*optimizer->Get("momentum"), 0);
}

}  // namespace
}  // namespace shard
