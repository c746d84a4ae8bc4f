// SPDX-License-Identifier: Apache-2.0
//
// The quickstart of libshard in C++: trains a small language model on any
// number of ranks, and saves a checkpoint from which the next run goes on.
//
//     c++ -std=c++20 -O2 quickstart.cc -lshard -o quickstart
//     shardctl run -n 2 -- ./quickstart checkpoints 400   # trains 400 steps
//     shardctl run -n 3 -- ./quickstart checkpoints 600   # and 200 more
//
// Read train() first. The model predicts each byte of a text from the bytes
// before it. README.md beside this file defines it to the bit, so that the
// quickstarts in all languages save the same checkpoints.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <span>
#include <vector>

#include "shard/shard.hpp"

namespace {

constexpr std::size_t kVocab = 256;  // A token is a byte.
constexpr std::size_t kContext = 4;  // The bytes that a prediction reads.
constexpr std::size_t kDim = 16;     // The numbers that describe a byte.
constexpr std::size_t kBatch = 64;   // Predictions per step, over all ranks.
constexpr int kReport = 50;  // Steps from one line of output to the next.

// The parameters. Their names are the keys in checkpoints.
struct Tensor {
  const char* name;
  shard::Shape shape;
  std::size_t numel;
};
const std::array kTensors = {
    Tensor{"embed", {kVocab, kDim}, kVocab* kDim},
    Tensor{"position", {kContext, kDim}, kContext* kDim},
    Tensor{"out", {kVocab, kDim}, kVocab* kDim},
    Tensor{"bias", {kVocab}, kVocab}};

// A parameter in memory of libshard: what the model reads, and what it writes
// in each step, after it has summed this rank's gradients in double.
struct Param {
  std::span<const float> values;
  std::span<float> grad;
  std::vector<double> sums;
};
using Params = std::array<Param, kTensors.size()>;

// Sets the first values: small numbers that look random, and a bias of 0.
void initialize(shard::Engine& engine, std::span<const shard::ParamId> ids) {
  std::uint32_t n = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::vector<float> values(kTensors[i].numel);
    for (float& value : values) {
      const std::uint32_t random = n++ * 2654435761u + 12345u;
      value = static_cast<float>(random >> 8) * 0x1p-24f - 0.5f;
    }
    if (i + 1 == ids.size()) std::ranges::fill(values, 0.0f);  // The bias.
    engine.set_param(ids[i], values);
  }
  engine.broadcast_params();
}

// Returns 1 / (1 - x / 1024)^1024, which is nearly exp(x) for x <= 0. Every
// language computes the same bits, and exp in a way of its own.
double power(double x) {
  double result = 1 - x / 1024;
  for (int i = 0; i < 10; ++i) result *= result;
  return 1 / result;
}

// Predicts the byte at `next`, adds the gradients of the loss to the sums, and
// returns the loss.
double learn(Params& params, const std::uint8_t* next) {
  auto& [embed, position, out, bias] = params;
  std::array<double, kDim> hidden = {}, hidden_grad = {};
  for (std::size_t i = 0; i < kContext; ++i) {
    const auto read = embed.values.subspan(*(next - 1 - i) * kDim, kDim);
    const auto weight = position.values.subspan(i * kDim, kDim);
    for (std::size_t d = 0; d < kDim; ++d) {
      hidden[d] += double{weight[d]} * double{read[d]};
    }
  }
  std::array<double, kVocab> p;
  for (std::size_t v = 0; v < kVocab; ++v) {
    p[v] = double{bias.values[v]};
    for (std::size_t d = 0; d < kDim; ++d) {
      p[v] += hidden[d] * double{out.values[v * kDim + d]};
    }
  }
  const double largest = *std::ranges::max_element(p);
  double total = 0;
  for (double& each : p) total += each = power(each - largest);
  for (std::size_t v = 0; v < kVocab; ++v) {
    const double grad = (p[v] / total - (v == *next ? 1 : 0)) / kBatch;
    bias.sums[v] += grad;
    for (std::size_t d = 0; d < kDim; ++d) {
      hidden_grad[d] += grad * double{out.values[v * kDim + d]};
      out.sums[v * kDim + d] += grad * hidden[d];
    }
  }
  for (std::size_t i = 0; i < kContext; ++i) {
    for (std::size_t d = 0; d < kDim; ++d) {
      const std::size_t from = *(next - 1 - i) * kDim + d, to = i * kDim + d;
      embed.sums[from] += hidden_grad[d] * double{position.values[to]};
      position.sums[to] += hidden_grad[d] * double{embed.values[from]};
    }
  }
  return -std::log(p[*next] / total);
}

