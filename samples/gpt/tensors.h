// SPDX-License-Identifier: Apache-2.0
//
// The parts of the GPT: a tree of modules, in the order of a walk, and the
// parameters in them, with shapes and initial values. Every array of tensors in
// this sample has the order of the parameters here. Names are those of GPT-2 in
// PyTorch.

#ifndef SHARD_SAMPLES_GPT_TENSORS_H_
#define SHARD_SAMPLES_GPT_TENSORS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { GPT_VOCABULARY = 256 };

typedef struct gpt_config {
  int layers;  // 1 to GPT_MAX_LAYERS.
  int width;   // A multiple of heads.
  int heads;
  int context;
} gpt_config;

// ---- Modules --------------------------------------------------------------

// The root and the modules in it before those of the blocks. ln_f and lm_head
// follow after the last block.
enum { GPT_ROOT, GPT_WTE, GPT_WPE, GPT_BLOCKS, GPT_FIRST_BLOCK_MODULE };

// The modules of block l start at gpt_block_module(l), with the block itself.
enum {
  GPT_BLOCK,
  GPT_LN_1,
  GPT_ATTN,
  GPT_QKV,
  GPT_ATTN_PROJ,
  GPT_LN_2,
  GPT_MLP,
  GPT_FC,
  GPT_MLP_PROJ,
  GPT_MODULES_PER_BLOCK
};

typedef struct gpt_module {
  char name[16];  // The name within the parent; "" for the root.
  const char* class_name;
  int parent;  // -1 for the root.
} gpt_module;

int gpt_module_count(const gpt_config* config);

// Returns a module. REQUIRES: 0 <= index < gpt_module_count(config).
gpt_module gpt_module_at(const gpt_config* config, int index);

int gpt_block_module(int block);
int gpt_ln_f_module(const gpt_config* config);
int gpt_lm_head_module(const gpt_config* config);

// ---- Parameters -----------------------------------------------------------

// The tensors before those of the blocks. ln_f.weight and ln_f.bias follow
// after the last block.
enum { GPT_TOKEN_WEIGHT, GPT_POSITION_WEIGHT, GPT_FIRST_BLOCK };

// The tensors of block l start at GPT_FIRST_BLOCK + l * GPT_PER_BLOCK.
enum {
  GPT_LN_1_WEIGHT,
  GPT_LN_1_BIAS,
  GPT_QKV_WEIGHT,
  GPT_QKV_BIAS,
  GPT_ATTN_PROJ_WEIGHT,
  GPT_ATTN_PROJ_BIAS,
  GPT_LN_2_WEIGHT,
  GPT_LN_2_BIAS,
  GPT_FC_WEIGHT,
  GPT_FC_BIAS,
  GPT_MLP_PROJ_WEIGHT,
  GPT_MLP_PROJ_BIAS,
  GPT_PER_BLOCK
};

enum {
  GPT_MAX_LAYERS = 64,
  GPT_MAX_MODULES =
      GPT_FIRST_BLOCK_MODULE + GPT_MAX_LAYERS * GPT_MODULES_PER_BLOCK + 2,
  GPT_MAX_TENSORS = GPT_FIRST_BLOCK + GPT_MAX_LAYERS * GPT_PER_BLOCK + 2
};

typedef struct gpt_tensor {
  char name[48];  // "h.3.attn.c_attn.weight"
  int module;     // The module that the tensor is in.
  int32_t ndim;   // 1 or 2
  int64_t shape[2];
  int64_t numel;
  // Initial values are normal around `mean`, and constant where `std` is 0.
  double mean;
  double std;
} gpt_tensor;

int gpt_tensor_count(const gpt_config* config);

// Returns a tensor. REQUIRES: 0 <= index < gpt_tensor_count(config).
gpt_tensor gpt_tensor_at(const gpt_config* config, int index);

// Returns the number of elements. The lm head is not counted: it is tied.
int64_t gpt_parameter_count(const gpt_config* config);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHARD_SAMPLES_GPT_TENSORS_H_
