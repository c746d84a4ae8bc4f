// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/cuda_stream.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/device/cuda/cuda_event.h"
#include "core/device/cuda/cuda_moment.h"
#include "core/device/cuda/element_range.h"
#include "core/device/cuda/newton_schulz.h"
#include "core/device/cuda/update_table.h"
#include "kernels/cuda/casts.h"
#include "kernels/cuda/count.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/fill.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/tile.h"
#include "kernels/formula/muon.h"

namespace shard::cuda {

namespace {

CuPointer PointerOf(const void* memory) {
  return reinterpret_cast<CuPointer>(memory);
}

// Returns the magnitude above which the kernels clip.
float ClipOf(double clip_value) {
  constexpr auto kMost = static_cast<double>(std::numeric_limits<float>::max());
  return clip_value <= kMost ? static_cast<float>(clip_value)
                             : std::numeric_limits<float>::infinity();
}

}  // namespace

StatusOr<std::unique_ptr<Stream>> CudaStream::Create(
    std::shared_ptr<Context> context, std::shared_ptr<const Kernels> kernels,
    const Memory& memory, std::string_view name) {
  SHARD_ASSIGN_OR_RETURN(
      DeviceMemory scratch,
      memory.Allocate(sizeof(NormScratch), "scratch memory of a stream"));
  SHARD_ASSIGN_OR_RETURN(auto core,
                         StreamCore::Create(std::move(context), name));
  return std::unique_ptr<Stream>(
      new CudaStream(std::move(core), std::move(kernels), std::move(scratch)));
}

StatusOr<std::shared_ptr<Stream>> CudaStream::Wrap(
    std::shared_ptr<Context> context, std::shared_ptr<const Kernels> kernels,
    CuStream native, std::string_view name) {
  return std::shared_ptr<Stream>(
      new CudaStream(StreamCore::Wrap(std::move(context), native, name),
                     std::move(kernels), DeviceMemory()));
}

CudaStream::~CudaStream() { core_->End(); }

template <typename Work>
void CudaStream::Submit(std::string_view what, Work work) {
  core_->set_last(what);
  switch (core_->turn()) {
    case WorkQueue::Turn::kNow:
      core_->SubmitNow(what, work);
      return;
    case WorkQueue::Turn::kLater:
      core_->queue()->Push(
          what, [core = core_.get(), what, work = std::move(work)] {
            const Status status = core->context()->Run(work);
            return status.ok() ? status : core->InContext(what, status);
          });
      return;
    case WorkQueue::Turn::kNever:
      return;
  }
}

template <typename Args>
auto CudaStream::LaunchOf(const Kernel& kernel, const Args& args,
                          uint64_t warps) const {
  constexpr uint64_t kWarps = kMaxThreads / kLanes;
  const auto blocks = static_cast<unsigned>(
      std::min<uint64_t>((warps + kWarps - 1) / kWarps, kernel.max_blocks));
  return [core = core_.get(), kernel, args, blocks] {
    // The driver copies the arguments.
    void* params[] = {const_cast<Args*>(&args)};
    SHARD_CUDA_CALL(core->context()->driver(), LaunchKernel, kernel.function,
                    blocks, 1, 1, kMaxThreads, 1, 1, kernel.shared_bytes,
                    core->native(), params, nullptr);
    return Status();
  };
}

template <typename Args>
void CudaStream::Add(const Kernel& kernel, const Args& args, uint64_t warps,
                     Works* works) const {
  if (warps > 0) works->push_back(LaunchOf(kernel, args, warps));
}

template <typename Args>
void CudaStream::Launch(std::string_view what, const Kernel& kernel,
                        const Args& args, uint64_t warps) {
  if (warps > 0) Submit(what, LaunchOf(kernel, args, warps));
}

bool CudaStream::CheckInline(std::string_view what,
                             const GradientSources& sources) {
  if (sources.count <= kInlineSources) return true;
  // Ranks read each other's gradients where they lie on no GPU.
  core_->Fail(core_->InContext(
      what, Internal(sources.count, " gradients are given, at most ",
                     kInlineSources, " are read where they lie")));
  return false;
}

void CudaStream::FillZeros(void* to, size_t bytes) {
  if (bytes == 0) return;
  Submit("FillZeros", [core = core_.get(), to, bytes] {
    SHARD_CUDA_CALL(core->context()->driver(), MemsetD8Async, PointerOf(to), 0,
                    bytes, core->native());
    return Status();
  });
}

void CudaStream::Copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  Submit("Copy", [core = core_.get(), to, from, bytes] {
    SHARD_CUDA_CALL(core->context()->driver(), MemcpyAsync, PointerOf(to),
                    PointerOf(from), bytes, core->native());
    return Status();
  });
}

