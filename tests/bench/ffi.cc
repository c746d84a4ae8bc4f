// SPDX-License-Identifier: Apache-2.0
//
// The price of a language: whole training steps by a program in C, C++, Rust,
// Go and Python (tests/bench/languages), each with the SDK of its language,
// over those of the program in C. A second process of the C program stands
// beside them: its ratio is the noise.
//
// All train the same model by the same plan, which this program makes, on one
// rank: 148 tensors of a GPT of 12 blocks, 25 M elements, fp32 AdamW, a unit
// per block. A step is 510 calls: each unit is acquired and released in a
// forward and a backward pass, each parameter is seen in both, and each
// gradient in the second; Python sees all tensors of a unit in one call. There
// is no computation between the calls: the loss is half the square of each
// parameter's first element, so that its gradient is that element, and the
// update is all that takes time. With a real model, the ratios are closer to 1.
// The losses must be the same to the bit.
//
// The programs take turns, each first in some rounds. They are started several
// times: where the memory of a process lies makes it faster or slower for as
// long as it runs. Ratios are medians over all rounds.

#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/plan_file/plan_file.h"
#include "tests/bench/bench.h"
#include "tests/bench/blocks.h"
#include "tests/bench/peer.h"

namespace shard::bench {
namespace {

constexpr Gpt2Size kSize = {8192, 512, 384, 12};
constexpr int kStarts = 5;
constexpr int kRounds = 10;

struct Language {
  const char* name;
  const char* ratio;
  std::vector<std::string> command;
  std::vector<double> milliseconds = {};
  std::vector<double> ratios = {};
};

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "ffi: %s\n", message.c_str());
  std::exit(1);
}

// A file that ends with this object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::vector<std::byte>& bytes) {
    const int fd = mkstemp(path_.data());
    if (fd < 0) Die("cannot create a file in /tmp");
    close(fd);
    std::ofstream file(path_, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) Die(StrCat("cannot write ", path_));
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { unlink(path_.c_str()); }

  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/shard-bench-plan-XXXXXX";
};

// Runs all languages, of which the first is C, for some rounds. Returns false,
// after a message, when there is nothing to compare.
bool RunRounds(std::vector<Language>* languages) {
  std::vector<std::optional<Peer>> peers;
  for (const Language& language : *languages) {
    peers.push_back(Peer::Start(language.command, 1));
    if (!peers.back()) {
      std::fprintf(stderr,
                   "ffi: the program in %s did not start: %s is not "
                   "measured\n",
                   language.name, language.ratio);
    }
  }
  if (!peers[0]) return false;
  const size_t count = languages->size();
  // Returns an answer that is no number when the program has ended.
  const auto ask = [&](size_t i, const char* what) {
    return peers[i]->Go(what).value_or(std::nan(""));
  };
  for (int round = -1; round < kRounds; ++round) {
    std::vector<double> took(count);
    for (size_t turn = 0; turn < count; ++turn) {
      const size_t i = (turn + static_cast<size_t>(round + 1)) % count;
      if (peers[i]) took[i] = ask(i, "train");
    }
    for (size_t i = 0; i < count; ++i) {
      if (!peers[i] || round < 0) continue;  // Memory is new.
      (*languages)[i].milliseconds.push_back(took[i]);
      (*languages)[i].ratios.push_back(took[i] / took[0]);
    }
  }
  const double loss = ask(0, "loss");
  for (size_t i = 1; i < count; ++i) {
    if (!peers[i] || ask(i, "loss") == loss) continue;
    std::fprintf(stderr, "ffi: the program in %s ended, or has another loss\n",
                 (*languages)[i].name);
    return false;
  }
  return true;
}

int Main(const std::string& program) {
  const std::string runfiles = program + ".runfiles/libshard/";
  const std::string folder = runfiles + "tests/bench/languages/";
  setenv("LD_LIBRARY_PATH", (runfiles + "api").c_str(), 1);
  setenv("PYTHONPATH", (runfiles + "sdk/python").c_str(), 1);
  PlanOptions options;
  options.world_size = 1;
  const TemporaryFile plan(
      Require(EncodePlan(*BlockPlan(kSize, std::move(options)))));
  std::vector<Language> languages = {
      {"C", "c_over_c", {folder + "step_c"}},
      {"C", "c_over_c", {folder + "step_c"}},
      {"C++", "cpp_over_c", {folder + "step_cc"}},
      {"Rust", "rust_over_c", {folder + "step_rs"}},
      {"Go", "go_over_c", {folder + "step_go"}},
      // Debian's interpreter has Debian's python3-numpy.
      {"Python", "python_over_c", {"/usr/bin/python3", folder + "step.py"}},
  };
  for (Language& language : languages) {
    language.command.push_back(plan.path());
  }
  for (int start = 0; start < kStarts; ++start) {
    if (!RunRounds(&languages)) return 1;
  }
  constexpr double kSteps = 4;  // Steps in each answer.
  Bench("ffi", "c_step_ms", Median(languages[0].milliseconds) / kSteps, "ms");
  for (size_t i = 1; i < languages.size(); ++i) {
    if (languages[i].ratios.empty()) continue;
    Bench("ffi", languages[i].ratio, Median(languages[i].ratios), "x");
  }
  return 0;
}

}  // namespace
}  // namespace shard::bench

int main(int, char** argv) { return shard::bench::Main(argv[0]); }
