// SPDX-License-Identifier: Apache-2.0
//
// Usage: make_checkpoint ROOT RANKS BLOCKS
//
// Trains a transformer of BLOCKS blocks on RANKS threads for a step, and saves
// it as a checkpoint of step 1 in ROOT. Its embedding is tied, and so large
// that ranks hold different tensors. A quarter of the keys have characters that
// a terminal or browser must take for plain text.
// terminal or browser should take for anything but text.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "shard/shard.h"

namespace {

void Check(shard_error* error) {
  if (error == nullptr) return;
  std::fprintf(stderr, "make_checkpoint: %s\n", shard_error_message(error));
  std::exit(1);
}

class Net {
 public:
  explicit Net(int blocks) {
    Check(shard_model_create("Net", &model_));
    const int32_t embed = Module(0, "wte", "Embedding");
    const int32_t table = Param(embed, "weight", SHARD_F32, {2000, 64});
    const int32_t list = Module(0, "h", "ModuleList");
    for (int b = 0; b < blocks; ++b) {
      const int32_t block = Module(list, std::to_string(b), "Block");
      Param(block, "attention", SHARD_BF16, {192, 64});
      Param(block, "mlp", SHARD_BF16, {256, 64});
      biases_.push_back(Param(block, "bias", SHARD_F32, {64}));
      if (b < 3) Param(block, kHostile[b], SHARD_F32, {280, 64});
    }
    Check(shard_model_freeze(model_, Param(0, "scale", SHARD_F32, {4096})));
    Check(shard_model_tie(model_, Module(0, "lm_head", "Linear"), "weight",
                          table));
    int32_t group = 0;
    Check(shard_model_add_param_group(model_, "?weight_decay=0", biases_.data(),
                                      biases_.size(), &group));
  }
  ~Net() { shard_model_free(model_); }

  const shard_model* model() const { return model_; }
  int32_t num_params() const { return num_params_; }

 private:
  static constexpr const char* kHostile[] = {
      "<script>document[\"body\"]=0</script>",
      "\"onmouseover=alert(1) x='&amp;", "a\\nb\xe2\x80\xae gnp", "plain"};

  int32_t Module(int32_t parent, const std::string& name, const char* type) {
    int32_t id = 0;
    Check(shard_model_add_module(model_, parent, name.c_str(), type, &id));
    return id;
  }
  int32_t Param(int32_t module, const std::string& name, int32_t dtype,
                const std::vector<int64_t>& shape) {
    int32_t id = 0;
    Check(shard_model_add_param(model_, module, name.c_str(), dtype,
                                shape.data(), shape.size(), &id));
    ++num_params_;
    return id;
  }

  shard_model* model_ = nullptr;
  std::vector<int32_t> biases_;
  int32_t num_params_ = 0;
};

void RunRank(const shard_plan* plan, int rank, int ranks, int32_t params,
             const char* root) {
  shard_comm_options options = SHARD_COMM_OPTIONS_INIT;
  options.rank = rank;
  options.world_size = ranks;
  shard_comm* comm = nullptr;
  const std::string url = "threads:" + std::to_string(ranks);
  Check(shard_comm_open(url.c_str(), &options, &comm));
  shard_engine* engine = nullptr;
  Check(shard_engine_create(plan, comm, nullptr, &engine));
  for (int32_t p = 0; p < params; ++p) {
    shard_param_info info = SHARD_PARAM_INFO_INIT;
    Check(shard_plan_param_info(plan, p, &info));
    const std::vector<uint16_t> zeros(static_cast<size_t>(info.numel) * 2, 0);
    Check(shard_engine_set_param(
        engine, p, zeros.data(),
        static_cast<size_t>(info.numel) * (info.dtype == SHARD_F32 ? 4 : 2)));
  }
  Check(shard_engine_broadcast_params(engine, 0));
  for (int32_t p = 0; p < params; ++p) {
    shard_param_info info = SHARD_PARAM_INFO_INIT;
    Check(shard_plan_param_info(plan, p, &info));
    if (info.trainable == 0) continue;
    void* grad = nullptr;
    int64_t numel = 0;
    Check(shard_engine_grad(engine, p, &grad, &numel));
    // These are 1 in bf16, and about 1 in f32.
    std::fill_n(static_cast<uint16_t*>(grad),
                info.dtype == SHARD_F32 ? 2 * numel : numel, uint16_t{0x3f80});
  }
  Check(shard_engine_step(engine, nullptr, nullptr));
  const std::string position = "shard " + std::to_string(rank);
  Check(shard_engine_set_blob(engine, "<b>loader</b>", SHARD_BLOB_PER_RANK,
                              position.data(), position.size()));
  Check(shard_checkpoint_save(engine, root, nullptr, nullptr));
  Check(shard_comm_shutdown(comm, 0));
  shard_engine_free(engine);
  shard_comm_free(comm);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: make_checkpoint ROOT RANKS BLOCKS\n");
    return 2;
  }
  const int ranks = std::atoi(argv[2]);
  const Net net(std::atoi(argv[3]));
  shard_plan_options options = SHARD_PLAN_OPTIONS_INIT;
  options.stage = 1;
  options.world_size = ranks;
  shard_plan* plan = nullptr;
  Check(shard_plan_create(net.model(), &options, &plan));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back(RunRank, plan, rank, ranks, net.num_params(), argv[1]);
  }
  for (std::thread& thread : threads) thread.join();
  shard_plan_free(plan);
  return 0;
}
