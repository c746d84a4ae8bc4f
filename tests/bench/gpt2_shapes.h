// SPDX-License-Identifier: Apache-2.0
//
// The parameters of GPT-2 (Radford et al., 2019), with the head tied to wte.
// The default is the smallest published model, 124M: 148 tensors, 124,439,808
// elements.

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

struct Gpt2Size {
  int64_t vocabulary = 50257;
  int64_t context = 1024;
  int64_t width = 768;
  int layers = 12;
};

inline std::vector<NamedShape> Gpt2Shapes(const Gpt2Size& size = {}) {
  const int64_t width = size.width;
  std::vector<NamedShape> shapes = {{"wte", {size.vocabulary, width}},
                                    {"wpe", {size.context, width}}};
  for (int layer = 0; layer < size.layers; ++layer) {
    const std::string prefix = "h" + std::to_string(layer) + "_";
    shapes.push_back({prefix + "ln1_weight", {width}});
    shapes.push_back({prefix + "ln1_bias", {width}});
    shapes.push_back({prefix + "qkv_weight", {3 * width, width}});
    shapes.push_back({prefix + "qkv_bias", {3 * width}});
    shapes.push_back({prefix + "out_weight", {width, width}});
    shapes.push_back({prefix + "out_bias", {width}});
    shapes.push_back({prefix + "ln2_weight", {width}});
    shapes.push_back({prefix + "ln2_bias", {width}});
    shapes.push_back({prefix + "fc_weight", {4 * width, width}});
    shapes.push_back({prefix + "fc_bias", {4 * width}});
    shapes.push_back({prefix + "proj_weight", {width, 4 * width}});
    shapes.push_back({prefix + "proj_bias", {width}});
  }
  shapes.push_back({"lnf_weight", {width}});
  shapes.push_back({"lnf_bias", {width}});
  return shapes;
}

}  // namespace shard::bench

#endif  // SHARD_TESTS_BENCH_GPT2_SHAPES_H_
