// SPDX-License-Identifier: Apache-2.0
//
// The training engine of host.c in C++, with the tensors of libshard: see there
// what it computes and prints.

#include <bit>
#include <cinttypes>
#include <cstdio>

#include "shard/shard.hpp"

namespace {

using shard::Code;
using shard::DType;
using shard::ParamId;

constexpr int kDim = 6, kBatch = 4, kSteps = 10;

// Returns a value in [-0.5, 0.5) that is exact in a float.
float value(std::uint32_t i) {
  const std::uint32_t hash = i * 2654435761u + 12345u;
  return static_cast<float>(hash >> 8) * 0x1p-24f - 0.5f;
}

struct Net {
  shard::Model model = shard::Model::create("Net");
  shard::ModuleId encoder =
      model.add_module(shard::root_module, "encoder", "Linear");
  shard::ModuleId decoder =
      model.add_module(shard::root_module, "decoder", "Linear");
  ParamId weight = model.add_param(encoder, "weight", DType::f32, {kDim, kDim});
  ParamId bias = model.add_param(encoder, "bias", DType::f32, {kDim});
  ParamId scale = model.add_param(decoder, "scale", DType::f32, {kDim});
  ParamId out_bias = model.add_param(decoder, "out_bias", DType::f32, {kDim});

  Net() {
    model.tie(decoder, "weight", weight);
    model.freeze(scale);
  }
  std::vector<ParamId> params() const {
    return {weight, bias, scale, out_bias};
  }
};

// Names an unknown optimizer, to show an error in this language.
void show_error(const Net& net) {
  try {
    (void)shard::Plan::create(net.model,
                              {.world_size = 1, .optimizer = "adamx"});
  } catch (const shard::Error& error) {
    std::printf("%s: %s\n", shard::code_name(error.code()), error.message());
  }
}

// Adds the gradients of one batch. Returns the sum of its losses.
float train_batch(const Net& net, shard::Engine& engine, std::uint32_t rank) {
  const auto weight = engine.param<float>(net.weight);
  const auto bias = engine.param<float>(net.bias);
  const auto scale = engine.param<float>(net.scale);
  const auto out_bias = engine.param<float>(net.out_bias);
  const auto weight_grad = engine.grad<float>(net.weight);
  const auto bias_grad = engine.grad<float>(net.bias);
  const auto out_bias_grad = engine.grad<float>(net.out_bias);
  float loss = 0;
  for (std::uint32_t e = 0; e < kBatch; ++e) {
    float x[kDim], r[kDim], s[kDim], dy[kDim];
    for (std::uint32_t i = 0; i < kDim; ++i) {
      x[i] = value(1000u + (rank * kBatch + e) * kDim + i);
    }
    for (std::size_t i = 0; i < kDim; ++i) {
      float h = bias[i];
      for (std::size_t j = 0; j < kDim; ++j) h += weight[i * kDim + j] * x[j];
      r[i] = h > 0 ? h : 0;
      s[i] = r[i] * scale[i];
    }
    for (std::size_t i = 0; i < kDim; ++i) {
      float y = out_bias[i];
      for (std::size_t j = 0; j < kDim; ++j) y += weight[i * kDim + j] * s[j];
      const float d = y - x[(i + 1) % kDim];
      loss += d * d;
      dy[i] = d * (2.0f / kBatch);
    }
    for (std::size_t i = 0; i < kDim; ++i) {
      out_bias_grad[i] += dy[i];
      for (std::size_t j = 0; j < kDim; ++j) {
        weight_grad[i * kDim + j] += dy[i] * s[j];
      }
    }
    for (std::size_t i = 0; i < kDim; ++i) {
      float ds = 0;
      for (std::size_t k = 0; k < kDim; ++k) ds += weight[k * kDim + i] * dy[k];
      const float dh = r[i] > 0 ? ds * scale[i] : 0;
      bias_grad[i] += dh;
      for (std::size_t j = 0; j < kDim; ++j) {
        weight_grad[i * kDim + j] += dh * x[j];
      }
    }
  }
  return loss;
}

void fill(const Net& net, shard::Engine& engine) {
  for (const ParamId param : net.params()) {
    const auto values = engine.writable_param<float>(param);
    const auto first = 100 * static_cast<std::uint32_t>(param);
    for (std::uint32_t i = 0; i < values.size(); ++i) {
      values[i] = value(first + i) + (param == net.scale ? 1 : 0);
    }
  }
}

std::uint64_t hash_of(const Net& net, shard::Engine& engine) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const ParamId param : net.params()) {
    for (const std::byte byte : engine.param<std::byte>(param)) {
      hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3;
    }
  }
  return hash;
}

void train(const Net& net, shard::Comm& comm, shard::Engine& engine) {
  double first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    engine.zero_grad();
    const auto rank = static_cast<std::uint32_t>(comm.rank());
    last = comm.sum(static_cast<double>(train_batch(net, engine, rank)));
    if (step == 0) first = last;
    if (step == 5) engine.set_hyper(shard::all_groups, "lr", 0.02);
    const shard::StepReport report =
        engine.step({.max_grad_norm = step % 2 == 1 ? 0.5 : 0});
    if (report.step != step + 1 || report.skipped != 0) {
      throw shard::Error(Code::internal, "a step was skipped");
    }
  }
  if (!(last < first)) throw shard::Error(Code::internal, "the loss went up");
  std::printf("first %016" PRIx64 " last %016" PRIx64 " ",
              std::bit_cast<std::uint64_t>(first),
              std::bit_cast<std::uint64_t>(last));
}

// Loads the checkpoint in `folder`, or fills, trains and saves there.
void use(const Net& net, shard::Comm& comm, shard::Engine& engine,
         const char* folder) {
  try {
    shard::Checkpoint::load(engine, folder);
    std::printf("loaded ");
  } catch (const shard::Error& error) {
    if (error.code() != Code::not_found) throw;
    if (comm.rank() == 0) fill(net, engine);
    engine.broadcast_params();
    train(net, comm, engine);
    shard::Checkpoint::save(engine, folder);
  }
  std::printf("params %016" PRIx64 "\n", hash_of(net, engine));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  auto comm = shard::Comm::open("env:");
  const Net net;
  show_error(net);
  const auto plan = shard::Plan::create(
      net.model, {.stage = 1,
                  .world_size = comm.world_size(),
                  .optimizer = "adamw?lr=0.05&weight_decay=0.01"});
  auto engine = shard::Engine::create(plan, comm);
  use(net, comm, engine, argv[1]);
  comm.shutdown();
} catch (const std::exception& error) {
  std::fprintf(stderr, "host.cc: %s\n", error.what());
  return 1;
}
