// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/options.h"

#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace options_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns "" on success, or else the message.
std::string Parse(options* parsed, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "train_gpt");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  char message[512] = "";
  const bool ok = options_parse(parsed, static_cast<int>(argv.size()),
                                argv.data(), message, sizeof(message));
  EXPECT_EQ(ok, message[0] == '\0') << message;
  return message;
}

std::string Error(const std::vector<std::string>& arguments) {
  options parsed;
  return Parse(&parsed, arguments);
}

TEST(OptionsTest, DefaultsAreConsistent) {
  options parsed;
  ASSERT_EQ(Parse(&parsed, {}), "");
  EXPECT_EQ(parsed.model.width % parsed.model.heads, 0);
  EXPECT_EQ(parsed.batch % 4, 0);
  EXPECT_EQ(parsed.stage, 1);
  EXPECT_STREQ(parsed.wrap, "block");
  EXPECT_EQ(parsed.prefetch, 1);
  EXPECT_EQ(parsed.hybrid, 0);
  EXPECT_FALSE(parsed.overlap);
  EXPECT_FALSE(parsed.deterministic);
  EXPECT_FALSE(parsed.no_shared_memory);
  EXPECT_STREQ(parsed.device, "cpu");
  EXPECT_STREQ(parsed.partition, "even");
  EXPECT_STREQ(parsed.text, "/usr/share/common-licenses");
  EXPECT_EQ(parsed.log, nullptr);
  EXPECT_EQ(parsed.save, nullptr);
  EXPECT_EQ(parsed.save_every, 0);
  EXPECT_EQ(parsed.keep, 0);
  EXPECT_EQ(parsed.resume, nullptr);
  EXPECT_EQ(parsed.export_path, nullptr);
  EXPECT_EQ(parsed.rank_threads, 0);
  EXPECT_FALSE(parsed.help);
  EXPECT_FALSE(parsed.check);
  EXPECT_FALSE(parsed.capture);
}

TEST(OptionsTest, ReadsBothSpellingsOfAValue) {
  options parsed;
  ASSERT_EQ(Parse(&parsed, {"--layers", "3", "--lr=1e-4", "--min-lr", "5e-5",
                            "--seed=18446744073709551615", "--check"}),
            "");
  EXPECT_EQ(parsed.model.layers, 3);
  EXPECT_EQ(parsed.lr, 1e-4);
  EXPECT_EQ(parsed.min_lr, 5e-5);
  EXPECT_EQ(parsed.seed, UINT64_MAX);
  EXPECT_TRUE(parsed.check);
}

TEST(OptionsTest, ReadsHowTensorsAreShardedAndSent) {
  // The options keep pointers into argv, which has to outlive them.
  char program[] = "train_gpt", wrap[] = "--wrap=size?min_numel=5000",
       stage[] = "--stage=3", hybrid[] = "--hybrid=2",
       prefetch[] = "--prefetch=0", overlap[] = "--overlap",
       deterministic[] = "--deterministic", unshared[] = "--no-shared-memory",
       device[] = "--device=cpu-async";
  char* const argv[] = {program, wrap,          stage,    hybrid, prefetch,
                        overlap, deterministic, unshared, device};
  options parsed;
  char message[512] = "";
  ASSERT_TRUE(options_parse(&parsed, 9, argv, message, sizeof(message)))
      << message;
  EXPECT_STREQ(parsed.wrap, "size?min_numel=5000");
  EXPECT_EQ(parsed.stage, 3);
  EXPECT_EQ(parsed.hybrid, 2);
  EXPECT_EQ(parsed.prefetch, 0);
  EXPECT_TRUE(parsed.overlap);
  EXPECT_TRUE(parsed.deterministic);
  EXPECT_TRUE(parsed.no_shared_memory);
  EXPECT_STREQ(parsed.device, "cpu-async");
}

TEST(OptionsTest, TheLeastLearningRateFollowsThePeak) {
  options parsed;
  ASSERT_EQ(Parse(&parsed, {}), "");
  EXPECT_DOUBLE_EQ(parsed.min_lr, parsed.lr / 20);
  ASSERT_EQ(Parse(&parsed, {"--lr", "1e-4"}), "");
  EXPECT_DOUBLE_EQ(parsed.min_lr, 5e-6);
  ASSERT_EQ(Parse(&parsed, {"--lr", "1e-12"}), "");
  EXPECT_GT(parsed.min_lr, 0);
  ASSERT_EQ(Parse(&parsed, {"--min-lr", "3e-5", "--lr", "1e-4"}), "");
  EXPECT_EQ(parsed.min_lr, 3e-5);
  ASSERT_EQ(Parse(&parsed, {"--min-lr", "0"}), "");
  EXPECT_EQ(parsed.min_lr, 0);
}