void train(const char* folder, std::int64_t steps,
           std::span<const std::uint8_t> text) {
  // Meet the other ranks, which `shardctl run` has started.
  auto comm = shard::Comm::open("env:");
  const int rank = comm.rank(), ranks = comm.world_size();

  // Declare the model, and decide how it is sharded. In stage 1 each rank keeps
  // the optimizer states of its part of the parameters, and steps that part.
  auto model = shard::Model::create("ByteModel");
  std::vector<shard::ParamId> ids;
  for (const auto& [name, shape, numel] : kTensors) {
    ids.push_back(
        model.add_param(shard::root_module, name, shard::DType::f32, shape));
  }
  const auto plan =
      shard::Plan::create(model, {.stage = 1,
                                  .world_size = ranks,
                                  .optimizer = "adamw?lr=0.02&weight_decay=0"});
  auto engine = shard::Engine::create(plan, comm);

  // Go on from the last checkpoint, or begin.
  std::int64_t done = 0;
  try {
    done = shard::Checkpoint::load(engine, folder).step;
  } catch (const shard::Error& error) {
    if (error.code() != shard::Code::not_found) throw;
    initialize(engine, ids);
  }

  Params params;
  for (std::size_t i = 0; i < params.size(); ++i) {
    params[i] = {engine.param<float>(ids[i]), engine.grad<float>(ids[i]), {}};
  }
  double loss = 0;
  for (std::int64_t step = done; step < steps; ++step) {
    for (Param& param : params) param.sums.assign(param.grad.size(), 0);
    for (std::size_t i = rank; i < kBatch; i += ranks) {  // This rank's part.
      const auto random =
          static_cast<std::uint32_t>(step * kBatch + i) * 2654435761u;
      loss +=
          learn(params, &text[kContext + random % (text.size() - kContext)]);
    }
    for (Param& param : params) {
      std::ranges::transform(param.sums, param.grad.begin(), [](double sum) {
        return static_cast<float>(sum);
      });
    }
    engine.step({.grad_divisor = 1});  // learn() has divided by the batch.
    if ((step + 1) % kReport != 0) continue;
    loss = comm.sum(loss) / (kBatch * kReport);  // Over all ranks.
    if (rank == 0) std::printf("step %d: loss %.4f\n", int(step) + 1, loss);
    loss = 0;
  }
  if (done < steps) shard::Checkpoint::save(engine, folder);
  comm.shutdown();
}

}  // namespace

// An exception that ends this rank gives the others RANK_LOST.
int main(int argc, char** argv) try {
  const char* path = argc > 3 ? argv[3] : "/usr/share/common-licenses/GPL-3";
  const std::int64_t steps = argc > 2 ? std::strtoll(argv[2], nullptr, 10) : 0;
  std::vector<std::uint8_t> text(1 << 20);
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(text.data()), text.size());
  text.resize(file.gcount());
  if (argc < 3 || argc > 4 || steps < 1 || text.size() <= kContext) {
    std::fprintf(stderr,
                 "usage: quickstart FOLDER STEPS [TEXT], where STEPS is at "
                 "least 1 and TEXT ('%s') a file of more than %zu bytes\n",
                 path, kContext);
    return 2;
  }
  train(argv[1], steps, text);
} catch (const std::exception& error) {
  std::fprintf(stderr, "quickstart: %s\n", error.what());
  return 1;
}
