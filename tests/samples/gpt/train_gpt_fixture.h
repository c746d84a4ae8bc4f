// SPDX-License-Identifier: Apache-2.0
//
// Runs samples/gpt/train_gpt as a program, with ranks that are threads or
// processes, on a small text of its own, and reads its log. Each test has a
// folder of its own. One thread.

#ifndef SHARD_TESTS_SAMPLES_GPT_TRAIN_GPT_FIXTURE_H_
#define SHARD_TESTS_SAMPLES_GPT_TRAIN_GPT_FIXTURE_H_

#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/base/sanitizers.h"

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// The memory of a rank, in KiB.
struct Memory {
  int params;
  int grads;
  int states;
  int transient;
};

inline Memory MemoryOf(const Outcome& outcome) {
  Memory m = {-1, -1, -1, -1};
  const size_t at = outcome.out.find("\nmemory ");
  EXPECT_NE(at, std::string::npos) << outcome.out << outcome.err;
  if (at == std::string::npos) return m;
  EXPECT_EQ(std::sscanf(outcome.out.c_str() + at,
                        "\nmemory  KiB per rank: parameters %d, gradients %d, "
                        "optimizer states %d, transient %d\n",
                        &m.params, &m.grads, &m.states, &m.transient),
            4);
  return m;
}

// Returns the text at the end, which is very nearly a function of all
// parameters.
inline std::string SampleOf(const Outcome& outcome) {
  const size_t begin = outcome.out.find("\n\n");
  const size_t end = outcome.out.rfind("\n\n");
  EXPECT_LT(begin, end) << outcome.out;
  return begin < end ? outcome.out.substr(begin, end - begin) : "";
}

inline std::string ReadFile(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path).rdbuf();
  return bytes.str();
}

class TrainGptTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/train_gpt.XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    // A tenth of it is held out, and read at each validation.
    WriteText(shard::kSanitized ? 1500 : 4000);
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  // Writes words in pseudo-random order, from a congruence: enough text to
  // learn from. A word has about 5 bytes and is a choice of 8, so the best loss
  // is 0.41 nats per byte.
  void WriteText(int words) const {
    const char* const kWords[] = {"shard ", "rank ",  "gradient ", "step ",
                                  "the ",   "reduce", "and ",      "\n"};
    std::ofstream text(folder_ + "/text");
    uint32_t state = 1;
    for (int i = 0; i < words; i++) {
      state = state * 1664525 + 1013904223;
      text << kWords[state >> 29];
    }
  }

  Outcome Run(const std::string& arguments) const {
    return RunCommand("samples/gpt/train_gpt " + arguments);
  }
  Outcome RunProcesses(int ranks, const std::string& arguments) const {
    return RunCommand("tests/samples/gpt/run_ranks " + std::to_string(ranks) +
                      " samples/gpt/train_gpt " + arguments);
  }
  Outcome RunCommand(const std::string& line) const {
    const std::string command =
        line + " >" + folder_ + "/out 2>" + folder_ + "/err";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            ReadFile(folder_ + "/out"), ReadFile(folder_ + "/err")};
  }

  // Returns the last validation loss that the program printed.
  static double ValidationLoss(const Outcome& outcome) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const std::string name = "\nvalidation loss ";
    const size_t at = outcome.out.rfind(name);
    EXPECT_NE(at, std::string::npos) << outcome.out;
    if (at == std::string::npos) return NAN;
    return std::strtod(outcome.out.c_str() + at + name.size(), nullptr);
  }

  // Returns arguments for 50 steps of a tiny model.
  std::string Tiny(const std::string& arguments) const {
    return "--layers 2 --width 16 --heads 2 --context 16 --batch 8 --steps 50 "
           "--warm-up 10 --lr 3e-3 --sample 20 --val-every 25 --text " +
           folder_ + "/text --log " + folder_ + "/log " + arguments;
  }

  // Trains the tiny model and returns the log.
  std::vector<std::string> Train(const std::string& arguments) const {
    return Log(Run(Tiny(arguments)));
  }

  // Returns the complaints in a run's stderr. The plan's warning that it shards
  // less than its stage is one, except in runs that test this.
  std::string Complaints(const std::string& err) const {
    std::string complaints;
    std::istringstream lines(err);
    for (std::string line; std::getline(lines, line);) {
      if (may_keep_whole_ && line.find(" whole: with ") != std::string::npos) {
        continue;
      }
      complaints += line + "\n";
    }
    return complaints;
  }

  // Returns the log's lines, each without the part that depends on the clock.
  // The default number of lines is that of Tiny: 50 steps and 2 validations.
  std::vector<std::string> Log(const Outcome& outcome,
                               size_t count = 52) const {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(Complaints(outcome.err), "");
    EXPECT_THAT(outcome.out, ::testing::HasSubstr("validation loss "));
    std::vector<std::string> lines;
    std::ifstream log(folder_ + "/log");
    for (std::string line; std::getline(log, line);) {
      size_t end = line.find(",\"tokens_per_second\"");
      if (end == std::string::npos) end = line.find(",\"seconds\"");
      EXPECT_NE(end, std::string::npos) << line;
      lines.push_back(line.substr(0, end));
    }
    EXPECT_EQ(lines.size(), count);
    return lines;
  }

  bool may_keep_whole_ = false;

  // Returns the losses in a log, validations among them.
  static std::vector<double> Losses(const std::vector<std::string>& lines) {
    std::vector<double> losses;
    for (const std::string& line : lines) {
      const size_t at = line.find("loss\":");
      EXPECT_NE(at, std::string::npos) << line;
      losses.push_back(std::strtod(line.c_str() + at + 6, nullptr));
    }
    return losses;
  }

  // Expects the same losses except for float sums in another order: 1e-7 per
  // step, which training amplifies.
  static void ExpectSameCurve(const std::vector<std::string>& a,
                              const std::vector<std::string>& b,
                              double tolerance = 1e-4) {
    const std::vector<double> x = Losses(a);
    const std::vector<double> y = Losses(b);
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 0; i < x.size(); i++) {
      EXPECT_NEAR(x[i], y[i], tolerance * std::fabs(x[i])) << a[i] << "\n"
                                                           << b[i];
    }
  }

  std::string folder_;
};

#endif  // SHARD_TESTS_SAMPLES_GPT_TRAIN_GPT_FIXTURE_H_
