// SPDX-License-Identifier: Apache-2.0

#include "core/optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "tests/core/base/expect_status.h"

namespace shard::loss_scaler_test {
namespace {

LossScaler Parsed(std::string_view text) {
  auto scaler = LossScaler::Parse(text);
  EXPECT_OK(scaler);
  return *std::move(scaler);
}

TEST(LossScaler, NoneIsOneForEver) {
  LossScaler scaler = Parsed("");
  for (int i = 0; i < 5000; ++i) {
    scaler.Update(i % 2 == 0);
    ASSERT_EQ(scaler.scale(), 1);
  }
  EXPECT_EQ(scaler.ToString(), "");
}

TEST(LossScaler, StaticStays) {
  LossScaler scaler = Parsed("static?scale=1024");
  for (int i = 0; i < 5000; ++i) {
    scaler.Update(i % 2 == 0);
    ASSERT_EQ(scaler.scale(), 1024);
  }
  EXPECT_EQ(scaler.ToString(), "static?scale=1024");
}

TEST(LossScaler, DefaultsAreTorchs) {
  LossScaler scaler = Parsed("dynamic");
  EXPECT_EQ(scaler.ToString(),
            "dynamic?init_scale=65536&growth_factor=2&backoff_factor=0.5&"
            "growth_interval=2000&min_scale=1&max_scale=16777216");
  for (int i = 1; i < 2000; ++i) {
    scaler.Update(false);
    ASSERT_EQ(scaler.scale(), 65536) << i;
  }
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 131072);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 65536);
}

TEST(LossScaler, GrowsAndBacksOffAsByHand) {
  LossScaler scaler = Parsed(
      "dynamic?init_scale=8&growth_factor=4&backoff_factor=0.25&"
      "growth_interval=3");
  scaler.Update(false);
  scaler.Update(false);
  // The third good step would have grown the scale; a skipped one starts the
  // count anew.
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 2);
  scaler.Update(false);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 2);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 8);
  // The count starts anew after growth as well.
  scaler.Update(false);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 8);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 32);
}

TEST(LossScaler, StaysWithinItsBounds) {
  LossScaler scaler = Parsed("dynamic?growth_interval=1");
  for (int i = 0; i < 40; ++i) scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 0x1p24);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 0x1p23);
  for (int i = 0; i < 40; ++i) scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 1);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 2);
}

// The scale is a normal float, because the host multiplies in fp32.
TEST(LossScaler, TheScaleIsANormalFloat) {
  std::mt19937 generator(1);
  for (const char* text :
       {"dynamic?growth_factor=1.1&backoff_factor=0.7&growth_interval=2",
        "dynamic?init_scale=1000.1&min_scale=0.3&max_scale=3e38&"
        "growth_factor=1e300&backoff_factor=1e-300&growth_interval=1",
        "dynamic?init_scale=1e-37&min_scale=2e-38&growth_factor=3&"
        "growth_interval=5",
        "static?scale=0.1"}) {
    LossScaler scaler = Parsed(text);
    for (int i = 0; i < 1000; ++i) {
      const auto as_float = static_cast<float>(scaler.scale());
      ASSERT_TRUE(std::isnormal(as_float)) << text;
      ASSERT_EQ(static_cast<double>(as_float), scaler.scale()) << text;
      scaler.Update(generator() % 3 == 0);
    }
  }
}

TEST(LossScaler, ContinuesFromItsState) {
  const char* text = "dynamic?growth_interval=7";
  std::mt19937 generator(2);
  LossScaler first = Parsed(text);
  for (int i = 0; i < 500; ++i) {
    LossScaler second = Parsed(text);
    ASSERT_OK(second.Restore(first.state()));
    const bool skipped = generator() % 9 == 0;
    first.Update(skipped);
    second.Update(skipped);
    ASSERT_EQ(first.scale(), second.scale());
    ASSERT_EQ(first.state().good_steps, second.state().good_steps);
  }
  LossScaler fixed = Parsed("static?scale=16");
  EXPECT_OK(fixed.Restore(fixed.state()));
}

