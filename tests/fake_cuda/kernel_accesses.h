// SPDX-License-Identifier: Apache-2.0
//
// Tells the fake driver what libshard's kernels access, so that it finds
// missing edges around them.

#ifndef SHARD_TESTS_FAKE_CUDA_KERNEL_ACCESSES_H_
#define SHARD_TESTS_FAKE_CUDA_KERNEL_ACCESSES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "kernels/cuda/adafactor.h"
#include "kernels/cuda/casts.h"
#include "kernels/cuda/count.h"
#include "kernels/cuda/fill.h"
#include "kernels/cuda/muon.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/sources.h"
#include "kernels/cuda/update_elements.h"
#include "kernels/cuda/update_tensors.h"
#include "kernels/formula/registry.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace shard::testing {

// The accesses of a launch, as they are added.
class Accesses {
 public:
  void Read(const void* memory, size_t bytes) { Add(memory, bytes, false); }
  void Write(const void* memory, size_t bytes) { Add(memory, bytes, true); }

  void ReadSources(const cuda::Sources& sources, size_t begin, size_t count) {
    if (sources.count > cuda::kInlineSources) {
      Read(sources.table, sources.count * sizeof(*sources.table));
    }
    const size_t bytes = DTypeSize(sources.dtype);
    for (uint32_t w = 0; w < sources.count; ++w) {
      const auto* const source = static_cast<const std::byte*>(sources[w]);
      if (source != nullptr) Read(source + begin * bytes, count * bytes);
    }
  }
  // The scales of 8-bit codes.
  void WriteScales(const float* scales, size_t count) {
    constexpr size_t kBlock = 256;  // Elements that share a scale.
    Write(scales, (count + kBlock - 1) / kBlock * sizeof(*scales));
  }

  std::vector<fake_cuda::Access> Take() { return std::move(all_); }

 private:
  void Add(const void* memory, size_t bytes, bool writes) {
    if (memory != nullptr && bytes != 0)
      all_.push_back({memory, bytes, writes});
  }

  std::vector<fake_cuda::Access> all_;
};

// `meetings`: all sources but one are those of other ranks.
inline void AddAccesses(const cuda::ElementRange& range, Accesses* to,
                        const cuda::PeerMeetings* meetings = nullptr) {
  to->Read(range.slices, range.num_slices * sizeof(*range.slices));
  // The kernel reads one of the two: the block, which says which one, may still
  // be on its way.
  to->Read(range.kept_sum, range.count * DTypeSize(range.sources.dtype));
  if (meetings == nullptr) {
    to->ReadSources(range.sources, 0, range.count);
  } else {
    to->Read(range.sources[meetings->rank],
             range.count * DTypeSize(range.sources.dtype));
    to->Read(range.peer_params, range.num_peers * sizeof(*range.peer_params));
  }
  to->Write(range.param, range.count * DTypeSize(range.param_dtype));
  to->Write(range.master, range.count * sizeof(*range.master));
  for (size_t s = 0; s < kMaxStates; ++s) {
    to->Write(range.states[s], range.count * DTypeSize(range.state_dtype));
    if (range.state_dtype == DType::kQ8) {
      to->WriteScales(range.scales[s], range.count);
    }
  }
}

inline void AddAccesses(const cuda::CountArgs& args, Accesses* to) {
  to->Write(args.count, sizeof(*args.count));
  to->Write(args.copy, sizeof(*args.copy));
}

inline void AddAccesses(const cuda::UpdateElementsArgs& args, Accesses* to) {
  to->Read(args.block, sizeof(*args.block));
  to->Read(args.more, args.num_more * sizeof(*args.more));
  AddAccesses(args.range, to, args.meetings);
  for (uint32_t r = 0; r < args.num_more; ++r) {
    AddAccesses(args.more[r], to, args.meetings);
  }
  if (args.meetings == nullptr) return;
  to->Write(args.meetings, sizeof(*args.meetings));
  to->Read(args.meetings->flags,
           args.meetings->ranks * sizeof(*args.meetings->flags));
}

// What the kernels of one update access together: so the edges around each of
// them are those around the update.
inline void AddAccesses(const cuda::UpdateTensorsArgs& args, Accesses* to) {
  AddAccesses(cuda::UpdateElementsArgs{args.range, nullptr, 0, args.block}, to);
  const cuda::SquareTable& squares = args.squares;
  to->Read(squares.first_groups,
           args.range.num_slices * sizeof(*squares.first_groups));
  to->Write(squares.tiles, args.range.num_tiles * sizeof(*squares.tiles));
  to->Write(squares.groups, squares.num_groups * sizeof(*squares.groups));
}

