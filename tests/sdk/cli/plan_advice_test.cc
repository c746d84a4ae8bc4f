// SPDX-License-Identifier: Apache-2.0
//
// What `shardctl plan` promises where nothing fits: the same command with the
// options that it names has a plan that fits, and where it names none, no stage
// does, with offload or without.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "tests/sdk/cli/plan_testing.h"

namespace shardctl_testing::plan_advice_test {
namespace {

using PlanAdviceTest = PlanFixture;
using Words = std::vector<std::string>;

// Splits as a shell does.
Words SplitWords(const std::string& text) {
  Words words(1);
  bool quoted = false;
  for (const char c : text) {
    if (c == '\'') {
      quoted = !quoted;
    } else if (c == ' ' && !quoted) {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  EXPECT_FALSE(quoted) << text;
  return words;
}

// Takes an option with its value, if it has one, out of a command.
void Remove(const std::string& option, Words* command) {
  const auto at = std::find(command->begin(), command->end(), option);
  if (at == command->end()) return;
  const bool has_value =
      at + 1 != command->end() && !(at + 1)->starts_with("--");
  command->erase(at, at + (has_value ? 2 : 1));
}

// Returns a command with what an advice names: "--ranks 8 --stages 3 without
// --whole-grads".
Words With(const std::string& advice, Words command) {
  const Words words = SplitWords(advice);
  bool without = false;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "without") {
      without = true;
      continue;
    }
    EXPECT_TRUE(words[i].starts_with("--")) << advice;
    Remove(words[i], &command);
    if (without) continue;
    EXPECT_LT(i + 1, words.size()) << advice;
    command.insert(command.end(), {words[i], words[i + 1]});
    ++i;
  }
  return command;
}

std::string TextOf(const Words& command) {
  std::string text;
  for (const std::string& word : command) text += " " + word;
  return text;
}

// Commands of 5 MiB of elements, of which most take 80 MiB, without --memory.
std::vector<Words> Commands() {
  const Words host = {"--device", "cuda", "--host-memory", "48MiB",
                      "--ranks-per-host"};
  const auto with_host = [&](Words more) {
    more.insert(more.begin(), host.begin(), host.end());
    return more;
  };
  return {
      {"--ranks", "1", "--stages", "1"},
      {"--ranks", "4", "--stages", "1", "--wrap", "class?names=Block"},
      {"--ranks", "4", "--stages", "3"},
      {"--ranks", "4", "--stages", "3", "--wrap", "always", "--whole-grads",
       "--keep-after-forward"},
      {"--ranks", "4", "--stages", "2", "--dtype", "bf16", "--f32-grads",
       "--deterministic"},
      {"--ranks", "1", "--stages", "1", "--dtype", "f16", "--optimizer",
       "sgd?momentum=0.9"},
      {"--ranks", "4", "--stages", "1", "--device", "cuda"},
      {"--ranks", "2", "--stages", "1", "--optimizer", "muon", "--device",
       "cuda:1?collectives=nccl"},
      with_host({"1", "--ranks", "1", "--stages", "1"}),
      with_host({"2", "--ranks", "4", "--stages", "1", "--wrap", "always"}),
      {"--device", "cuda?offload=states", "--host-memory", "48MiB",
       "--ranks-per-host", "1", "--ranks", "1", "--stages", "1"},
  };
}

TEST_F(PlanAdviceTest, TheOptionsThatItNamesFit) {
  size_t named = 0;
  size_t without = 0;
  for (const Words& base : Commands()) {
    for (const char* const memory :
         {"5MiB", "12MiB", "24MiB", "36MiB", "54MiB"}) {
      Words command = base;
      command.insert(command.end(), {"--memory", memory});
      SCOPED_TRACE(TextOf(command));
      Words as_json = command;
      as_json.push_back("--json");
      const Result result = Plan(as_json);
      const Json json = Json::parse(result.out);
      ASSERT_EQ(result.code == 0, json["advice"].is_null()) << result.error;
      if (result.code == 0) continue;
      bool shards = false;
      for (const std::string advice : json["advice"]["options"]) {
        ++named;
        shards |=
            advice.starts_with("--stages ") || advice.starts_with("--device ");
        const Result fits = Plan(With(advice, command));
        EXPECT_EQ(fits.code, 0) << advice << "\n" << fits.out << fits.error;
      }
      // A plan that fits with offload alone is found by the command, too.
      for (const char* const stage : {"1", "2", "3"}) {
        if (shards) break;
        ++without;
        EXPECT_EQ(Plan(With(std::string("--stages ") + stage, command)).code, 1)
            << stage;
      }
    }
  }
  EXPECT_GT(named, 15u);
  EXPECT_GT(without, 10u);
}

}  // namespace
}  // namespace shardctl_testing::plan_advice_test
