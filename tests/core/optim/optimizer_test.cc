// SPDX-License-Identifier: Apache-2.0

#include "core/optim/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/formula/all.h"

namespace shard::optimizer_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
            "amsgrad=0&maximize=0&profile=torch&states=f32");
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

// Each line has the name, the defaults in torch's names and order, and the
// states of the default form.
TEST(OptimizerTest, DefaultsAreTorchs) {
  const struct {
    const char* text;
    Formula formula;
    std::vector<std::string> states;
  } kCases[] = {
      {"adadelta?lr=1&rho=0.9&eps=1e-06&weight_decay=0&maximize=0",
       Formula::kAdadelta,
       {"square_avg", "acc_delta"}},
      // eps1 is the epsilon of float.
      {"adafactor?lr=0.01&beta2_decay=-0.8&eps1=1.1920928955078125e-07&"
       "eps2=0.001&d=1&weight_decay=0&maximize=0",
       Formula::kAdafactor,
       {"row_var", "col_var", "variance"}},
      {"adagrad?lr=0.01&lr_decay=0&weight_decay=0&initial_accumulator_value=0&"
       "eps=1e-10&maximize=0",
       Formula::kAdagrad,
       {"sum"}},
      {"adam?lr=0.001&beta1=0.9&beta2=0.999&eps=1e-08&weight_decay=0&amsgrad=0&"
       "maximize=0&profile=torch&states=f32",
       Formula::kAdam,
       {"exp_avg", "exp_avg_sq"}},
      {"adamax?lr=0.002&beta1=0.9&beta2=0.999&eps=1e-08&weight_decay=0&"
       "maximize=0",
       Formula::kAdamax,
       {"exp_avg", "exp_inf"}},
      {"lamb?lr=0.001&beta1=0.9&beta2=0.999&eps=1e-06&weight_decay=0.01&"
       "maximize=0",
       Formula::kLamb,
       {"exp_avg", "exp_avg_sq"}},
      {"lion?lr=0.0001&beta1=0.9&beta2=0.99&weight_decay=0",
       Formula::kLion,
       {"exp_avg"}},
      {"rmsprop?lr=0.01&alpha=0.99&eps=1e-08&weight_decay=0&momentum=0&"
       "centered=0&maximize=0",
       Formula::kRmsProp,
       {"square_avg"}},
      {"rprop?lr=0.01&etaminus=0.5&etaplus=1.2&step_size_min=1e-06&"
       "step_size_max=50&maximize=0",
       Formula::kRprop,
       {"prev", "step_size"}},
      {"sgd?lr=0.001&momentum=0&dampening=0&weight_decay=0&nesterov=0&"
       "maximize=0",
       Formula::kSgd,
       {}},
  };
  for (const auto& expected : kCases) {
    const std::string text = expected.text;
    const auto optimizer = Optimizer::Parse(text.substr(0, text.find('?')));
    ASSERT_TRUE(optimizer.ok()) << optimizer.status().ToString();
    EXPECT_EQ(optimizer->formula(), expected.formula) << text;
    EXPECT_EQ(optimizer->state_names(), expected.states) << text;
    // 1e-04 and 0.0001 are the same number, so the parsed values are compared.
    const auto read = Optimizer::Parse(text);
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    EXPECT_EQ(optimizer->ToString(), read->ToString());
    std::string keys, expected_keys;
    for (const auto& [from, to] :
         {std::pair(optimizer->ToString(), &keys), {text, &expected_keys}}) {
      bool key = true;
      for (const char c : from) {
        if (c == '=') key = false;
        if (c == '&') key = true;
        if (key) *to += c;
      }
    }
    EXPECT_EQ(keys, expected_keys);
  }
}