inline void AddAccesses(const cuda::AdafactorArgs& args, Accesses* to) {
  AddAccesses(args.tensors, to);
  const cuda::MatrixTable& table = args.matrices;
  const uint32_t num_slices = args.tensors.range.num_slices;
  to->Read(table.slices, num_slices * sizeof(*table.slices));
  for (uint32_t i = 0; i < num_slices; ++i) {
    const cuda::MatrixSlice& slice = table.slices[i];
    const uint64_t rows = slice.batches * slice.rows;
    const uint64_t cols = slice.batches * slice.cols;
    const uint64_t elements =
        slice.rows == 0 ? args.tensors.range.slices[i].count : 0;
    const uint64_t of_states[] = {rows, cols, elements};
    for (size_t s = 0; s < Adafactor::kNumStates; ++s) {
      if (of_states[s] == 0) continue;
      to->Write(table.states[s] + slice.state_begins[s],
                of_states[s] * sizeof(float));
    }
    to->Write(table.sums + slice.first_sum,
              slice.batches * slice.sums() * sizeof(double));
    to->Write(table.scales + slice.first_scale, (rows + cols) * sizeof(float));
  }
}

inline void AddAccesses(const cuda::MuonArgs& args, Accesses* to) {
  AddAccesses(args.tensors, to);
  const size_t bytes = args.tensors.range.num_slices * args.stride;
  to->Write(args.directions, bytes);
  to->Write(args.x, bytes);
}

inline void AddAccesses(const cuda::AddToNormArgs& args, Accesses* to) {
  to->Read(args.block, sizeof(*args.block));
  const size_t kept = args.count * DTypeSize(args.sources.dtype);
  if (args.kept != nullptr && args.pass == NormPass::kSecond) {
    to->Read(args.kept, kept);
  } else {
    to->ReadSources(args.sources, 0, args.count);
    // A single source is what is kept.
    if (args.sources.count > 1) to->Write(args.kept, kept);
  }
  to->Write(args.sum, sizeof(*args.sum));
  to->Write(args.scratch, sizeof(*args.scratch));
}

inline void AddAccesses(const cuda::FinishNormArgs& args, Accesses* to) {
  to->Read(args.sums, args.count * sizeof(*args.sums));
  to->Read(args.block, sizeof(*args.block));
  // The half that is not latched.
  to->Write(&args.block->largest,
            sizeof(*args.block) - offsetof(StepBlock, largest));
}

inline void AddAccesses(const cuda::FillArgs& args, Accesses* to) {
  for (uint32_t i = 0; i < args.num_parts; ++i) {
    to->Read(args.parts[i].from, args.parts[i].bytes);
    to->Write(args.parts[i].to, args.parts[i].bytes);
  }
}

inline void AddAccesses(const cuda::SumGradientsArgs& args, Accesses* to) {
  to->ReadSources(args.sources, args.begin, args.count);
  to->Write(args.out, args.count * sizeof(*args.out));
}

inline void AddAccesses(const cuda::SumBlocksArgs& args, Accesses* to) {
  const size_t bytes = args.count * DTypeSize(args.dtype);
  if (args.own != nullptr) to->Read(args.own, bytes);
  to->Read(args.peers, bytes * static_cast<size_t>(args.ranks - 1));
  to->Write(args.recv, args.count * DTypeSize(args.recv_dtype));
}

inline void AddAccesses(const cuda::WidenArgs& args, Accesses* to) {
  to->Read(args.from, args.count * DTypeSize(args.dtype));
  to->Write(args.to, args.count * sizeof(*args.to));
}

inline void AddAccesses(const cuda::NarrowArgs& args, Accesses* to) {
  to->Read(args.from, args.count * sizeof(*args.from));
  to->Write(args.to, args.count * DTypeSize(args.dtype));
}

inline void AddAccesses(const cuda::EncodeQ8Args& args, Accesses* to) {
  to->Read(args.from, args.count * sizeof(*args.from));
  to->Write(args.codes, args.count);
  to->WriteScales(args.scales, args.count);
}

template <typename Args>
std::vector<fake_cuda::Access> AccessesOf(const void* args) {
  Accesses accesses;
  AddAccesses(*static_cast<const Args*>(args), &accesses);
  return accesses.Take();
}

// An update meets those of other ranks, in place of the host's build, which
// does not wait.
class MeetingUpdate {
 public:
  MeetingUpdate(const void* args, std::function<void()> run)
      : args_(*static_cast<const cuda::UpdateElementsArgs*>(args)),
        run_(std::move(run)) {}

