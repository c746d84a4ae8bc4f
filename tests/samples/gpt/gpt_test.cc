// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/gpt.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "samples/gpt/check.h"
#include "samples/gpt/random.h"
#include "tests/core/base/sanitizers.h"

namespace gpt_test {
namespace {

constexpr gpt_config kSmall = {
    .layers = 2, .width = 12, .heads = 3, .context = 8};

// ---- The backward pass, in double -----------------------------------------

// Compares gradients with finite differences. In double they agree to eight
// digits; see CHECK_TOLERANCE for the others.
void ExpectGradientsAgree(const gpt_config& config) {
  for (int i = 0; i < gpt_tensor_count(&config); i++) {
    const double error = check_gradient(&config, i);
    EXPECT_GE(error, 0) << gpt_tensor_at(&config, i).name;
    EXPECT_LE(error, CHECK_TOLERANCE) << gpt_tensor_at(&config, i).name;
  }
}

TEST(BackwardTest, AgreesWithFiniteDifferences) {
  ExpectGradientsAgree(kSmall);
}

TEST(BackwardTest, AgreesForOneHeadAndOneLayer) {
  ExpectGradientsAgree({.layers = 1, .width = 5, .heads = 1, .context = 7});
}

TEST(BackwardTest, AgreesForOneElementPerHead) {
  ExpectGradientsAgree({.layers = 3, .width = 4, .heads = 4, .context = 3});
}

TEST(BackwardTest, AgreesForAContextOfOne) {
  ExpectGradientsAgree({.layers = 1, .width = 6, .heads = 2, .context = 1});
}

// ---- The float model ------------------------------------------------------

// A model with memory of its own, in place of libshard's.
class Net {
 public:
  Net(const gpt_config& config, int batch, double spread)
      : config_(config), context_(config.context) {
    const int count = gpt_tensor_count(&config);
    params_.resize(count);
    grads_.resize(count);
    for (int i = 0; i < count; i++) {
      const size_t numel = gpt_tensor_at(&config, i).numel;
      params_[i].resize(numel);
      // The gradients are not zero: the backward pass must overwrite, not add.
      grads_[i].assign(numel, 1e6f);
      gpt_initialize(&config, i, 7, params_[i].data());
      for (size_t j = 0; j < numel; j++) {
        params_[i][j] +=
            static_cast<float>(spread * random_normal(7, 1000 + i, j));
      }
      param_pointers_.push_back(params_[i].data());
      grad_pointers_.push_back(grads_[i].data());
    }
    size_t bytes = 0;
    model_ = gpt_create(&config_, batch, param_pointers_.data(),
                        grad_pointers_.data(), nullptr, nullptr, &bytes);
  }
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;
  ~Net() { gpt_free(model_); }

  double MeanLoss(const std::vector<uint8_t>& sequences) {
    const int batch = static_cast<int>(sequences.size()) / (context_ + 1);
    double nats = 0;
    EXPECT_TRUE(gpt_forward(model_, sequences.data(), batch, context_, &nats));
    return nats / (batch * context_);
  }

  gpt* model() { return model_; }
  std::vector<float>& param(int i) { return params_[i]; }
  const std::vector<float>& grad(int i) const { return grads_[i]; }