TEST(OptimizerTest, HyperparametersDecideAboutStates) {
  const struct {
    const char* text;
    Formula formula;
    std::vector<std::string> states;
  } kCases[] = {
      {"adam?amsgrad=1",
       Formula::kAdamAmsgrad,
       {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}},
      {"adamw?amsgrad=1",
       Formula::kAdamWAmsgrad,
       {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}},
      {"adam?profile=apex", Formula::kAdamApex, {"exp_avg", "exp_avg_sq"}},
      {"adam?profile=deepspeed_cpu",
       Formula::kAdamDeepSpeedCpu,
       {"exp_avg", "exp_avg_sq"}},
      {"adamw?profile=torch", Formula::kAdamW, {"exp_avg", "exp_avg_sq"}},
      {"adamw?profile=apex", Formula::kAdamWApex, {"exp_avg", "exp_avg_sq"}},
      {"adamw?profile=deepspeed_cpu",
       Formula::kAdamWDeepSpeedCpu,
       {"exp_avg", "exp_avg_sq"}},
      {"adamw?profile=llmc", Formula::kAdamWLlmc, {"exp_avg", "exp_avg_sq"}},
      {"adamw?profile=llmc_cpu",
       Formula::kAdamWLlmcCpu,
       {"exp_avg", "exp_avg_sq"}},
      {"adamw?profile=ggml", Formula::kAdamWGgml, {"exp_avg", "exp_avg_sq"}},
      {"rmsprop?momentum=0.9",
       Formula::kRmsPropMomentum,
       {"square_avg", "momentum_buffer"}},
      {"rmsprop?centered=1",
       Formula::kRmsPropCentered,
       {"square_avg", "grad_avg"}},
      {"rmsprop?centered=1&momentum=0.9",
       Formula::kRmsPropCenteredMomentum,
       {"square_avg", "grad_avg", "momentum_buffer"}},
  };
  for (const auto& expected : kCases) {
    const auto optimizer = Optimizer::Parse(expected.text);
    ASSERT_TRUE(optimizer.ok()) << optimizer.status().ToString();
    EXPECT_EQ(optimizer->formula(), expected.formula) << expected.text;
    EXPECT_EQ(optimizer->state_names(), expected.states) << expected.text;
  }
}

// Tries the wrong value next to each end of each range.
TEST(OptimizerTest, RangesAreChecked) {
  const struct {
    const char* text;
    const char* allowed;
  } kCases[] = {
      {"adadelta?lr=-1", "at least 0"},
      {"adadelta?rho=1.01", "[0, 1]"},
      {"adadelta?rho=-0.1", "[0, 1]"},
      {"adadelta?eps=-1", "at least 0"},
      {"adadelta?weight_decay=-1", "at least 0"},
      {"adadelta?maximize=0.5", "0 or 1"},
      {"adafactor?lr=-1", "at least 0"},
      {"adafactor?beta2_decay=0.1", "at most 0"},
      {"adafactor?eps1=-1", "at least 0"},
      {"adafactor?eps2=-1", "at least 0"},
      {"adafactor?d=0.9", "at least 1"},
      {"adafactor?weight_decay=-1", "at least 0"},
      {"adafactor?maximize=2", "0 or 1"},
      {"adagrad?lr=-1", "at least 0"},
      {"adagrad?lr_decay=-1", "at least 0"},
      {"adagrad?weight_decay=-1", "at least 0"},
      {"adagrad?initial_accumulator_value=-1", "at least 0"},
      {"adagrad?eps=-1", "at least 0"},
      {"adagrad?maximize=2", "0 or 1"},
      {"adam?lr=-1", "at least 0"},
      {"adam?beta1=1", "[0, 1)"},
      {"adam?beta2=-0.1", "[0, 1)"},
      {"adam?eps=-1", "at least 0"},
      {"adam?weight_decay=-1", "at least 0"},
      {"adam?amsgrad=2", "0 or 1"},
      {"adam?maximize=-1", "0 or 1"},
      {"adamax?lr=-1", "at least 0"},
      {"adamax?beta1=-0.1", "[0, 1)"},
      {"adamax?beta2=1", "[0, 1)"},
      {"adamax?eps=-1", "at least 0"},
      {"adamax?weight_decay=-1", "at least 0"},
      {"adamax?maximize=2", "0 or 1"},
      {"adamw?amsgrad=0.5", "0 or 1"},
      {"adamw?lr=1e+39", "at least 0, and finite in fp32"},
      {"lamb?lr=-1", "at least 0"},
      {"lamb?beta1=1", "[0, 1)"},
      {"lamb?beta2=1", "[0, 1)"},
      {"lamb?eps=-1", "at least 0"},
      {"lamb?weight_decay=-1", "at least 0"},
      {"lamb?maximize=2", "0 or 1"},
      {"lion?lr=-1", "at least 0"},
      {"lion?beta1=1", "[0, 1)"},
      {"lion?beta2=1", "[0, 1)"},
      {"lion?weight_decay=-1", "at least 0"},
      {"muon?lr=-1", "at least 0"},
      {"muon?weight_decay=-1", "at least 0"},
      {"muon?momentum=1", "[0, 1)"},
      {"muon?nesterov=2", "0 or 1"},
      {"muon?ns_steps=0", "[1, 100)"},
      {"muon?ns_steps=100", "[1, 100)"},
      {"muon?eps=-1", "at least 0"},
      {"rmsprop?lr=-1", "at least 0"},
      {"rmsprop?alpha=1", "[0, 1)"},
      {"rmsprop?alpha=-0.1", "[0, 1)"},
      {"rmsprop?eps=-1", "at least 0"},
      {"rmsprop?weight_decay=-1", "at least 0"},
      {"rmsprop?momentum=-1", "at least 0"},
      {"rmsprop?centered=2", "0 or 1"},
      {"rmsprop?maximize=2", "0 or 1"},
      {"rprop?lr=-1", "at least 0"},
      {"rprop?etaminus=1", "[0, 1)"},
      {"rprop?etaplus=0.9", "at least 1"},
      {"rprop?step_size_min=-1", "at least 0"},
      {"rprop?step_size_max=-1", "at least 0"},
      {"rprop?maximize=2", "0 or 1"},
  };
  for (const auto& wrong : kCases) {
    const std::string text = wrong.text;
    EXPECT_THAT(MessageOf(wrong.text),
                AllOf(HasSubstr(text.substr(text.find('?') + 1)),
                      HasSubstr(wrong.allowed)));
  }
}

