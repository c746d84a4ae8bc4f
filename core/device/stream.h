// SPDX-License-Identifier: Apache-2.0
//
// Stream: an in-order queue of kernels, copies, host functions and waits of one
// device. Each method but Synchronize and status only enqueues: it returns at
// once, and the work runs later, after all that was enqueued before. Streams
// run concurrently; only Wait orders them.
//
// Lifetime of the arguments:
//   copied at the call   numbers, gradient source lists, lists of fills and
//                        random streams. The caller may reuse them at once.
//   used when it runs    tensors, workspaces, results, update lists and step
//                        blocks. They stay valid until a later
//                        event is done. Until then no other code writes what
//                        the work reads, nor touches what it writes.
//
// Errors. A Call that fails, or a Wait on an event with an error, puts the
// stream into that error for good: work that is enqueued later is dropped, and
// all later events of the stream have the error. So no thread waits for work
// that will not run.
//
// Some streams (core/device/cpu: compute streams of "cpu", and the host's own)
// run all work inside the call. They allocate nothing: a method costs a virtual
// call.
//
// Thread-compatible: one thread at a time uses a stream; any thread may wait
// for its events. The function of a Call must neither wait for its own stream
// nor destroy it. A destroyed stream drops the work that has not begun, ends
// its events with kCancelled, and waits only for the work that is running. When
// memory runs out, a method throws and has enqueued nothing.

#ifndef SHARD_CORE_DEVICE_STREAM_H_
#define SHARD_CORE_DEVICE_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/device/event.h"
#include "core/device/moment.h"
#include "core/device/step_block.h"
#include "core/device/update_list.h"
#include "kernels/cpu/block_sum.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/random.h"
#include "kernels/formula/state_kind.h"

namespace shard {

// A part of memory that becomes a copy of another one, or zeros.
struct MemoryFill {
  void* to;
  const void* from;  // The memory that is copied; null: zeros.
  size_t bytes;
};

class Stream {
 public:
  virtual ~Stream() = default;

  // Returns the stream's name, such as "shard-comm", for errors and for its
  // thread where it has one.
  virtual std::string_view name() const = 0;

  // Returns whether all work runs inside the call, so that Wait blocks.
  virtual bool IsInline() const { return false; }

  virtual void FillZeros(void* to, size_t bytes) = 0;
  // Copies memory; either side may be memory of the host. REQUIRES: the two do
  // not overlap.
  virtual void Copy(void* to, const void* from, size_t bytes) = 0;
  // Copies and fills any number of parts, in one operation. REQUIRES: no part
  // overlaps another.
  virtual void Fill(std::vector<MemoryFill> parts) = 0;
  // Adds 1 to a word, and stores it in another one, which may be the host's.
  virtual void Count(uint32_t* count, uint32_t* copy) = 0;

  // Kernels: each does the work of the function of that name in kernels/cpu,
  // with the same bits as result.

  virtual void SumGradients(const GradientSources& sources, size_t begin,
                            size_t count, double scale, double clip_value,
                            float* out) = 0;
  virtual void Widen(DType dtype, const void* from, float* to,
                     size_t count) = 0;
  virtual void Narrow(DType dtype, const float* from, void* to, size_t count,
                      const RandomStream* random) = 0;
  virtual void EncodeQ8(StateKind kind, const float* from, size_t count,
                        const RandomStream* random, uint32_t tensor,
                        uint8_t* codes, float* scales) = 0;
  virtual void SumBlocks(const BlockSum& sum) = 0;

  // The kernels of a step: one operation per range of a list. They read the
  // latched half of `block` and write the other. Block and sums are memory of
  // Device::Allocate, as tensors are.

  // Adds the range's summed gradients to `sum`. The first pass reads the ranks'
  // gradients and, where the range keeps the sum, stores it; the second pass
  // reads the stored sums.
  virtual void AddToNorm(const UpdateList& list, size_t range, NormPass pass,
                         const StepBlock* block, NormSum* sum) = 0;
  // Ends a norm pass with the `count` sums of all ranks: see FinishNorm in
  // step_block.h.
  virtual void FinishNorm(NormPass pass, const NormSum* sums, size_t count,
                          StepBlock* block) = 0;
  // Updates the range's parameters, masters and states from its gradients;
  // writes nothing where the step is skipped or, on a GPU, the block poisoned.
  // `gradients`: where the gradients of the whole range are read instead, or
  // null. What is enqueued may depend on the host's block, which is read at the
  // call. Where states are offloaded, it is read when the work runs, too: the
  // results of a norm must be there.
  // REQUIRES: for Muon, Device::LoadBlas has succeeded before Device::Prepare.
  virtual void Update(const UpdateList& list, size_t range,
                      const StepBlocks& step,
                      const GradientSources* gradients) = 0;
  // Updates all ranges, as Update does, in no order: in one launch where a GPU
  // has one kernel for them.
  virtual void UpdateAll(const UpdateList& list, const StepBlocks& step) {
    for (size_t r = list.ranges.size(); r-- > 0;) {
      Update(list, r, step, nullptr);
    }
  }