  fake_cuda::Progress operator()() {
    using fake_cuda::Progress;
    cuda::PeerMeetings* const meetings = args_.meetings;
    if (number_ == 0) {
      // A kernel that has begun does not look at the block any more.
      if (meetings == nullptr || args_.block->drops_updates()) {
        run_();
        return Progress::kDone;
      }
      number_ = meetings->number + 1;
      comes_ = cuda::ComeToPeers(*meetings);
      return Progress::kMore;
    }
    // The second wait is that of the kernel's last block. Flags come first, as
    // on a GPU: a rank to which all have come updates, though its host may have
    // ended its waits since it came.
    const auto half = has_run_ ? cuda::PeerFlag::kLeft : cuda::PeerFlag::kCome;
    bool met = comes_;
    for (uint32_t r = 0; met && r < meetings->ranks; ++r) {
      met = cuda::AwaitPeer(*meetings, half, number_, r);
    }
    if (!met) {
      if (cuda::LoadShared(&meetings->waits->ended) == 0) {
        return Progress::kWaits;
      }
      if (meetings->number < number_) cuda::LeavePeers(meetings);
      return Progress::kDone;
    }
    if (std::exchange(has_run_, true)) return Progress::kDone;
    RunOnceMet();
    return Progress::kMore;
  }

 private:
  // The host's build looks again whether its waits have ended, where a GPU does
  // not: the build is not shown it.
  void RunOnceMet() {
    const std::atomic_ref ended(args_.meetings->waits->ended);
    const bool has_ended = ended.exchange(0) != 0;
    run_();
    if (has_ended) ended.store(1);
  }

  cuda::UpdateElementsArgs args_;
  std::function<void()> run_;
  uint64_t number_ = 0;
  bool comes_ = false;
  bool has_run_ = false;
};

inline std::function<fake_cuda::Progress()> BeginUpdate(
    const void* args, std::function<void()> run) {
  const auto update = std::make_shared<MeetingUpdate>(args, std::move(run));
  return [update] { return (*update)(); };
}

// Describes all kernels. Reset forgets it.
inline void DescribeKernels() {
  using fake_cuda::DescribeKernel;
  DescribeKernel("shard_adafactor_apply", AccessesOf<cuda::AdafactorArgs>);
  DescribeKernel("shard_adafactor_scales", AccessesOf<cuda::AdafactorArgs>);
  DescribeKernel("shard_adafactor_squares", AccessesOf<cuda::AdafactorArgs>);
  DescribeKernel("shard_adafactor_states", AccessesOf<cuda::AdafactorArgs>);
  DescribeKernel("shard_adafactor_sums", AccessesOf<cuda::AdafactorArgs>);
  DescribeKernel("shard_add_to_norm", AccessesOf<cuda::AddToNormArgs>);
  DescribeKernel("shard_count", AccessesOf<cuda::CountArgs>);
  DescribeKernel("shard_encode_q8", AccessesOf<cuda::EncodeQ8Args>);
  DescribeKernel("shard_fill", AccessesOf<cuda::FillArgs>);
  DescribeKernel("shard_finish_norm", AccessesOf<cuda::FinishNormArgs>);
  DescribeKernel("shard_lamb_apply", AccessesOf<cuda::UpdateTensorsArgs>);
  DescribeKernel("shard_lamb_moments", AccessesOf<cuda::UpdateTensorsArgs>);
  DescribeKernel("shard_muon_apply", AccessesOf<cuda::MuonArgs>);
  DescribeKernel("shard_muon_momentum", AccessesOf<cuda::MuonArgs>);
  DescribeKernel("shard_muon_normalize", AccessesOf<cuda::MuonArgs>);
  DescribeKernel("shard_narrow", AccessesOf<cuda::NarrowArgs>);
  DescribeKernel("shard_sum_blocks", AccessesOf<cuda::SumBlocksArgs>);
  DescribeKernel("shard_sum_gradients", AccessesOf<cuda::SumGradientsArgs>);
  DescribeKernel("shard_sum_squares", AccessesOf<cuda::UpdateTensorsArgs>);
  DescribeKernel("shard_widen", AccessesOf<cuda::WidenArgs>);
#define SHARD_DESCRIBE(Name)                                                   \
  DescribeKernel("shard_update_" #Name, AccessesOf<cuda::UpdateElementsArgs>); \
  fake_cuda::DescribeWaits("shard_update_" #Name, BeginUpdate);
  SHARD_ELEMENT_FORMULAS(SHARD_DESCRIBE)
#undef SHARD_DESCRIBE
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_FAKE_CUDA_KERNEL_ACCESSES_H_