TEST(OptimizerTest, ConflictsAreNamed) {
  EXPECT_THAT(MessageOf("rprop?etaminus=0"),
              AllOf(HasSubstr("etaminus=0"), HasSubstr("0 < etaminus < 1")));
  EXPECT_THAT(MessageOf("rprop?etaplus=1"),
              AllOf(HasSubstr("etaplus=1"), HasSubstr("1 < etaplus")));
  EXPECT_THAT(MessageOf("rprop?step_size_min=0.5&step_size_max=0.25"),
              HasSubstr("step_size_min at most step_size_max"));
  EXPECT_THAT(MessageOf("rprop?weight_decay=0.1"), HasSubstr("etaminus"));
  EXPECT_THAT(MessageOf("adam?profile=llmc"),
              AllOf(HasSubstr("adam: "), HasSubstr("are adamw's"),
                    HasSubstr("'adam?profile=llmc'")));
  EXPECT_THAT(MessageOf("adam?profile=llmc_cpu"), HasSubstr("are adamw's"));
  EXPECT_THAT(MessageOf("adam?profile=ggml"), HasSubstr("are adamw's"));
  EXPECT_THAT(MessageOf("adam?profile=apex&amsgrad=1"),
              HasSubstr("amsgrad=1 needs profile=torch"));
  EXPECT_THAT(MessageOf("adamw?profile=llmc&amsgrad=1"),
              HasSubstr("amsgrad=1 needs profile=torch"));
  for (const char* const text : {"adamw?profile=llmc&beta1=0.99999999",
                                 "adam?profile=apex&beta2=0.99999999"}) {
    EXPECT_THAT(MessageOf(text), HasSubstr("below 1 in float"));
  }
  EXPECT_TRUE(Optimizer::Parse("adamw?beta2=0.99999999").ok());
  EXPECT_THAT(MessageOf("muon?ns_steps=2.5"),
              HasSubstr("whole number of ns_steps"));
  // The authors' Lion has no maximize.
  EXPECT_THAT(MessageOf("lion?maximize=1"), HasSubstr("'maximize'"));
}