TEST(OptionsTest, TheLastOneCounts) {
  options parsed;
  ASSERT_EQ(Parse(&parsed, {"--steps", "3", "--steps", "4"}), "");
  EXPECT_EQ(parsed.steps, 4);
}

TEST(OptionsTest, ZeroTurnsOff) {
  options parsed;
  ASSERT_EQ(Parse(&parsed, {"--clip", "0", "--val-every=0", "--sample=0",
                            "--weight-decay", "0", "--warm-up", "0"}),
            "");
  EXPECT_EQ(parsed.clip, 0);
  EXPECT_EQ(parsed.val_every, 0);
}

TEST(OptionsTest, NamesWhatItDoesNotKnow) {
  EXPECT_THAT(Error({"--laers", "3"}), HasSubstr("unknown option \"--laers\""));
  EXPECT_THAT(Error({"--layer=3"}), HasSubstr("unknown option \"--layer=3\""));
  EXPECT_THAT(Error({"-n"}), HasSubstr("unknown option \"-n\""));
  EXPECT_THAT(Error({"--"}), HasSubstr("unknown option \"--\""));
  EXPECT_THAT(Error({"text.txt"}), HasSubstr("unknown argument \"text.txt\""));
  EXPECT_THAT(Error({""}), HasSubstr("unknown argument \"\""));
}

TEST(OptionsTest, NamesOptionAndValueOfABadNumber) {
  for (const char* option : {"--layers", "--steps", "--lr", "--clip", "--seed",
                             "--timeout", "--rank-threads"}) {
    for (const char* value : {"", "x", "3x", "0x10", " 3", "3 ", "--steps",
                              "nan", "inf", ".", "+", "e"}) {
      EXPECT_THAT(Error({option, value}),
                  AllOf(HasSubstr(std::string(option) + ":"),
                        HasSubstr("\"" + std::string(value) + "\"")))
          << option;
    }
  }
  EXPECT_THAT(Error({"--layers", "1.5"}), HasSubstr("\"1.5\""));
  EXPECT_THAT(Error({"--seed", "-1"}), HasSubstr("\"-1\""));
  EXPECT_THAT(Error({"--seed", "18446744073709551616"}), HasSubstr("--seed"));
}

TEST(OptionsTest, NamesTheRangeThatAValueIsNotIn) {
  EXPECT_THAT(
      Error({"--layers", "0"}),
      AllOf(HasSubstr("--layers"), HasSubstr("\"0\""), HasSubstr("1..64")));
  EXPECT_THAT(Error({"--batch=-4"}), HasSubstr("\"-4\""));
  EXPECT_THAT(Error({"--steps", "99999999999999999999"}),
              HasSubstr("99999999999999999999"));
  EXPECT_THAT(Error({"--stage", "4"}), HasSubstr("0..3"));
  EXPECT_THAT(Error({"--prefetch", "65"}), HasSubstr("0..64"));
  EXPECT_THAT(Error({"--lr", "0"}), HasSubstr("--lr: \"0\""));
  EXPECT_THAT(Error({"--min-lr", "-1"}), HasSubstr("--min-lr: \"-1\""));
  EXPECT_THAT(Error({"--lr", "1e400"}), HasSubstr("1e400"));
  EXPECT_THAT(Error({"--timeout", "0"}), HasSubstr("--timeout"));
  EXPECT_THAT(Error({"--timeout", "1e400"}), HasSubstr("--timeout"));
  // Such a timeout never ends.
  EXPECT_EQ(Error({"--timeout", "9.3e9"}), "");
  EXPECT_EQ(Error({"--timeout", "1e300"}), "");
}

TEST(OptionsTest, ListsTheWordsThatAreAllowed) {
  // The options keep pointers into argv, which has to outlive them.
  char program[] = "train_gpt", optimizer[] = "--optimizer=muon",
       states[] = "--states", q8[] = "q8";
  char* const argv[] = {program, optimizer, states, q8};
  options parsed;
  char message[512] = "";
  ASSERT_TRUE(options_parse(&parsed, 4, argv, message, sizeof(message)))
      << message;
  EXPECT_STREQ(parsed.optimizer, "muon");
  EXPECT_STREQ(parsed.states, "q8");
  EXPECT_EQ(Error({"--optimizer", "adam"}),
            "--optimizer: \"adam\" is none of adamw|muon");
  EXPECT_EQ(Error({"--states", "f32|bf16"}),
            "--states: \"f32|bf16\" is none of f32|bf16|q8");
  EXPECT_EQ(Error({"--partition", "evenly"}),
            "--partition: \"evenly\" is none of even|greedy");
}