void CudaStream::Fill(std::vector<MemoryFill> parts) {
  FillArgs args = {};
  for (const MemoryFill& part : parts) {
    const FillPart added = {part.to, part.from, part.bytes};
    if (AddFillPart(added, &args)) continue;
    Launch("Fill", kernels_->fill(), args, args.num_chunks);
    args = {};
    AddFillPart(added, &args);
  }
  Launch("Fill", kernels_->fill(), args, args.num_chunks);
}

void CudaStream::Count(uint32_t* count, uint32_t* copy) {
  const CountArgs args = {count, copy};
  Launch("Count", kernels_->count(), args, 1);
}

void CudaStream::SumGradients(const GradientSources& sources, size_t begin,
                              size_t count, double scale, double clip_value,
                              float* out) {
  if (!CheckInline("SumGradients", sources)) return;
  SumGradientsArgs args = {};
  args.sources = SourcesOf(sources.data, sources.count, sources.dtype, nullptr);
  args.begin = begin;
  args.count = count;
  args.scale = static_cast<float>(scale);
  args.clip_value = ClipOf(clip_value);
  args.out = out;
  Launch("SumGradients", kernels_->sum_gradients(), args, CastWarps(count));
}

void CudaStream::Widen(DType dtype, const void* from, float* to, size_t count) {
  const WidenArgs args = {dtype, from, to, count};
  Launch("Widen", kernels_->widen(), args, CastWarps(count));
}

void CudaStream::Narrow(DType dtype, const float* from, void* to, size_t count,
                        const RandomStream* random) {
  NarrowArgs args = {dtype, random != nullptr, from, to, count, {}};
  if (random != nullptr) args.random = *random;
  Launch("Narrow", kernels_->narrow(args.stochastic), args, CastWarps(count));
}

void CudaStream::EncodeQ8(StateKind kind, const float* from, size_t count,
                          const RandomStream* random, uint32_t tensor,
                          uint8_t* codes, float* scales) {
  const bool stochastic = random != nullptr && IsRoundedStochastically(kind);
  EncodeQ8Args args = {kind,  stochastic, tensor, from,
                       count, {},         codes,  scales};
  if (stochastic) args.random = *random;
  Launch("EncodeQ8", kernels_->encode_q8(stochastic), args, CastWarps(count));
}

void CudaStream::SumBlocks(const BlockSum& sum) {
  const SumBlocksArgs args = {sum.own,   sum.peers, sum.own_index,
                              sum.ranks, sum.dtype, sum.recv_dtype,
                              sum.add,   sum.count, sum.recv};
  Launch("SumBlocks", kernels_->sum_blocks(), args, CastWarps(sum.count));
}

void CudaStream::AddToNorm(const UpdateList& list, size_t range, NormPass pass,
                           const StepBlock* block, NormSum* sum) {
  AddToNormArgs args = UpdateTable::Of(list).NormOf(range);
  args.pass = pass;
  args.block = block;
  args.sum = sum;
  args.scratch = reinterpret_cast<NormScratch*>(norm_scratch_.data());
  Launch("AddToNorm", kernels_->add_to_norm(), args,
         (args.count + kNormTile - 1) / kNormTile);
}

void CudaStream::FinishNorm(NormPass pass, const NormSum* sums, size_t count,
                            StepBlock* block) {
  const FinishNormArgs args = {pass, static_cast<uint32_t>(count), sums, block};
  Launch("FinishNorm", kernels_->finish_norm(), args, 1);
}

