// SPDX-License-Identifier: Apache-2.0
//
// The parts of gpu_check. Each prints what it found (report.h), and throws what
// the library throws.

#ifndef SHARD_TESTS_GPU_CHECK_PARTS_H_
#define SHARD_TESTS_GPU_CHECK_PARTS_H_

#include <cstdint>
#include <string>

#include "tests/gpu_check/report.h"

namespace shard::gpu_check {

struct Options {
  std::string device = "cuda:0";
  std::string only;  // Checks whose names have this text.
  // Of the bandwidth's tensors in all. A fake of the driver has the time for
  // few.
  std::int64_t elements = kWholeElements;
  Judged judged;
};

// The libraries of the machine, and training on a stream of the host's.
void Load(const Options& options, Report* report);
// The bits of each optimizer's steps are the CPU's.
void Bits(const Options& options, Report* report);
// The bits of several ranks that share the GPU are the CPU's.
void Staged(const Options& options, Report* report);
// The bytes per second of steps, beside those of a copy.
void Bandwidth(const Options& options, Report* report);
// The host's time for a step.
void Overhead(const Options& options, Report* report);
// The bits of steps that are replayed as a CUDA graph are those of plain steps.
void Graphs(const Options& options, Report* report);
// Muon: how far its parameters are from the CPU's, and its steps' time beside
// that of their products.
void MuonSteps(const Options& options, Report* report);
// Offloaded optimizer states: the CPU's bits, and the time of a step by the
// number of threads.
void OffloadedSteps(const Options& options, Report* report);

}  // namespace shard::gpu_check

#endif  // SHARD_TESTS_GPU_CHECK_PARTS_H_