TEST(OptionsTest, NamesBothSidesOfWhatDoesNotFit) {
  EXPECT_THAT(Error({"--width", "100", "--heads", "3"}),
              AllOf(HasSubstr("--width: 100"), HasSubstr("--heads 3")));
  EXPECT_THAT(Error({"--lr", "1e-4", "--min-lr", "1e-3"}),
              AllOf(HasSubstr("0.001"), HasSubstr("0.0001")));
  EXPECT_THAT(Error({"--batch", "10", "--rank-threads", "4"}),
              AllOf(HasSubstr("--batch: 10"), HasSubstr("4 ranks")));
  EXPECT_EQ(Error({"--hybrid", "2", "--stage", "2"}),
            "--hybrid: 2 needs --stage 3, not 2");
  EXPECT_EQ(Error({"--save-every", "5"}), "--save-every: 5 needs --save");
  EXPECT_EQ(Error({"--keep", "2"}), "--keep: 2 needs --save");
  EXPECT_EQ(Error({"--export", "m"}), "--export: \"m\" needs --save");
  for (const char* path : {"m", "m.bin", "m.safetensors/x", "safetensors"}) {
    EXPECT_EQ(
        Error({"--save", "d", "--export", path}),
        "--export: \"" + std::string(path) + "\" does not end in .safetensors");
  }
  EXPECT_THAT(Error({"--partition", "odd"}),
              AllOf(HasSubstr("--partition"), HasSubstr("\"odd\"")));
}

TEST(OptionsTest, AGraphIsOfOneRankOnAGpu) {
  for (const char* device : {"cuda", "cuda:1", "cuda?offload=states"}) {
    EXPECT_EQ(Error({"--capture", "--device", device}), "");
  }
  EXPECT_EQ(Error({"--capture", "--device=cuda", "--rank-threads=1"}), "");
  for (const char* device : {"cpu", "cpu-async?max_delay=1"}) {
    EXPECT_EQ(Error({"--capture", "--device", device}),
              "--capture: \"" + std::string(device) +
                  "\" has no CUDA graphs; give --device cuda, or leave "
                  "--capture out");
  }
  EXPECT_EQ(Error({"--capture", "--device=cuda", "--rank-threads=4"}),
            "--capture: runs on one rank, not on 4; leave --rank-threads or "
            "--capture out");
  EXPECT_EQ(Error({"--capture", "--device=cuda", "--check"}),
            "--capture: --check makes no steps; leave one of them out");
}

TEST(OptionsTest, NamesAnOptionWithoutItsValue) {
  EXPECT_THAT(Error({"--text"}), HasSubstr("--text: a value is missing"));
  EXPECT_THAT(Error({"--text="}), HasSubstr("--text: \"\" must not be empty"));
  EXPECT_THAT(Error({"--help=yes"}),
              AllOf(HasSubstr("--help"), HasSubstr("\"yes\"")));
}

TEST(OptionsTest, HelpNamesEveryOption) {
  char* text = nullptr;
  size_t size = 0;
  FILE* out = open_memstream(&text, &size);
  options_print_help(out);
  fclose(out);
  const std::string help(text, size);
  free(text);
  for (const char* name : {"--layers",       "--width",
                           "--heads",        "--context",
                           "--batch",        "--steps",
                           "--lr",           "--min-lr",
                           "--warm-up",      "--weight-decay",
                           "--stage",        "--partition",
                           "--optimizer",    "--states",
                           "--clip",         "--seed",
                           "--text",         "--val-every",
                           "--rank-threads", "--log",
                           "--save",         "--save-every",
                           "--keep",         "--resume",
                           "--export",       "--sample",
                           "--check",        "--timeout",
                           "--help",         "--wrap",
                           "--prefetch",     "--overlap",
                           "--hybrid",       "--deterministic",
                           "--device",       "--no-shared-memory"}) {
    EXPECT_THAT(help, HasSubstr(name));
  }
  // Each line fits the width of a terminal.
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u) << line;
  }
}

}  // namespace
}  // namespace options_test
