// SPDX-License-Identifier: Apache-2.0
//
// The programs that profiles of Adam and AdamW are named after: each one's
// order of float operations, written once more from its source, in scalar code
// that is independent of the formulas.
//
// Where the programs use fused operations, or their compilers insert them, this
// code uses std::fma, or two rounded operations for the instruction sets of x86
// that have no fused ones.

#ifndef SHARD_TESTS_KERNELS_CPU_PROGRAMS_H_
#define SHARD_TESTS_KERNELS_CPU_PROGRAMS_H_

#include <cmath>
#include <cstddef>
#include <vector>

namespace shard {

// Values that floats must round, so that the place of rounding shows.
inline constexpr double kLr = 3e-3;
inline constexpr double kBeta1 = 0.9;
inline constexpr double kBeta2 = 0.98;
inline constexpr double kEps = 1e-8;
inline constexpr double kWeightDecay = 0.013;

struct Tensors {
  std::vector<float> param;
  std::vector<float> exp_avg;
  std::vector<float> exp_avg_sq;
};

// One of the other programs: the constants of its step, and the body of its
// loop.
class Program {
 public:
  explicit Program(bool fuses) : fuses_(fuses) {}
  virtual ~Program() = default;

  void Step(const std::vector<float>& gradient, Tensors* t) {
    ++step_;
    BeginStep();
    for (size_t i = 0; i < gradient.size(); ++i) {
      Update(gradient[i], t->param[i], t->exp_avg[i], t->exp_avg_sq[i]);
    }
  }

 protected:
  virtual void BeginStep() = 0;
  virtual void Update(float g, float& p, float& m, float& v) = 0;

  float Fma(float x, float y, float z) const {
    if (fuses_) return std::fma(x, y, z);
    const float product = x * y;
    return product + z;
  }

  int step_ = 0;
  const float lr_ = kLr;
  const float beta1_ = kBeta1;
  const float beta2_ = kBeta2;
  const float eps_ = kEps;
  const float weight_decay_ = kWeightDecay;

 private:
  bool fuses_;
};

// NVIDIA apex, csrc/multi_tensor_adam.cu. It takes powers of a float and an
// int, which C++ computes in double.
class Apex : public Program {
 public:
  Apex(bool fuses, bool decoupled) : Program(fuses), decoupled_(decoupled) {}

 private:
  void BeginStep() override {
    const double power1 = std::pow(static_cast<double>(beta1_), step_);
    const double power2 = std::pow(static_cast<double>(beta2_), step_);
    correction1_ = static_cast<float>(1 - power1);
    correction2_ = static_cast<float>(1 - power2);
  }

  void Update(float g, float& p, float& m, float& v) override {
    if (!decoupled_) g = Fma(weight_decay_, p, g);
    const float new_m = (1 - beta1_) * g;
    m = Fma(beta1_, m, new_m);
    float new_v = (1 - beta2_) * g;
    new_v = new_v * g;
    v = Fma(beta2_, v, new_v);
    const float unbiased_m = m / correction1_;
    const float unbiased_v = v / correction2_;
    const float denominator = std::sqrt(unbiased_v) + eps_;
    float update = unbiased_m / denominator;
    if (decoupled_) update = Fma(weight_decay_, p, update);
    p = Fma(-lr_, update, p);
  }

  const bool decoupled_;
  float correction1_ = 1;
  float correction2_ = 1;
};

// DeepSpeed, csrc/includes/cpu_adam.h: its powers are products that are kept
// from step to step.
class DeepSpeedCpu : public Program {
 public:
  DeepSpeedCpu(bool fuses, bool decoupled)
      : Program(fuses), decoupled_(decoupled) {}

 private:
  void BeginStep() override {
    power1_ *= beta1_;
    power2_ *= beta2_;
    const float correction1 = 1 - power1_;
    const float root = std::sqrt(1 - power2_);
    inverse_root_ = 1 / root;
    step_size_ = -lr_ / correction1;
    decay_ = -lr_ * weight_decay_;
  }

