// SPDX-License-Identifier: Apache-2.0
//
// Stream: an in-order queue of kernels, copies, host functions and waits of one
// device. Each method but Synchronize only enqueues: it returns at once, and
// the work runs later, after all that was enqueued before. Streams run beside
// each other; only Wait orders them.
//
// What the arguments point to:
//   copied at the call   lists and numbers: hyperparameters, gradient source
//                        lists, states and scales lists, shapes, random
//                        streams. The caller may reuse them at once.
//   used when it runs    tensors, workspaces and results: all that holds
//                        elements, or is written. They stay valid, and nobody
//                        else touches them, until an event after is done.
//
// Errors. A Call that fails, or a Wait on an event with an error, makes the
// error the stream's own, for good: what is enqueued after that is dropped, and
// the stream's events from there on have that error. Nothing waits for what
// will not come.
//
// Some streams (core/device/cpu: compute streams of "cpu") run all of it inside
// the call. They allocate nothing: a method costs a virtual call.
//
// Thread-compatible: one thread at a time uses a stream; its events may be
// waited for by any. What a Call does must neither wait for its own stream nor
// destroy it. A destroyed stream drops what has not begun, ends those events
// with kCancelled, and waits only for what is running. When memory runs out, a
// method throws and has enqueued nothing.

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

  // "shard-comm": for errors, and the name of its thread where it has one.
  virtual std::string_view name() const = 0;

  virtual void FillZeros(void* to, size_t bytes) = 0;
  // REQUIRES: they do not overlap. Either may be memory of the host.
  virtual void Copy(void* to, const void* from, size_t bytes) = 0;

  // Kernels: each does what the function of that name in kernels/cpu does, and
  // has its bits.

  virtual void FusedStep(Formula formula, const double* hypers, int64_t step,
                         const FusedStepArgs& args) = 0;
  virtual void SumGradients(const GradientSources& sources, size_t begin,
                            size_t count, double scale, double clip_value,
                            float* out) = 0;
  // `sum` is host memory of Device::AllocateHost, as below.
  virtual void AddToNorm(NormType type, double p, double reference,
                         const float* values, size_t count, NormSum* sum) = 0;
  // SumGradients without a scale and AddToNorm of what it gives, in one pass:
  // the sums are kept in `out`, or nowhere when that is null.
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

  // Runs `work` on a thread of the host, in stream order. `what` names it in
  // errors. REQUIRES: it ends by itself: its waits have deadlines.
  virtual void Call(std::string_view what, std::function<Status()> work) = 0;

  // After all that was enqueued so far.
  virtual Event Record() = 0;

  // What is enqueued from here on runs after `event`. An event that is not done
  // by the deadline fails the stream, where the device can tell; where it
  // cannot, Synchronize does. REQUIRES: an event of a stream of this device.
  virtual void Wait(const Event& event, const Deadline& deadline) = 0;

  // Blocks the calling thread until all that was enqueued has run, and returns
  // the stream's status; kDeadlineExceeded says what it is at.
  virtual Status Synchronize(const Deadline& deadline) = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_STREAM_H_