  // Sets what is called once with the stream's error: when the stream fails, or
  // is destroyed with work that has not run (kCancelled). For those who wait
  // for the dropped work and see no event of it, as other ranks do. Called
  // before any event has the error, by the thread that runs or drops the work;
  // it must not use the stream. REQUIRES: the stream was given nothing yet.
  virtual void OnError(std::function<void(const Status&)> handler) = 0;

  // Fails the stream, unless it has failed, with an error that was found
  // elsewhere: events that were not done have it, too, whatever the device then
  // comes to, and no Call begins. Any thread. For streams that run no work
  // inside the call.
  virtual void Fail(const Status& /*error*/) {}

  // Runs `work` on a thread of the host, in stream order. `what` names the work
  // in errors, and is valid until it has run or was dropped. REQUIRES: `work`
  // ends by itself: its waits have deadlines.
  virtual void Call(std::string_view what, std::function<Status()> work) = 0;

  // Runs `give` in stream order, in the thread that gives the device its work,
  // with the device current: it enqueues work of a library on the device's own
  // form of the stream, which is `native`, as work of this stream. Where the
  // device has none, `native` is null, and `give` does the work.
  virtual void Native(std::string_view what,
                      std::function<Status(void* native)> give) {
    Call(what, [give = std::move(give)] { return give(nullptr); });
  }

  // Returns an event after all that was enqueued so far.
  virtual Event Record() = 0;

  // Returns the moment at which the device has done all that was enqueued so
  // far. Never fails the stream: a time that cannot be taken is dropped. Null
  // where a thread of the host does the work, and can look at its own clock in
  // a Call; on a device a Call would hold up what is enqueued behind it.
  // `since`: an earlier moment of the stream, or null; the time between the two
  // does not depend on the host's clock then. REQUIRES: the stream is not
  // captured.
  virtual std::shared_ptr<const Moment> Mark(const Moment* /*since*/) {
    return nullptr;
  }

  // Makes all work that is enqueued later run after `event`. When the event is
  // not done by the deadline (EndOfWait), the stream fails where the device can
  // tell; where it cannot, Synchronize fails. REQUIRES: an event of a stream of
  // this device.
  virtual void Wait(const Event& event, const Deadline& deadline) = 0;

  // Blocks the calling thread until all that was enqueued has run, and returns
  // the stream's status; kDeadlineExceeded names the work that the stream is
  // doing.
  virtual Status Synchronize(const Deadline& deadline) = 0;

  // Synchronizes, for those who free what the stream's work uses. Where work
  // may go on after the stream has failed, as on a GPU, waits for it too; if it
  // may still run at the deadline, the device frees none of its memory from
  // then on.
  virtual void Settle(const Deadline& deadline) noexcept {
    // Only the text of an error allocates.
    try {
      (void)Synchronize(deadline).ok();
    } catch (...) {  // NOLINT: nothing depends on the text
    }
  }

  // Returns kFailedPrecondition while the host captures the stream's work as a
  // graph, so that nothing can be enqueued; OK on devices without graphs, and
  // between BeginCapture and EndCapture.
  virtual Status CheckNotCaptured() const { return Status(); }

  // Until EndCapture, gives `host` all that this stream is given: the host's
  // stream, which may be this one and whose work the host captures as a graph.
  // Meanwhile all streams that gave themselves to it are one: Record returns an
  // event that is done, Wait takes such events alone, and Call and Synchronize
  // fail; an error of what is captured is that of the stream until EndCapture
  // alone. Errors: kFailedPrecondition where the host does not capture, or work
  // of this stream is not done; kUnimplemented on devices without graphs.
  virtual Status BeginCapture(Stream* /*host*/) {
    return Unimplemented(
        "the device of this engine has no graphs: make it on cuda:N, or step "
        "without a graph");
  }
  virtual void EndCapture() {}
  // Returns the number of the host's capture of this stream, its own, which no
  // other capture of the process has. Errors: kFailedPrecondition where the
  // host does not capture it; kUnimplemented on devices without graphs.
  virtual StatusOr<uint64_t> CaptureId() const {
    return Unimplemented(
        "the device of this engine has no graphs: make it on cuda:N, or step "
        "without a graph");
  }

  // Returns the stream's error, if it has failed by now. Does not block: work
  // that has not run yet may still fail.
  virtual Status status() const = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_STREAM_H_
