// SPDX-License-Identifier: Apache-2.0
//
// How gpu_check judges what it has measured: numbers in, checks that hold or
// not out. The numbers of gpu_check_test are those of a fake, which are not
// judged.

#include "tests/gpu_check/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace shard::gpu_check {
namespace {

// Returns the lines that a judgement prints, and whether the part is good.
struct Judgement {
  std::string lines;
  bool ok;
};
Judgement Judge(double value, double least, double most) {
  ::testing::internal::CaptureStdout();
  Report report("offload");
  report.Judge("hidden", value, "of the step", least, most);
  return {::testing::internal::GetCapturedStdout(), report.ok()};
}

TEST(JudgeTest, ANumberWithinItsBoundsHolds) {
  for (const double value : {0.8, 0.9375, 1.0}) {
    const Judgement judged = Judge(value, 0.8, 0);
    EXPECT_TRUE(judged.ok) << value;
    EXPECT_EQ(judged.lines,
              R"({"part":"offload","check":"hidden is at least 0.800000 of )"
              R"(the step","ok":true})"
              "\n");
  }
  EXPECT_TRUE(Judge(1.25, 0, 1.25).ok);
  EXPECT_TRUE(Judge(1, 0.5, 1.5).ok);
}

TEST(JudgeTest, ANumberOutsideOfThemFailsAndIsSaid) {
  for (const double value : {0.79, 0.0, -0.1}) {
    const Judgement judged = Judge(value, 0.8, 0);
    EXPECT_FALSE(judged.ok) << value;
    EXPECT_EQ(judged.lines,
              R"({"part":"offload","check":"hidden is at least 0.800000 of )"
              R"(the step","ok":false,"why":")" +
                  std::to_string(value) + "\"}\n");
  }
  EXPECT_FALSE(Judge(1.26, 0, 1.25).ok);
  EXPECT_FALSE(Judge(0.4, 0.5, 1.5).ok);
  EXPECT_FALSE(Judge(1.6, 0.5, 1.5).ok);
}

TEST(JudgeTest, WhatIsNoNumberFails) {
  EXPECT_FALSE(Judge(NAN, 0.8, 0).ok);
  EXPECT_FALSE(Judge(NAN, 0, 1.25).ok);
}

TEST(JudgeTest, WithoutBoundsNothingIsJudged) {
  const Judgement judged = Judge(NAN, 0, 0);
  EXPECT_TRUE(judged.ok);
  EXPECT_EQ(judged.lines, "");
}

// One check that fails is not mended by those that follow.
TEST(JudgeTest, APartIsAsGoodAsItsWorstNumber) {
  ::testing::internal::CaptureStdout();
  Report report("offload");
  report.Judge("a", 0.7, "of the step", 0.8, 0);
  report.Judge("b", 0.9, "of the step", 0.8, 0);
  ::testing::internal::GetCapturedStdout();
  EXPECT_FALSE(report.ok());
}

// A pass of 2 s and a step of 1 s.
TEST(HiddenShareTest, IsWhatBothTogetherSave) {
  EXPECT_DOUBLE_EQ(HiddenShare(2, 1, 2), 1);
  EXPECT_DOUBLE_EQ(HiddenShare(2, 1, 2.0625), 0.9375);
  EXPECT_DOUBLE_EQ(HiddenShare(2, 1, 2.5), 0.5);
  EXPECT_DOUBLE_EQ(HiddenShare(2, 1, 3), 0);
  EXPECT_LT(HiddenShare(2, 1, 3.5), 0);
}

TEST(WhatIsJudgedTest, SpeedsOfKnownGpusAndHiddenPartsOfAll) {
  for (const char* name : {"NVIDIA H100 80GB HBM3, sm_90", "NVIDIA H200"}) {
    const Judged judged = WhatIsJudged(name, kWholeElements);
    EXPECT_TRUE(judged.speeds) << name;
    EXPECT_TRUE(judged.hidden) << name;
  }
  for (const char* name :
       {"NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090"}) {
    const Judged judged = WhatIsJudged(name, kWholeElements);
    EXPECT_FALSE(judged.speeds) << name;
    EXPECT_TRUE(judged.hidden) << name;
  }
}

TEST(WhatIsJudgedTest, NothingOfTensorsThatAreTooSmall) {
  const Judged judged = WhatIsJudged("NVIDIA H100", kWholeElements - 1);
  EXPECT_FALSE(judged.speeds);
  EXPECT_FALSE(judged.hidden);
}

}  // namespace
}  // namespace shard::gpu_check