  void Update(float g, float& p, float& m, float& v) override {
    if (!decoupled_) g = Fma(p, weight_decay_, g);
    m = m * beta1_;
    m = Fma(g, 1 - beta1_, m);
    v = v * beta2_;
    const float square = g * g;
    v = Fma(square, 1 - beta2_, v);
    float x = std::sqrt(v);
    x = Fma(x, inverse_root_, eps_);
    x = m / x;
    if (decoupled_) p = Fma(p, decay_, p);
    p = Fma(x, step_size_, p);
  }

  const bool decoupled_;
  float power1_ = 1;
  float power2_ = 1;
  float inverse_root_ = 1;
  float step_size_ = 0;
  float decay_ = 0;
};

// llm.c, llmc/adamw.cuh: it takes float powers, and moments are linear
// interpolations.
class Llmc : public Program {
 public:
  using Program::Program;

 private:
  void BeginStep() override {
    correction1_ = 1.0f - powf(beta1_, static_cast<float>(step_));
    correction2_ = 1.0f - powf(beta2_, static_cast<float>(step_));
  }

  float Interpolate(float from, float to, float weight) const {
    return Fma(weight, to, Fma(-weight, from, from));
  }

  void Update(float g, float& p, float& m, float& v) override {
    m = Interpolate(g, m, beta1_);
    v = Interpolate(g * g, v, beta2_);
    const float m_hat = m / correction1_;
    const float v_hat = v / correction2_;
    const float direction = m_hat / (std::sqrt(v_hat) + eps_);
    p = Fma(-lr_, Fma(weight_decay_, p, direction), p);
  }

  float correction1_ = 1;
  float correction2_ = 1;
};

// llm.c, train_gpt2.c: the loop of gpt2_update as gcc and clang fuse it.
class LlmcCpu : public Program {
 public:
  using Program::Program;

 private:
  void BeginStep() override {}

  void Update(float g, float& p, float& m, float& v) override {
    const float weighted = (1.0f - beta1_) * g;
    m = Fma(beta1_, m, weighted);
    float weighted_square = (1.0f - beta2_) * g;
    weighted_square = weighted_square * g;
    v = Fma(beta2_, v, weighted_square);
    const auto t = static_cast<float>(step_);
    const float m_hat = m / (1.0f - powf(beta1_, t));
    const float v_hat = v / (1.0f - powf(beta2_, t));
    const float root = std::sqrt(v_hat) + eps_;
    const float move = Fma(weight_decay_, p, m_hat / root);
    p = Fma(-lr_, move, p);
  }
};

// ggml, ggml-cpu/ops.cpp and ggml-opt.cpp: it multiplies by reciprocals of the
// corrections.
class Ggml : public Program {
 public:
  using Program::Program;

 private:
  void BeginStep() override {
    k1_ = 1.0f / (1.0f - powf(beta1_, static_cast<float>(step_)));
    k2_ = 1.0f / (1.0f - powf(beta2_, static_cast<float>(step_)));
    keep_ = std::fma(-lr_, weight_decay_, 1.0f);
  }

  void Update(float g, float& p, float& m, float& v) override {
    const float new_m = g * (1.0f - beta1_);
    m = Fma(m, beta1_, new_m);
    float new_v = g * g;
    new_v = new_v * (1.0f - beta2_);
    v = Fma(v, beta2_, new_v);
    const float numerator = lr_ * (m * k1_);
    const float denominator = std::sqrt(v * k2_) + eps_;
    const float step = numerator / denominator;
    p = Fma(p, keep_, -step);
  }

  float k1_ = 1;
  float k2_ = 1;
  float keep_ = 1;
};

}  // namespace shard

#endif  // SHARD_TESTS_KERNELS_CPU_PROGRAMS_H_