TEST(LossScaler, StatesTakeNumbersByTheirNames) {
  LossScaler::State state = {8, 3};
  state.Take("loss_scale.scale", 16);
  state.Take("loss_scale.good_steps", 5);
  state.Take("loss_scale", 1);
  EXPECT_EQ(state.scale, 16);
  EXPECT_EQ(state.good_steps, 5);
  // These are no counts: converted, they would be another number or none.
  for (const double wrong : {-1.0, 1e300, std::nan("")}) {
    state.Take("loss_scale.good_steps", wrong);
    EXPECT_EQ(state.good_steps, 5) << wrong;
  }
}

TEST(LossScaler, ForeignStatesAreErrors) {
  LossScaler scaler = Parsed("dynamic?growth_interval=7&max_scale=131072");
  ExpectInvalid(scaler.Restore({262144, 0}),
                {"262144", "[1, 131072]", "max_scale=131072"});
  ExpectInvalid(scaler.Restore({0.5, 0}), {"0.5", "[1, 131072]"});
  ExpectInvalid(scaler.Restore({1.1, 0}), {"1.1", "fp32"});
  ExpectInvalid(scaler.Restore({std::numeric_limits<double>::quiet_NaN(), 0}),
                {"nan"});
  ExpectInvalid(scaler.Restore({1024, 7}), {"7 good steps", "[0, 7)"});
  ExpectInvalid(scaler.Restore({1024, -1}), {"-1 good steps"});
  EXPECT_EQ(scaler.scale(), 65536);
  EXPECT_EQ(scaler.state().good_steps, 0);
  LossScaler fixed = Parsed("static?scale=16");
  ExpectInvalid(fixed.Restore({32, 0}), {"32", "static?scale=16"});
  ExpectInvalid(fixed.Restore({16, 1}), {"1 good steps"});
  LossScaler none = Parsed("");
  ExpectInvalid(none.Restore({32, 0}), {"32", "option loss_scaling"});
}

TEST(LossScaler, CanonicalTextReadsBack) {
  for (const char* text :
       {"", "static?scale=3", "dynamic?max_scale=1e30&growth_interval=5"}) {
    EXPECT_EQ(Parsed(Parsed(text).ToString()).ToString(),
              Parsed(text).ToString());
  }
}

TEST(LossScaler, WrongTextsAreNamed) {
  const struct {
    const char* text;
    std::initializer_list<std::string_view> parts;
  } kCases[] = {
      {"dynamik", {"'dynamik'", "dynamic, static"}},
      {"dynamic:x", {"unknown loss scaling"}},
      {"static", {"static needs scale"}},
      {"static?scal=2", {"unknown key 'scal'", "scale"}},
      {"static?scale=0", {"scale=0", "["}},
      {"static?scale=-1", {"scale=-1"}},
      {"static?scale=1e39", {"scale=1e+39"}},
      {"static?scale=1e-39", {"scale=1e-39"}},
      {"static?scale=nan", {"scale='nan'"}},
      {"dynamic?scale=2",
       {"unknown key 'scale'",
        "init_scale, growth_factor, backoff_factor, "
        "growth_interval, min_scale, max_scale"}},
      {"dynamic?init_scale=big", {"init_scale='big'"}},
      {"dynamic?init_scale=0.5", {"init_scale=0.5", "[1, 16777216]"}},
      {"dynamic?init_scale=33554432", {"init_scale=33554432"}},
      {"dynamic?growth_factor=1", {"growth_factor=1", "above 1"}},
      {"dynamic?backoff_factor=1", {"backoff_factor=1", "below 1"}},
      {"dynamic?backoff_factor=0", {"backoff_factor=0", "above 0"}},
      {"dynamic?growth_interval=0", {"growth_interval=0", "at least 1"}},
      {"dynamic?growth_interval=2.5", {"growth_interval='2.5'"}},
      {"dynamic?min_scale=0", {"min_scale=0"}},
      {"dynamic?max_scale=1e39", {"max_scale=1e+39"}},
      {"dynamic?min_scale=8&max_scale=4", {"min_scale=8", "4]"}},
  };
  for (const auto& [text, parts] : kCases) {
    SCOPED_TRACE(text);
    ExpectInvalid(LossScaler::Parse(text), parts);
  }
}

}  // namespace
}  // namespace shard::loss_scaler_test
