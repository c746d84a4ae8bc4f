// SPDX-License-Identifier: Apache-2.0
//
// Kernels: the kernels of kernels/cuda, loaded into a context. Each launch has
// as many blocks as the device runs at once, or fewer: kernels loop over what
// is left.
//
// Immutable once made; thread-safe.

#ifndef SHARD_CORE_DEVICE_CUDA_KERNELS_H_
#define SHARD_CORE_DEVICE_CUDA_KERNELS_H_

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/base/status.h"
#include "core/device/cuda/context.h"
#include "kernels/formula/registry.h"

namespace shard::cuda {

// Element formulas come first among the formulas.
#define SHARD_COUNT(Name) +1
inline constexpr size_t kNumElementFormulas =
    SHARD_ELEMENT_FORMULAS(SHARD_COUNT);
#undef SHARD_COUNT

struct Kernel {
  CuFunction function = nullptr;
  uint32_t shared_bytes = 0;
  uint32_t max_blocks = 0;  // That the device runs at once.
};

class Kernels {
 public:
  static StatusOr<std::shared_ptr<const Kernels>> Load(
      std::shared_ptr<Context> context);
  ~Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  // `random`: the kernel makes random bits. REQUIRES: an element formula.
  const Kernel& update(Formula formula, bool random) const {
    return updates_[static_cast<size_t>(formula)][random ? 1 : 0];
  }
  const Kernel& lamb_moments() const { return lamb_moments_; }
  const Kernel& lamb_apply(bool random) const {
    return lamb_apply_[random ? 1 : 0];
  }
  // The kernels of kernels/cuda/adafactor.h, in the order of their launches.
  const Kernel& adafactor_sums() const { return adafactor_sums_; }
  const Kernel& adafactor_states() const { return adafactor_states_; }
  const Kernel& adafactor_scales() const { return adafactor_scales_; }
  const Kernel& adafactor_squares() const { return adafactor_squares_; }
  const Kernel& adafactor_apply(bool random) const {
    return adafactor_apply_[random ? 1 : 0];
  }
  // The kernels of kernels/cuda/muon.h.
  const Kernel& muon_momentum() const { return muon_momentum_; }
  const Kernel& muon_normalize() const { return muon_normalize_; }
  const Kernel& muon_apply(bool random) const {
    return muon_apply_[random ? 1 : 0];
  }
  const Kernel& sum_squares() const { return sum_squares_; }
  const Kernel& fill() const { return fill_; }
  const Kernel& count() const { return count_; }
  const Kernel& sum_gradients() const { return sum_gradients_; }
  const Kernel& widen() const { return widen_; }
  const Kernel& narrow(bool random) const { return narrow_[random ? 1 : 0]; }
  const Kernel& encode_q8(bool random) const {
    return encode_q8_[random ? 1 : 0];
  }
  const Kernel& sum_blocks() const { return sum_blocks_; }
  const Kernel& add_to_norm() const { return add_to_norm_; }
  const Kernel& finish_norm() const { return finish_norm_; }

 private:
  explicit Kernels(std::shared_ptr<Context> context);
  Status LoadModule();
  StatusOr<Kernel> Find(const char* name, uint32_t shared_bytes) const;

  const std::shared_ptr<Context> context_;
  const pid_t owner_;
  CuModule module_ = nullptr;
  std::array<std::array<Kernel, 2>, kNumElementFormulas> updates_ = {};
  Kernel lamb_moments_;
  std::array<Kernel, 2> lamb_apply_;
  Kernel adafactor_sums_;
  Kernel adafactor_states_;
  Kernel adafactor_scales_;
  Kernel adafactor_squares_;
  std::array<Kernel, 2> adafactor_apply_;
  Kernel muon_momentum_;
  Kernel muon_normalize_;
  std::array<Kernel, 2> muon_apply_;
  Kernel sum_squares_;
  Kernel fill_;
  Kernel count_;
  Kernel sum_gradients_;
  Kernel widen_;
  std::array<Kernel, 2> narrow_;
  std::array<Kernel, 2> encode_q8_;
  Kernel sum_blocks_;
  Kernel add_to_norm_;
  Kernel finish_norm_;
};

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_KERNELS_H_
