// SPDX-License-Identifier: Apache-2.0
//
// Stream: an in-order queue of kernels, copies, host functions and waits of one
// device. Each method but Synchronize and status only enqueues: it returns at
// once, and the work runs later, after all that was enqueued before. Streams
// run concurrently; only Wait orders them.
//
// Lifetime of the arguments:
//   copied at the call   lists and numbers: hyperparameters, gradient source
//                        lists, states and scales lists, shapes, random
//                        streams. The caller may reuse them at once.
//   used when it runs    tensors, workspaces and results: all memory that holds
//                        elements or is written. It stays valid, and no other
//                        code touches it, until a later event is done.
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
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/device/event.h"
#include "kernels/cpu/fused_step.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cpu/newton_schulz.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/random.h"
#include "kernels/cpu/tensor_step.h"
#include "kernels/formula/registry.h"
#include "kernels/formula/state_kind.h"

namespace shard {

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

  // Kernels: each does the work of the function of that name in kernels/cpu,
  // with the same bits as result.

  virtual void FusedStep(Formula formula, const double* hypers, int64_t step,
                         const FusedStepArgs& args) = 0;
  virtual void SumGradients(const GradientSources& sources, size_t begin,
                            size_t count, double scale, double clip_value,
                            float* out) = 0;
  // `sum` is host memory of Device::AllocateHost, as below.
  virtual void AddToNorm(NormType type, double p, double reference,
                         const float* values, size_t count, NormSum* sum) = 0;
  // Runs SumGradients without a scale and AddToNorm of the sums in one pass.
  // The sums are kept in `out`, or dropped when that is null.
  virtual void AddGradientsToNorm(NormType type, double p, double reference,
                                  const GradientSources& sources, size_t begin,
                                  size_t count, float* out, NormSum* sum) = 0;
  virtual void Widen(DType dtype, const void* from, float* to,
                     size_t count) = 0;
  virtual void Narrow(DType dtype, const float* from, void* to, size_t count,
                      const RandomStream* random) = 0;
  virtual void EncodeQ8(StateKind kind, const float* from, size_t count,
                        const RandomStream* random, uint32_t tensor,
                        uint8_t* codes, float* scales) = 0;
  virtual void TensorStep(Formula formula, const double* hypers, int64_t step,
                          const TensorStepArgs& args) = 0;
  virtual void MuonMomentum(const double* hypers, float* gradient,
                            float* momentum_buffer, size_t count) = 0;
  // REQUIRES: Device::LoadBlas has succeeded.
  virtual void Orthogonalize(const MatrixBatch& batch, int steps, double eps,
                             float* workspace) = 0;
  virtual void MuonApply(const double* hypers, int64_t rows, int64_t cols,
                         const float* direction, float* param,
                         size_t count) = 0;

  // Runs `work` on a thread of the host, in stream order. `what` names the work
  // in errors. REQUIRES: `work` ends by itself: its waits have deadlines.
  virtual void Call(std::string_view what, std::function<Status()> work) = 0;

  // Returns an event after all that was enqueued so far.
  virtual Event Record() = 0;

  // Makes all work that is enqueued later run after `event`. When the event is
  // not done by the deadline, the stream fails where the device can tell; where
  // it cannot, Synchronize fails. REQUIRES: an event of a stream of this
  // device.
  virtual void Wait(const Event& event, const Deadline& deadline) = 0;

  // Blocks the calling thread until all that was enqueued has run, and returns
  // the stream's status; kDeadlineExceeded names the work that the stream is
  // doing.
  virtual Status Synchronize(const Deadline& deadline) = 0;

  // Returns the stream's error, if it has failed by now. Does not block: work
  // that has not run yet may still fail.
  virtual Status status() const = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_STREAM_H_