void CudaStream::Update(const UpdateList& list, size_t range,
                        const StepBlocks& step,
                        const GradientSources* gradients) {
  if (gradients != nullptr && !CheckInline("Update", *gradients)) return;
  const UpdateRange& given = list.ranges[range];
  Works works;
  for (const UpdatePart& part : UpdateTable::Of(list).PartsOf(range)) {
    ElementRange read = part.range;
    // The list of the host's pointers is not uploaded.
    if (gradients != nullptr) ReadGradients(*gradients, gradients->data, &read);
    const UpdateTensorsArgs tensors = {read, part.squares, step.kernels};
    if (part.muon.has_value()) {
      const uint32_t row = RowOf(list, given, part.muon->run, *step.host);
      if (row == kNotStepped) continue;
      AddMuon(tensors, *part.muon,
              step.host->rows()[row].scalars.as<Muon>().ns_steps, &works);
    } else if (given.formula == Formula::kLamb) {
      AddLamb(tensors, &works);
    } else if (given.formula == Formula::kAdafactor) {
      AddAdafactor({tensors, part.matrices}, &works);
    } else {
      const UpdateElementsArgs args = {read, nullptr, 0, step.kernels};
      Add(kernels_->update(given.formula, read.needs_random), args,
          TilesOf(read), &works);
    }
  }
  SubmitUpdate(std::move(works));
}

void CudaStream::UpdateAll(const UpdateList& list, const StepBlocks& step) {
  Works works;
  const UpdateTable& table = UpdateTable::Of(list);
  // A range has as many elements on each rank, padding included, so all ranks
  // make the same launches, and meet in each of them.
  for (const StepLaunch& launch : table.step()) {
    const UpdateElementsArgs args = {launch.first, launch.more, launch.num_more,
                                     step.kernels, table.meetings()};
    Add(kernels_->update(launch.formula, launch.first.needs_random), args,
        launch.num_tiles, &works);
  }
  SubmitUpdate(std::move(works));
  for (size_t r = list.ranges.size(); r-- > 0;) {
    if (list.ranges[r].is_tensor) Update(list, r, step, nullptr);
  }
}

void CudaStream::SubmitUpdate(Works works) {
  if (works.empty()) return;
  Submit("Update", [works = std::move(works)] {
    for (const auto& work : works) SHARD_RETURN_IF_ERROR(work());
    return Status();
  });
}

void CudaStream::AddLamb(const UpdateTensorsArgs& args, Works* works) const {
  const ElementRange& range = args.range;
  Add(kernels_->lamb_moments(), args, range.num_tiles, works);
  Add(kernels_->sum_squares(), args, args.squares.num_groups, works);
  Add(kernels_->lamb_apply(range.needs_random), args, range.num_tiles, works);
}

void CudaStream::AddAdafactor(const AdafactorArgs& args, Works* works) const {
  const ElementRange& range = args.tensors.range;
  const MatrixTable& matrices = args.matrices;
  Add(kernels_->adafactor_sums(), args, matrices.num_blocks, works);
  Add(kernels_->adafactor_states(), args, matrices.num_groups, works);
  Add(kernels_->adafactor_scales(), args, matrices.num_groups, works);
  Add(kernels_->adafactor_squares(), args, range.num_tiles, works);
  Add(kernels_->sum_squares(), args.tensors, args.tensors.squares.num_groups,
      works);
  Add(kernels_->adafactor_apply(range.needs_random), args, range.num_tiles,
      works);
}

void CudaStream::AddMuon(const UpdateTensorsArgs& args, const MuonBatch& batch,
                         int ns_steps, Works* works) const {
  const uint64_t tiles = args.range.num_tiles;
  MuonArgs kernel = batch.ArgsFor(args);
  Add(kernels_->muon_momentum(), kernel, tiles, works);
  Add(kernels_->sum_squares(), args, args.squares.num_groups, works);
  Add(kernels_->muon_normalize(), kernel, tiles, works);
  const NewtonSchulz* const products = batch.products.get();
  NewtonSchulzMemory at = {batch.memory.x, batch.memory.other,
                           batch.memory.gram, batch.memory.poly,
                           batch.memory.scratch};
  for (int step = 0; step < ns_steps; ++step) {
    works->push_back([core = core_.get(), products, at] {
      return products->Step(at, core->native());
    });
    std::swap(at.from, at.to);
  }
  kernel.x = at.from;
  Add(kernels_->muon_apply(args.range.needs_random), kernel, tiles, works);
}

void CudaStream::OnError(std::function<void(const Status&)> handler) {
  core_->OnError(std::move(handler));
}

