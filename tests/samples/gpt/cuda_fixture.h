// SPDX-License-Identifier: Apache-2.0
//
// Runs samples/gpt/train_gpt on the fakes of NVIDIA's driver and of cuBLAS. The
// fake complains at a program's end where work had no order, or where something
// is not freed.

#ifndef SHARD_TESTS_SAMPLES_GPT_CUDA_FIXTURE_H_
#define SHARD_TESTS_SAMPLES_GPT_CUDA_FIXTURE_H_

#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/samples/gpt/train_gpt_fixture.h"

class CudaTest : public TrainGptTest {
 protected:
  void SetUp() override {
    TrainGptTest::SetUp();
    WriteText(1200);  // Validations are short.
  }

  // Runs the program where it finds the fakes of the driver and of cuBLAS,
  // after the files of Hide.
  Outcome RunOnFake(const std::string& arguments,
                    const std::string& environment = "") const {
    const Outcome outcome = RunCommand(
        "env SHARD_FAKE_CUDA_STRICT=1 "
        "LD_LIBRARY_PATH=\"" +
        folder_ +
        ":$PWD/api:$PWD/tests/samples/gpt/fake_cuda:"
        "$PWD/tests/fake_cuda\" " +
        "SHARD_FAKE_CUDA_COUNTS=" + folder_ + "/counts " + environment +
        " samples/gpt/train_gpt " + arguments);
    EXPECT_THAT(
        outcome.err,
        ::testing::Not(::testing::HasSubstr("FAILED: fake CUDA driver")));
    return outcome;
  }

  // Returns how often the last program called a function of the driver or of
  // cuBLAS.
  int CallsOf(const std::string& function) const {
    std::ifstream counts(folder_ + "/counts");
    std::string name;
    for (int count = 0; counts >> name >> count;) {
      if (name == function) return count;
    }
    return 0;
  }

  // Returns arguments for 20 steps of a model with so many blocks that two
  // ranks shard them.
  std::string Short(const std::string& arguments) const {
    return Tiny(
        "--layers 6 --width 32 --context 8 --batch 4 --steps 20 --val-every 10 "
        "--timeout 20 " +
        arguments);
  }
  // 20 steps and 2 validations.
  std::vector<std::string> ShortLog(const Outcome& outcome) const {
    return Log(outcome, 22);
  }
  // Returns arguments for 4 steps of the same, and a validation.
  std::string Brief(const std::string& arguments) const {
    return Short("--steps 4 --warm-up 2 --val-every 0 --sample 0 " + arguments);
  }
  std::vector<std::string> BriefLog(const Outcome& outcome) const {
    return Log(outcome, 5);
  }

  // Writes a file that the loader finds before libraries of its name, and
  // refuses.
  void Hide(const std::string& library) const {
    std::ofstream(folder_ + "/" + library) << std::string(4096, '\0');
  }
};

#endif  // SHARD_TESTS_SAMPLES_GPT_CUDA_FIXTURE_H_
