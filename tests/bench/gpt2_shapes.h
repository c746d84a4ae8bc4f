// SPDX-License-Identifier: Apache-2.0
//
// The parameters of GPT-2 124M (Radford et al., 2019; the smallest published
// model): 148 tensors, 124,439,808 elements, the head tied to wte.

#ifndef SHARD_TESTS_BENCH_GPT2_SHAPES_H_
#define SHARD_TESTS_BENCH_GPT2_SHAPES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace shard::bench {

struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
};

inline std::vector<NamedShape> Gpt2Shapes() {
  constexpr int64_t kWidth = 768;
  std::vector<NamedShape> shapes = {{"wte", {50257, kWidth}},
                                    {"wpe", {1024, kWidth}}};
  for (int layer = 0; layer < 12; ++layer) {
    const std::string prefix = "h" + std::to_string(layer) + "_";
    shapes.push_back({prefix + "ln1_weight", {kWidth}});
    shapes.push_back({prefix + "ln1_bias", {kWidth}});
    shapes.push_back({prefix + "qkv_weight", {3 * kWidth, kWidth}});
    shapes.push_back({prefix + "qkv_bias", {3 * kWidth}});
    shapes.push_back({prefix + "out_weight", {kWidth, kWidth}});
    shapes.push_back({prefix + "out_bias", {kWidth}});
    shapes.push_back({prefix + "ln2_weight", {kWidth}});
    shapes.push_back({prefix + "ln2_bias", {kWidth}});
    shapes.push_back({prefix + "fc_weight", {4 * kWidth, kWidth}});
    shapes.push_back({prefix + "fc_bias", {4 * kWidth}});
    shapes.push_back({prefix + "proj_weight", {kWidth, 4 * kWidth}});
    shapes.push_back({prefix + "proj_bias", {kWidth}});
  }
  shapes.push_back({"lnf_weight", {kWidth}});
  shapes.push_back({"lnf_bias", {kWidth}});
  return shapes;
}

}  // namespace shard::bench

#endif  // SHARD_TESTS_BENCH_GPT2_SHAPES_H_