void CudaStream::Call(std::string_view what, std::function<Status()> work) {
  const auto run = [core = core_.get(),
                    work = std::move(work)](auto stop) -> Status {
    bool done = false;
    const Status waited = core->context()->Run([&] {
      SHARD_ASSIGN_OR_RETURN(
          done,
          core->AwaitAll(
              Deadline::After(std::numeric_limits<double>::infinity()), stop));
      return Status();
    });
    if (!waited.ok()) return core->InContext("wait for a call", waited);
    if (!done) return Cancelled("stream '", core->name(), "' was ended");
    // The device may have come here without what the work uses.
    return core->is_poisoned() ? core->poison() : work();
  };
  if (core_->turn() == WorkQueue::Turn::kNever) return;
  if (core_->is_captured()) {
    core_->Fail(core_->InContext(
        what, Unimplemented("work of the host is no part of a graph")));
    return;
  }
  if (core_->queue() == nullptr) {
    if (const Status status = run(nullptr); !status.ok()) core_->Fail(status);
    return;
  }
  core_->queue()->Push(what, [run, queue = core_->queue()] {
    return run([queue] { return queue->IsStopping(); });
  });
}

void CudaStream::Native(std::string_view what,
                        std::function<Status(void* native)> give) {
  Submit(what, [core = core_.get(), give = std::move(give)] {
    return give(core->native());
  });
}

Event CudaStream::Record() {
  const WorkQueue::Turn turn = core_->turn();
  if (turn == WorkQueue::Turn::kNever) return Event(core_->status());
  if (core_->is_captured()) return Event();
  auto event = CudaEvent::Record(core_, turn, EventKind::kUntimed);
  if (event.ok()) {
    return Event(std::shared_ptr<const EventState>(*std::move(event)));
  }
  core_->Fail(event.status());
  return Event(event.status());
}

std::shared_ptr<const Moment> CudaStream::Mark(const Moment* since) {
  // All moments of a device are of this class.
  return CudaMoment::Mark(core_, static_cast<const CudaMoment*>(since));
}

void CudaStream::Wait(const Event& event, const Deadline& deadline) {
  const WorkQueue::Turn turn = core_->turn();
  if (turn == WorkQueue::Turn::kNever) return;
  const auto* const awaited = static_cast<const CudaEvent*>(event.state());
  if (core_->is_captured() && !event.IsDone()) {
    core_->Fail(core_->InContext(
        "wait", Internal("captured work waits for other work")));
    return;
  }
  if (awaited == nullptr || core_->is_captured()) {
    const Status status = event.Synchronize(deadline);
    if (status.ok()) return;
    // The work that the queue has still runs.
    if (turn == WorkQueue::Turn::kLater) {
      core_->queue()->Push("wait", [status] { return status; });
    } else {
      core_->Fail(status);
    }
    return;
  }
  WorkQueue* const queue = core_->queue();
  if (queue != nullptr &&
      (turn == WorkQueue::Turn::kLater || !awaited->given().IsDone())) {
    queue->PushWait(awaited->given(), deadline);
    queue->Push("wait", [event, awaited, core = core_.get()] {
      return awaited->MakeWait(*core);
    });
    return;
  }
  Status status = awaited->given().Synchronize(EndOfWait(deadline));
  if (status.ok()) status = awaited->MakeWait(*core_);
  if (!status.ok()) core_->Fail(status);
}

Status CudaStream::Synchronize(const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(core_->CheckRuns());
  if (core_->queue() != nullptr) {
    // Its error names the work of the queue.
    SHARD_RETURN_IF_ERROR(core_->queue()->Synchronize(deadline));
  }
  return Record().Synchronize(deadline);
}

void CudaStream::Settle(const Deadline& deadline) noexcept {
  // The queue may still give the driver work when the stream has failed.
  Stream::Settle(deadline);
  core_->Settle(deadline);
}

Status CudaStream::BeginCapture(Stream* host) {
  // All streams of a device are of this class.
  const auto* const to = static_cast<const CudaStream*>(host);
  if (core_->turn() == WorkQueue::Turn::kLater) {
    return FailedPrecondition("stream '", name(), "' has work that waits");
  }
  return core_->context()->Run([&] { return core_->BeginCapture(*to->core_); });
}

StatusOr<uint64_t> CudaStream::CaptureId() const {
  StatusOr<uint64_t> id = uint64_t{0};
  SHARD_RETURN_IF_ERROR(core_->context()->Run([&] {
    id = core_->CaptureId();
    return id.status();
  }));
  return id;
}

Status CudaStream::CheckNotCaptured() const {
  if (core_->queue() != nullptr) return Status();
  const Status checked =
      core_->context()->Run([&] { return core_->CheckNotCaptured(); });
  // Other errors are those of the work that comes.
  return checked.code() == StatusCode::kFailedPrecondition ? checked : Status();
}

Status CudaStream::status() const { return core_->status(); }

}  // namespace shard::cuda