TEST(OptimizerTest, ErrorsNameWhatIsWrong) {
  EXPECT_THAT(MessageOf("adam2"),
              AllOf(HasSubstr("'adam2'"), HasSubstr("known: adadelta, "),
                    HasSubstr(" adamw, "), HasSubstr(" sgd,")));
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
  EXPECT_EQ(
      optimizer->Set("lr", std::numeric_limits<double>::quiet_NaN()).code(),
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

TEST(OptimizerTest, SetRefusesEveryChangeOfForm) {
  const struct {
    const char* text;
    const char* key;
    double value;
  } kCases[] = {
      {"adam", "amsgrad", 1},
      {"adam?amsgrad=1", "amsgrad", 0},
      {"adamw", "amsgrad", 1},
      {"rmsprop", "centered", 1},
      {"rmsprop", "momentum", 0.5},
      {"rmsprop?momentum=0.5", "momentum", 0},
      {"rmsprop?centered=1", "momentum", 0.5},
  };
  for (const auto& change : kCases) {
    auto optimizer = Optimizer::Parse(change.text);
    ASSERT_TRUE(optimizer.ok());
    EXPECT_EQ(optimizer->Set(change.key, change.value).code(),
              StatusCode::kFailedPrecondition)
        << change.text << ", " << change.key;
  }
  auto rprop = Optimizer::Parse("rprop");
  ASSERT_TRUE(rprop.ok());
  EXPECT_EQ(rprop->Set("etaplus", 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*rprop->Get("etaplus"), 1.2);
}

TEST(OptimizerTest, ChoicesAreNamesInTheText) {
  const auto optimizer = Optimizer::Parse("adamw?states=bf16&profile=apex");
  ASSERT_TRUE(optimizer.ok()) << optimizer.status().ToString();
  EXPECT_THAT(optimizer->ToString(), HasSubstr("&profile=apex&states=bf16"));
  const auto again = Optimizer::Parse(optimizer->ToString());
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->ToString(), optimizer->ToString());
  EXPECT_EQ(again->hypers(), optimizer->hypers());
  EXPECT_EQ(again->formula(), Formula::kAdamWApex);
}

TEST(OptimizerTest, UnknownChoicesAreNamedWithTheKnown) {
  EXPECT_THAT(
      MessageOf("adamw?profile=fast"),
      AllOf(HasSubstr("adamw: "), HasSubstr("profile='fast'"),
            HasSubstr("torch, apex, deepspeed_cpu, llmc, llmc_cpu, ggml")));
  EXPECT_THAT(
      MessageOf("adam?states=fp8"),
      AllOf(HasSubstr("states='fp8'"), HasSubstr("allowed: f32, bf16, q8")));
  // An index is not a name, and part of a name is none either.
  EXPECT_THAT(MessageOf("adamw?profile=1"), HasSubstr("profile='1'"));
  EXPECT_THAT(MessageOf("adamw?profile="), HasSubstr("profile=''"));
  EXPECT_THAT(MessageOf("adamw?profile=ape"), HasSubstr("profile='ape'"));
  EXPECT_THAT(MessageOf("sgd?profile=torch"), HasSubstr("'profile'"));
}

TEST(OptimizerTest, StatesDecideAboutTheirDType) {
  const struct {
    const char* text;
    DType dtype;
  } kCases[] = {
      {"adamw", DType::kF32},
      {"adamw?states=f32", DType::kF32},
      {"adamw?states=bf16", DType::kBF16},
      {"adamw?states=q8", DType::kQ8},
      {"adam?states=bf16&amsgrad=1", DType::kBF16},
      {"adam?states=q8&profile=deepspeed_cpu", DType::kQ8},
      {"sgd?momentum=0.9", DType::kF32},
      {"lion", DType::kF32},
  };
  for (const auto& expected : kCases) {
    const auto optimizer = Optimizer::Parse(expected.text);
    ASSERT_TRUE(optimizer.ok()) << optimizer.status().ToString();
    EXPECT_EQ(optimizer->state_dtype(), expected.dtype) << expected.text;
  }
}

TEST(OptimizerTest, ChoicesCannotChange) {
  auto optimizer = Optimizer::Parse("adamw?profile=llmc&states=bf16");
  ASSERT_TRUE(optimizer.ok());
  EXPECT_EQ(*optimizer->Get("profile"), AdamMoments::kLlmc);
  const Status changed = optimizer->Set("profile", AdamMoments::kTorch);
  EXPECT_EQ(changed.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(changed.message(), HasSubstr("profile is llmc"));
  EXPECT_EQ(optimizer->Set("profile", 77).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(optimizer->Set("states", 0).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(*optimizer->Get("profile"), AdamMoments::kLlmc);
  EXPECT_EQ(optimizer->state_dtype(), DType::kBF16);
  // The current value can be set again, as a checkpoint does.
  EXPECT_TRUE(optimizer->Set("profile", *optimizer->Get("profile")).ok());
  EXPECT_EQ(optimizer->formula(), Formula::kAdamWLlmc);
}

}  // namespace
}  // namespace shard::optimizer_test
