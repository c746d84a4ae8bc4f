// SPDX-License-Identifier: Apache-2.0
//
// The control of the fake in programs that are not linked with fake_nccl.h, and
// in processes that a test starts:
//
//   SHARD_FAKE_NCCL_VERSION=22703
//   SHARD_FAKE_NCCL_POLLS=init:0,split:0,finalize:0,window:0,collective:2,group:2
//   SHARD_FAKE_NCCL_FAIL=SYMBOL:CALL:RESULT,...   as FailCall, with RESULT in
//                                                 numbers; an empty SYMBOL: any
//   SHARD_FAKE_NCCL_STICK=COLLECTIVE              as StickAt
//   SHARD_FAKE_NCCL_FAIL_ASYNC=COLLECTIVE:RESULT  as FailAsyncAt
//   SHARD_FAKE_NCCL_SWAP=LAUNCH                   as SwapAt
//   SHARD_FAKE_NCCL_KILL=RANK,...                 as Kill
//   SHARD_FAKE_NCCL_HANG=SYMBOL,...               as HangCalls, for ever
//   SHARD_FAKE_NCCL_DEADLINE=MILLISECONDS
//   SHARD_FAKE_NCCL_CALL_DELAY=MICROSECONDS
//   SHARD_FAKE_NCCL_RANK_ORDER=1  as Options::sums_in_rank_order
//   SHARD_FAKE_NCCL_STRICT=1    The process fails at its end where there are
//                               violations, or something is alive.
//   SHARD_FAKE_NCCL_COUNTS=FILE Written at the end: "SYMBOL CALLS BYTES", a
//   line
//                               per entry point.
//
// And NCCL's own NCCL_SOCKET_IFNAME, at each call: see interfaces.h.
//
// For what comes after other collectives, such programs find functions by their
// names: void shard_fake_nccl_stick_at(uint64_t collective), as StickAt, and
// uint64_t shard_fake_nccl_await(const char* symbol, uint64_t calls,
// uint64_t milliseconds), which waits at most so long for so many calls of an
// entry point, and returns how many there were.

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/fake_nccl/fake_nccl.h"
#include "tests/fake_nccl/state.h"

namespace shard::testing::fake_nccl {

namespace {

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    parts.push_back(part);
  }
  return parts;
}

// Returns the items of a variable, each in its fields.
std::vector<std::vector<std::string>> Items(const char* name) {
  const char* const text = std::getenv(name);
  std::vector<std::vector<std::string>> items;
  for (const std::string& it : Split(text == nullptr ? "" : text, ',')) {
    items.push_back(Split(it, ':'));
  }
  return items;
}

Result ResultOf(const std::string& text) {
  return static_cast<Result>(std::stoi(text));
}

void ReadOptions(Options* options) {
  for (const auto& it : Items("SHARD_FAKE_NCCL_VERSION")) {
    options->version = std::stoi(it.at(0));
  }
  for (const auto& it : Items("SHARD_FAKE_NCCL_DEADLINE")) {
    options->deadline = std::chrono::milliseconds(std::stoi(it.at(0)));
  }
  for (const auto& it : Items("SHARD_FAKE_NCCL_CALL_DELAY")) {
    options->call_delay = std::chrono::microseconds(std::stoi(it.at(0)));
  }
  options->sums_in_rank_order =
      std::getenv("SHARD_FAKE_NCCL_RANK_ORDER") != nullptr;
  Polls* const polls = &options->polls;
  for (const auto& it : Items("SHARD_FAKE_NCCL_POLLS")) {
    const std::string& name = it.at(0);
    int* const field = name == "init"         ? &polls->init
                       : name == "split"      ? &polls->split
                       : name == "finalize"   ? &polls->finalize
                       : name == "window"     ? &polls->window
                       : name == "collective" ? &polls->collective
                       : name == "group"      ? &polls->group
                                              : nullptr;
    if (field == nullptr) {
      std::fprintf(stderr, "SHARD_FAKE_NCCL_POLLS: no '%s'\n", name.c_str());
      std::abort();
    }
    *field = std::stoi(it.at(1));
  }
}

void ReadFaults() {
  for (const auto& it : Items("SHARD_FAKE_NCCL_FAIL")) {
    FailCall(it.at(0), std::stoull(it.at(1)), ResultOf(it.at(2)));
  }
  for (const auto& it : Items("SHARD_FAKE_NCCL_STICK")) {
    StickAt(std::stoull(it.at(0)));
  }
  for (const auto& it : Items("SHARD_FAKE_NCCL_FAIL_ASYNC")) {
    FailAsyncAt(std::stoull(it.at(0)), ResultOf(it.at(1)));
  }
  for (const auto& it : Items("SHARD_FAKE_NCCL_SWAP")) {
    SwapAt(std::stoull(it.at(0)));
  }
  for (const auto& it : Items("SHARD_FAKE_NCCL_KILL")) {
    Kill(std::stoi(it.at(0)));
  }
  for (const auto& it : Items("SHARD_FAKE_NCCL_HANG")) HangCalls(it.at(0));
}

void WriteCounts(const char* path) {
  std::ofstream file(path);
  const Counts counts = Count();
  for (const auto& [symbol, calls] : counts.calls) {
    file << symbol << ' ' << calls << ' ' << counts.Bytes(symbol) << '\n';
  }
}

struct Environment {
  Environment() {
    State* const state = TheState();
    ReadOptions(&state->options);
    ReadFaults();
  }
  ~Environment() {
    if (const char* const path = std::getenv("SHARD_FAKE_NCCL_COUNTS")) {
      WriteCounts(path);
    }
    if (std::getenv("SHARD_FAKE_NCCL_STRICT") == nullptr) return;
    const std::string wrong = ViolationText() + AliveText();
    if (wrong.empty()) return;
    std::fprintf(stderr, "FAILED: fake NCCL: %s\n", wrong.c_str());
    ::_exit(1);
  }
} environment;

}  // namespace

extern "C" SHARD_FAKE_NCCL_API void shard_fake_nccl_stick_at(
    uint64_t collective) {
  StickAt(collective);
}

extern "C" SHARD_FAKE_NCCL_API uint64_t shard_fake_nccl_await(
    const char* symbol, uint64_t calls, uint64_t milliseconds) {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::milliseconds(milliseconds);
  for (;;) {
    const uint64_t now = Count().Calls(symbol);
    if (now >= calls || std::chrono::steady_clock::now() >= end) return now;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace shard::testing::fake_nccl