 private:
  const gpt_config config_;
  const int context_;
  std::vector<std::vector<float>> params_;
  std::vector<std::vector<float>> grads_;
  std::vector<float*> param_pointers_;
  std::vector<float*> grad_pointers_;
  gpt* model_ = nullptr;
};

std::vector<uint8_t> Bytes(int count, uint64_t stream) {
  std::vector<uint8_t> bytes(count);
  for (int i = 0; i < count; i++) bytes[i] = random_bits(3, stream, i) % 256;
  return bytes;
}

double Norm(const std::vector<float>& values) {
  double squares = 0;
  for (float v : values) squares += static_cast<double>(v) * v;
  return std::sqrt(squares);
}

// Along the gradient the loss changes fastest, by |gradient|. The step changes
// the loss by about 1e-2, of which float keeps four digits; the curvature takes
// about as much. 1 % is far from both, and from a wrong term.
TEST(FloatModelTest, LossChangesAlongTheGradientByItsNorm) {
  Net net(kSmall, 4, 0.2);
  const std::vector<uint8_t> sequences = Bytes(4 * 9, 1);
  for (int i = 0; i < gpt_tensor_count(&kSmall); i++) {
    net.MeanLoss(sequences);
    gpt_backward(net.model(), sequences.data());
    const std::vector<float> gradient = net.grad(i);
    const double norm = Norm(gradient);
    const std::vector<float> saved = net.param(i);
    const double step = std::fmin(5e-3 / norm, 3e-2);
    auto loss_at = [&](double distance) {
      for (size_t j = 0; j < saved.size(); j++) {
        net.param(i)[j] =
            saved[j] + static_cast<float>(distance * gradient[j] / norm);
      }
      return net.MeanLoss(sequences);
    };
    const double slope = (loss_at(step) - loss_at(-step)) / (2 * step);
    EXPECT_NEAR(slope, norm, 0.01 * norm) << gpt_tensor_at(&kSmall, i).name;
    net.param(i) = saved;
  }
}

// Data-parallel training rests on this.
TEST(FloatModelTest, GradientOfABatchIsTheMeanOverItsHalves) {
  const std::vector<uint8_t> both = Bytes(4 * 9, 2);
  const std::vector<uint8_t> halves[2] = {{both.begin(), both.begin() + 2 * 9},
                                          {both.begin() + 2 * 9, both.end()}};
  Net whole(kSmall, 4, 0.2);
  double loss = whole.MeanLoss(both);
  gpt_backward(whole.model(), both.data());
  Net first(kSmall, 2, 0.2);
  Net second(kSmall, 2, 0.2);
  loss -= (first.MeanLoss(halves[0]) + second.MeanLoss(halves[1])) / 2;
  gpt_backward(first.model(), halves[0].data());
  gpt_backward(second.model(), halves[1].data());
  EXPECT_NEAR(loss, 0, 1e-6);
  for (int i = 0; i < gpt_tensor_count(&kSmall); i++) {
    std::vector<float> off = whole.grad(i);
    for (size_t j = 0; j < off.size(); j++) {
      off[j] -= (first.grad(i)[j] + second.grad(i)[j]) / 2;
    }
    EXPECT_LE(Norm(off), 1e-5 * Norm(whole.grad(i)) + 1e-9)
        << gpt_tensor_at(&kSmall, i).name;
  }
}

TEST(FloatModelTest, APredictionDoesNotSeeWhatFollows) {
  Net net(kSmall, 1, 0.2);
  std::vector<uint8_t> sequence = Bytes(9, 3);
  net.MeanLoss(sequence);
  const float* p = gpt_probabilities(net.model(), 4);
  const std::vector<float> before(p, p + GPT_VOCABULARY);
  sequence[5] ^= 0x55;
  net.MeanLoss(sequence);
  EXPECT_EQ(before, std::vector<float>(p, p + GPT_VOCABULARY));
  sequence[4] ^= 0x55;
  net.MeanLoss(sequence);
  EXPECT_NE(before, std::vector<float>(p, p + GPT_VOCABULARY));
}

TEST(FloatModelTest, ProbabilitiesAddUpAndAFreshModelKnowsNothing) {
  Net net(kSmall, 2, 0);
  const std::vector<uint8_t> sequences = Bytes(2 * 9, 4);
  EXPECT_NEAR(net.MeanLoss(sequences), std::log(256.0), 0.05);
  for (int t = 0; t < 8; t++) {
    const float* p = gpt_probabilities(net.model(), t);
    double sum = 0;
    for (int v = 0; v < GPT_VOCABULARY; v++) sum += p[v];
    EXPECT_NEAR(sum, 1, 1e-5);
  }
}

TEST(FloatModelTest, AShorterSequenceGivesTheSamePredictions) {
  Net net(kSmall, 1, 0.2);
  const std::vector<uint8_t> sequence = Bytes(9, 5);
  net.MeanLoss(sequence);
  const float* p = gpt_probabilities(net.model(), 2);
  const std::vector<float> full(p, p + GPT_VOCABULARY);
  double nats = 0;
  gpt_forward(net.model(), sequence.data(), 1, 3, &nats);
  for (int v = 0; v < GPT_VOCABULARY; v++) EXPECT_NEAR(p[v], full[v], 1e-6);
}

TEST(FloatModelTest, SaysHowMuchMemoryItLacked) {
  if (shard::kSanitized) GTEST_SKIP() << "a sanitizer ends the program instead";
  // No machine has the memory for 2^20 sequences of 4096 bytes and 64 blocks of
  // width 8192.
  const gpt_config huge = {
      .layers = 64, .width = 8192, .heads = 256, .context = 4096};
  size_t bytes = 0;
  EXPECT_EQ(
      gpt_create(&huge, 1 << 20, nullptr, nullptr, nullptr, nullptr, &bytes),
      nullptr);
  EXPECT_GT(bytes, size_t{1} << 50);
}

TEST(FastExpTest, IsExpToFloatPrecision) {
  for (float x = -87; x <= 87; x += 0.0137f) {
    const double expected = std::exp(static_cast<double>(x));
    // The rounding of x * log2(e) and of n * ln 2 costs |x| * 6e-8.
    EXPECT_NEAR(fast_expf(x) / expected, 1, 3e-7 + 1.2e-7 * std::fabs(x)) << x;
  }
  EXPECT_EQ(fast_expf(0), 1);
  EXPECT_EQ(fast_expf(-1000), fast_expf(-87));
  EXPECT_EQ(fast_expf(1000), fast_expf(87));
}

// ---- Tensors --------------------------------------------------------------

TEST(TensorsTest, HaveGpt2NamesAndShapes) {
  EXPECT_EQ(gpt_tensor_count(&kSmall), 2 + 2 * 12 + 2);
  EXPECT_STREQ(gpt_tensor_at(&kSmall, GPT_TOKEN_WEIGHT).name, "wte.weight");
  const int block_1 = int{GPT_FIRST_BLOCK} + int{GPT_PER_BLOCK};
  const gpt_tensor qkv = gpt_tensor_at(&kSmall, block_1 + GPT_QKV_WEIGHT);
  EXPECT_STREQ(qkv.name, "h.1.attn.c_attn.weight");
  EXPECT_EQ(qkv.ndim, 2);
  EXPECT_EQ(qkv.shape[0], 36);
  EXPECT_EQ(qkv.shape[1], 12);
  EXPECT_STREQ(gpt_tensor_at(&kSmall, 27).name, "ln_f.bias");
  std::set<std::string> names;
  int64_t numel = 0;
  for (int i = 0; i < gpt_tensor_count(&kSmall); i++) {
    const gpt_tensor tensor = gpt_tensor_at(&kSmall, i);
    names.insert(tensor.name);
    numel += tensor.numel;
  }
  EXPECT_EQ(names.size(), 28u);
  EXPECT_EQ(numel, gpt_parameter_count(&kSmall));
}

TEST(TensorsTest, StandInTheModulesThatTheirNamesSay) {
  for (int i = 0; i < gpt_tensor_count(&kSmall); i++) {
    const gpt_tensor tensor = gpt_tensor_at(&kSmall, i);
    std::string path;
    for (int m = tensor.module; m != GPT_ROOT;) {
      const gpt_module module = gpt_module_at(&kSmall, m);
      path = std::string(module.name) + "." + path;
      ASSERT_LT(module.parent, m);
      m = module.parent;
    }
    EXPECT_EQ(std::string(tensor.name).rfind(path), 0u) << path;
    EXPECT_EQ(std::string(tensor.name).find('.', path.size()),
              std::string::npos)
        << tensor.name << " in " << path;
  }
}

TEST(TensorsTest, ModulesAreNumberedInTheOrderOfAWalk) {
  std::set<std::string> classes;
  for (int m = 1; m < gpt_module_count(&kSmall); m++) {
    // The parent is the module before this one, or a module around it.
    int around = m - 1;
    while (around != gpt_module_at(&kSmall, m).parent && around != GPT_ROOT) {
      around = gpt_module_at(&kSmall, around).parent;
    }
    EXPECT_EQ(around, gpt_module_at(&kSmall, m).parent) << m;
    classes.insert(gpt_module_at(&kSmall, m).class_name);
  }
  EXPECT_EQ(classes.size(), 7u);
  EXPECT_EQ(gpt_module_count(&kSmall), 4 + 2 * 9 + 2);
  EXPECT_STREQ(gpt_module_at(&kSmall, gpt_block_module(1)).name, "1");
  EXPECT_STREQ(gpt_module_at(&kSmall, gpt_ln_f_module(&kSmall)).name, "ln_f");
  EXPECT_STREQ(gpt_module_at(&kSmall, gpt_lm_head_module(&kSmall)).name,
               "lm_head");
}

TEST(TensorsTest, InitialValuesDependOnTheSeedAlone) {
  const size_t numel = gpt_tensor_at(&kSmall, GPT_TOKEN_WEIGHT).numel;
  std::vector<float> a(numel), b(numel), c(numel);
  gpt_initialize(&kSmall, GPT_TOKEN_WEIGHT, 1, a.data());
  gpt_initialize(&kSmall, GPT_TOKEN_WEIGHT, 1, b.data());
  gpt_initialize(&kSmall, GPT_TOKEN_WEIGHT, 2, c.data());
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
  // The values are normal with a standard deviation of 0.02: 3072 of them show
  // it to 5 %.
  EXPECT_NEAR(Norm(a) / std::sqrt(numel), 0.02, 0.001);
}

}  // namespace
}  // namespace gpt_test
