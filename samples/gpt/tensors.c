// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/tensors.h"

#include <math.h>
#include <stdio.h>

// ---- Modules --------------------------------------------------------------

static const gpt_module kOutside[] = {
    {"", "GPT", -1},
    {"wte", "Embedding", GPT_ROOT},
    {"wpe", "Embedding", GPT_ROOT},
    {"h", "ModuleList", GPT_ROOT},
    // These two come after the blocks.
    {"ln_f", "LayerNorm", GPT_ROOT},
    {"lm_head", "Linear", GPT_ROOT},
};

// The parent of the block is GPT_BLOCKS; the other parents are indices within
// the block.
static const gpt_module kInBlock[GPT_MODULES_PER_BLOCK] = {
    {"", "Block", GPT_BLOCKS},        {"ln_1", "LayerNorm", GPT_BLOCK},
    {"attn", "Attention", GPT_BLOCK}, {"c_attn", "Linear", GPT_ATTN},
    {"c_proj", "Linear", GPT_ATTN},   {"ln_2", "LayerNorm", GPT_BLOCK},
    {"mlp", "MLP", GPT_BLOCK},        {"c_fc", "Linear", GPT_MLP},
    {"c_proj", "Linear", GPT_MLP},
};

int gpt_block_module(int block) {
  return GPT_FIRST_BLOCK_MODULE + block * GPT_MODULES_PER_BLOCK;
}

int gpt_ln_f_module(const gpt_config* config) {
  return gpt_block_module(config->layers);
}

int gpt_lm_head_module(const gpt_config* config) {
  return gpt_ln_f_module(config) + 1;
}

int gpt_module_count(const gpt_config* config) {
  return gpt_lm_head_module(config) + 1;
}

gpt_module gpt_module_at(const gpt_config* config, int index) {
  if (index < GPT_FIRST_BLOCK_MODULE) return kOutside[index];
  const int after = index - gpt_ln_f_module(config);
  if (after >= 0) return kOutside[GPT_FIRST_BLOCK_MODULE + after];
  const int block = (index - GPT_FIRST_BLOCK_MODULE) / GPT_MODULES_PER_BLOCK;
  gpt_module module = kInBlock[index - gpt_block_module(block)];
  if (index == gpt_block_module(block)) {
    snprintf(module.name, sizeof(module.name), "%d", block);
  } else {
    module.parent += gpt_block_module(block);
  }
  return module;
}

// ---- Parameters -----------------------------------------------------------

int gpt_tensor_count(const gpt_config* config) {
  return GPT_FIRST_BLOCK + config->layers * GPT_PER_BLOCK + 2;
}

static gpt_tensor vector(int64_t size, double value) {
  return (gpt_tensor){.ndim = 1, .shape = {size}, .numel = size, .mean = value};
}

static gpt_tensor matrix(int64_t rows, int64_t columns, double std) {
  return (gpt_tensor){
      .ndim = 2, .shape = {rows, columns}, .numel = rows * columns, .std = std};
}

static gpt_tensor block_tensor(const gpt_config* config, int kind) {
  const int64_t width = config->width;
  // As in GPT-2, a projection that ends in the residual stream starts smaller,
  // since 2 * layers of them add up there.
  const double std = 0.02;
  const double residual_std = std / sqrt(2.0 * config->layers);
  switch (kind) {
    case GPT_LN_1_WEIGHT:
    case GPT_LN_2_WEIGHT:
      return vector(width, 1);
    case GPT_QKV_WEIGHT:
      return matrix(3 * width, width, std);
    case GPT_QKV_BIAS:
      return vector(3 * width, 0);
    case GPT_ATTN_PROJ_WEIGHT:
      return matrix(width, width, residual_std);
    case GPT_FC_WEIGHT:
      return matrix(4 * width, width, std);
    case GPT_FC_BIAS:
      return vector(4 * width, 0);
    case GPT_MLP_PROJ_WEIGHT:
      return matrix(width, 4 * width, residual_std);
    default:
      return vector(width, 0);
  }
}

gpt_tensor gpt_tensor_at(const gpt_config* config, int index) {
  static const char* const kBlockNames[GPT_PER_BLOCK] = {
      "ln_1.weight",      "ln_1.bias",          "attn.c_attn.weight",
      "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
      "ln_2.weight",      "ln_2.bias",          "mlp.c_fc.weight",
      "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias",
  };
  // Each entry is the module of a weight and of the bias after it.
  static const int kBlockModules[GPT_PER_BLOCK / 2] = {
      GPT_LN_1, GPT_QKV, GPT_ATTN_PROJ, GPT_LN_2, GPT_FC, GPT_MLP_PROJ};
  gpt_tensor tensor;
  const int block = (index - GPT_FIRST_BLOCK) / GPT_PER_BLOCK;
  if (index == GPT_TOKEN_WEIGHT) {
    tensor = matrix(GPT_VOCABULARY, config->width, 0.02);
    snprintf(tensor.name, sizeof(tensor.name), "wte.weight");
    tensor.module = GPT_WTE;
  } else if (index == GPT_POSITION_WEIGHT) {
    tensor = matrix(config->context, config->width, 0.02);
    snprintf(tensor.name, sizeof(tensor.name), "wpe.weight");
    tensor.module = GPT_WPE;
  } else if (block < config->layers) {
    const int kind = (index - GPT_FIRST_BLOCK) % GPT_PER_BLOCK;
    tensor = block_tensor(config, kind);
    snprintf(tensor.name, sizeof(tensor.name), "h.%d.%s", block,
             kBlockNames[kind]);
    tensor.module = gpt_block_module(block) + kBlockModules[kind / 2];
  } else {
    const int weight = index == gpt_tensor_count(config) - 2;
    tensor = vector(config->width, weight ? 1 : 0);
    snprintf(tensor.name, sizeof(tensor.name), "ln_f.%s",
             weight ? "weight" : "bias");
    tensor.module = gpt_ln_f_module(config);
  }
  return tensor;
}

int64_t gpt_parameter_count(const gpt_config* config) {
  int64_t count = 0;
  for (int i = 0; i < gpt_tensor_count(config); i++) {
    count += gpt_tensor_at(config, i).numel;
  }
  return count;
}
