// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/gpt.h"

#include <stdlib.h>

#include "samples/gpt/random.h"

// The values that one block keeps from the forward to the backward pass. R =
// batch * length rows.
typedef struct block_activations {
  real* norm_1;        // (R, C)
  real* mean_1;        // (R)
  real* rstd_1;        // (R)
  real* qkv;           // (R, 3C)
  real* attention;     // (batch, heads, length, length)
  real* heads_out;     // (R, C)
  real* residual_mid;  // (R, C) after attention
  real* norm_2;        // (R, C)
  real* mean_2;        // (R)
  real* rstd_2;        // (R)
  real* hidden;        // (R, 4C)
  real* gelu;          // (R, 4C)
  real* residual_out;  // (R, C) after the MLP
} block_activations;

struct gpt {
  gpt_config config;
  layers* on;
  const real* const* params;
  real* const* grads;
  gpt_hooks hooks;  // Both are NULL where there are none.
  bool backward;    // Whether the last pass was a backward pass.
  bool stopped;     // Whether a hook stopped the pass.
  int batch;        // The batch of the last forward pass.
  int length;
  real* embedded;     // (R, C)
  real* norm_f;       // (R, C)
  real* mean_f;       // (R)
  real* rstd_f;       // (R)
  real* logits;       // (R, V): then probabilities, then their gradient
  real* d_residual;   // (R, C)
  real* d_branch;     // (R, C)
  real* d_wide;       // (R, 4C)
  real* d_attention;  // layers.attention_scratch
  real* arena;
  block_activations blocks[];
};

void gpt_initialize(const gpt_config* config, int index, uint64_t seed,
                    real* data) {
  const gpt_tensor tensor = gpt_tensor_at(config, index);
  for (int64_t i = 0; i < tensor.numel; i++) {
    double value = tensor.mean;
    if (tensor.std > 0) {
      value += tensor.std * random_normal(seed, (uint64_t)index, (uint64_t)i);
    }
    data[i] = (real)value;
  }
}

// Takes `count` numbers from the arena, and begins each array on a cache line.
// With arena NULL it only counts.
static real* take(real* arena, size_t* used, size_t count) {
  real* data = arena ? arena + *used : NULL;
  *used += (count + 15) / 16 * 16;
  return data;
}

// Lays all activations out. Returns how many numbers they take.
static size_t lay_out(gpt* model, int batch, real* arena) {
  const gpt_config* config = &model->config;
  const size_t context = (size_t)config->context;
  const size_t rows = (size_t)batch * context;
  const size_t narrow = rows * (size_t)config->width;
  size_t used = 0;
  model->arena = arena;
  model->embedded = take(arena, &used, narrow);
  for (int l = 0; l < config->layers; l++) {
    block_activations* block = &model->blocks[l];
    block->norm_1 = take(arena, &used, narrow);
    block->mean_1 = take(arena, &used, rows);
    block->rstd_1 = take(arena, &used, rows);
    block->qkv = take(arena, &used, 3 * narrow);
    block->attention =
        take(arena, &used, rows * (size_t)config->heads * context);
    block->heads_out = take(arena, &used, narrow);
    block->residual_mid = take(arena, &used, narrow);
    block->norm_2 = take(arena, &used, narrow);
    block->mean_2 = take(arena, &used, rows);
    block->rstd_2 = take(arena, &used, rows);
    block->hidden = take(arena, &used, 4 * narrow);
    block->gelu = take(arena, &used, 4 * narrow);
    block->residual_out = take(arena, &used, narrow);
  }
  model->norm_f = take(arena, &used, narrow);
  model->mean_f = take(arena, &used, rows);
  model->rstd_f = take(arena, &used, rows);
  model->logits = take(arena, &used, rows * GPT_VOCABULARY);
  model->d_residual = take(arena, &used, narrow);
  model->d_branch = take(arena, &used, narrow);
  model->d_wide = take(arena, &used, 4 * narrow);
  model->d_attention =
      take(arena, &used,
           model->on->attention_scratch(batch, config->context, config->heads));
  return used;
}

gpt* gpt_create(const gpt_config* config, int batch, const real* const* params,
                real* const* grads, const gpt_hooks* hooks, layers* on,
                size_t* bytes) {
  const size_t blocks = (size_t)config->layers * sizeof(block_activations);
  *bytes = sizeof(gpt) + blocks;
  gpt* model = calloc(1, *bytes);
  if (!model) return NULL;
  model->config = *config;
  model->on = on ? on : cpu_layers();
  model->params = params;
  model->grads = grads;
  if (hooks) model->hooks = *hooks;
  *bytes = lay_out(model, batch, NULL) * sizeof(real);
  // Sizes are counted in steps of 16 numbers, so *bytes is a multiple of 64.
  real* arena = model->on->allocate(model->on, *bytes);
  if (!arena) {
    free(model);
    return NULL;
  }
  lay_out(model, batch, arena);
  return model;
}

void gpt_free(gpt* model) {
  if (!model) return;
  model->on->release(model->on, model->arena);
  free(model);
}

// ---- Hooks ----------------------------------------------------------------

static void begin(gpt* model, bool backward) {
  model->backward = backward;
  model->stopped = false;
}

// Calls the `enter` hook of a module. Returns false once a hook or an error of
// the layers has stopped the pass: the computation of the module is then
// skipped, and so is all that follows.
static bool enter(gpt* model, int module) {
  const gpt_hooks* hooks = &model->hooks;
  if (model->on->error) model->stopped = true;
  if (!model->stopped && hooks->enter) {
    model->stopped = !hooks->enter(hooks->user_data, module, model->backward);
  }
  return !model->stopped;
}

static void leave(gpt* model, int module) {
  const gpt_hooks* hooks = &model->hooks;
  if (model->on->error) model->stopped = true;
  if (!model->stopped && hooks->leave) {
    model->stopped = !hooks->leave(hooks->user_data, module, model->backward);
  }
}

// ---- Forward --------------------------------------------------------------

static void attention_branch_forward(gpt* model, int l, const real* residual) {
  layers* on = model->on;
  const int width = model->config.width;
  const int rows = model->batch * model->length;
  const int module = gpt_block_module(l);
  const real* const* p = model->params + GPT_FIRST_BLOCK + l * GPT_PER_BLOCK;
  block_activations* a = &model->blocks[l];
  if (enter(model, module + GPT_LN_1)) {
    on->layer_norm_forward(on, a->norm_1, a->mean_1, a->rstd_1, residual,
                           p[GPT_LN_1_WEIGHT], p[GPT_LN_1_BIAS], rows, width);
    leave(model, module + GPT_LN_1);
  }
  if (!enter(model, module + GPT_ATTN)) return;
  if (enter(model, module + GPT_QKV)) {
    on->linear_forward(on, a->qkv, a->norm_1, p[GPT_QKV_WEIGHT],
                       p[GPT_QKV_BIAS], NULL, rows, width, 3 * width);
    leave(model, module + GPT_QKV);
  }
  on->attention_forward(on, a->heads_out, a->attention, a->qkv, model->batch,
                        model->length, width, model->config.heads);
  if (enter(model, module + GPT_ATTN_PROJ)) {
    on->linear_forward(on, a->residual_mid, a->heads_out,
                       p[GPT_ATTN_PROJ_WEIGHT], p[GPT_ATTN_PROJ_BIAS], residual,
                       rows, width, width);
    leave(model, module + GPT_ATTN_PROJ);
  }
  leave(model, module + GPT_ATTN);
}

static void mlp_branch_forward(gpt* model, int l) {
  layers* on = model->on;
  const int width = model->config.width;
  const int rows = model->batch * model->length;
  const int module = gpt_block_module(l);
  const real* const* p = model->params + GPT_FIRST_BLOCK + l * GPT_PER_BLOCK;
  block_activations* a = &model->blocks[l];
  if (enter(model, module + GPT_LN_2)) {
    on->layer_norm_forward(on, a->norm_2, a->mean_2, a->rstd_2, a->residual_mid,
                           p[GPT_LN_2_WEIGHT], p[GPT_LN_2_BIAS], rows, width);
    leave(model, module + GPT_LN_2);
  }
  if (!enter(model, module + GPT_MLP)) return;
  if (enter(model, module + GPT_FC)) {
    on->linear_forward(on, a->hidden, a->norm_2, p[GPT_FC_WEIGHT],
                       p[GPT_FC_BIAS], NULL, rows, width, 4 * width);
    leave(model, module + GPT_FC);
  }
  on->gelu_forward(on, a->gelu, a->hidden, (size_t)rows * 4 * (size_t)width);
  if (enter(model, module + GPT_MLP_PROJ)) {
    on->linear_forward(on, a->residual_out, a->gelu, p[GPT_MLP_PROJ_WEIGHT],
                       p[GPT_MLP_PROJ_BIAS], a->residual_mid, rows, 4 * width,
                       width);
    leave(model, module + GPT_MLP_PROJ);
  }
  leave(model, module + GPT_MLP);
}

static void blocks_forward(gpt* model) {
  const real* residual = model->embedded;
  for (int l = 0; l < model->config.layers; l++) {
    if (!enter(model, gpt_block_module(l))) return;
    attention_branch_forward(model, l, residual);
    mlp_branch_forward(model, l);
    leave(model, gpt_block_module(l));
    residual = model->blocks[l].residual_out;
  }
}

bool gpt_forward(gpt* model, const uint8_t* sequences, int batch, int length,
                 double* nats) {
  const gpt_config* config = &model->config;
  layers* on = model->on;
  const int width = config->width;
  const int layers = config->layers;
  const int rows = batch * length;
  const real* const* params = model->params;
  model->batch = batch;
  model->length = length;
  begin(model, false);
  if (!enter(model, GPT_ROOT) || !enter(model, GPT_WTE)) return false;

  if (enter(model, GPT_WPE)) {
    on->embedding_forward(on, model->embedded, sequences,
                          params[GPT_TOKEN_WEIGHT], params[GPT_POSITION_WEIGHT],
                          batch, length, width);
    leave(model, GPT_WPE);
  }
  if (enter(model, GPT_BLOCKS)) {
    blocks_forward(model);
    leave(model, GPT_BLOCKS);
  }
  if (enter(model, gpt_ln_f_module(config))) {
    const real* const* final =
        params + GPT_FIRST_BLOCK + layers * GPT_PER_BLOCK;
    on->layer_norm_forward(on, model->norm_f, model->mean_f, model->rstd_f,
                           model->blocks[layers - 1].residual_out, final[0],
                           final[1], rows, width);
    leave(model, gpt_ln_f_module(config));
  }
  if (model->stopped) return false;
  on->linear_forward(on, model->logits, model->norm_f, params[GPT_TOKEN_WEIGHT],
                     NULL, NULL, rows, width, GPT_VOCABULARY);
  leave(model, GPT_WTE);
  leave(model, GPT_ROOT);
  *nats = on->cross_entropy_forward(on, model->logits, sequences, batch, length,
                                    GPT_VOCABULARY);
  return !model->stopped && !on->error;
}

const real* gpt_probabilities(const gpt* model, int position) {
  const real* row = model->logits + (size_t)position * GPT_VOCABULARY;
  return model->on->read(model->on, row, GPT_VOCABULARY);
}

// ---- Backward -------------------------------------------------------------

// model->d_residual is the gradient of the residual stream. It is carried from
// the last block to the first, and each branch adds its share on the way.

static void mlp_branch_backward(gpt* model, int l) {
  layers* on = model->on;
  const int width = model->config.width;
  const int rows = model->batch * model->length;
  const int module = gpt_block_module(l);
  const real* const* p = model->params + GPT_FIRST_BLOCK + l * GPT_PER_BLOCK;
  real* const* g = model->grads + GPT_FIRST_BLOCK + l * GPT_PER_BLOCK;
  const block_activations* a = &model->blocks[l];
  real* d_branch = model->d_branch;
  real* d_wide = model->d_wide;
  if (!enter(model, module + GPT_MLP)) return;
  if (enter(model, module + GPT_MLP_PROJ)) {
    on->linear_backward(on, d_wide, g[GPT_MLP_PROJ_WEIGHT],
                        g[GPT_MLP_PROJ_BIAS], model->d_residual, a->gelu,
                        p[GPT_MLP_PROJ_WEIGHT], rows, 4 * width, width);
    leave(model, module + GPT_MLP_PROJ);
  }
  on->gelu_backward(on, d_wide, a->hidden, (size_t)rows * 4 * (size_t)width);
  if (enter(model, module + GPT_FC)) {
    on->linear_backward(on, d_branch, g[GPT_FC_WEIGHT], g[GPT_FC_BIAS], d_wide,
                        a->norm_2, p[GPT_FC_WEIGHT], rows, width, 4 * width);
    leave(model, module + GPT_FC);
  }
  leave(model, module + GPT_MLP);
  if (enter(model, module + GPT_LN_2)) {
    on->layer_norm_backward(
        on, model->d_residual, g[GPT_LN_2_WEIGHT], g[GPT_LN_2_BIAS], d_branch,
        a->residual_mid, a->mean_2, a->rstd_2, p[GPT_LN_2_WEIGHT], rows, width);
    leave(model, module + GPT_LN_2);
  }
}

static void attention_branch_backward(gpt* model, int l,
                                      const real* residual_in) {
  layers* on = model->on;
  const int width = model->config.width;
  const int rows = model->batch * model->length;
  const int module = gpt_block_module(l);
  const real* const* p = model->params + GPT_FIRST_BLOCK + l * GPT_PER_BLOCK;
  real* const* g = model->grads + GPT_FIRST_BLOCK + l * GPT_PER_BLOCK;
  const block_activations* a = &model->blocks[l];
  real* d_branch = model->d_branch;
  real* d_wide = model->d_wide;
  if (!enter(model, module + GPT_ATTN)) return;
  if (enter(model, module + GPT_ATTN_PROJ)) {
    on->linear_backward(on, d_branch, g[GPT_ATTN_PROJ_WEIGHT],
                        g[GPT_ATTN_PROJ_BIAS], model->d_residual, a->heads_out,
                        p[GPT_ATTN_PROJ_WEIGHT], rows, width, width);
    leave(model, module + GPT_ATTN_PROJ);
  }
  on->attention_backward(on, d_wide, model->d_attention, d_branch, a->attention,
                         a->qkv, model->batch, model->length, width,
                         model->config.heads);
  if (enter(model, module + GPT_QKV)) {
    on->linear_backward(on, d_branch, g[GPT_QKV_WEIGHT], g[GPT_QKV_BIAS],
                        d_wide, a->norm_1, p[GPT_QKV_WEIGHT], rows, width,
                        3 * width);
    leave(model, module + GPT_QKV);
  }
  leave(model, module + GPT_ATTN);
  if (enter(model, module + GPT_LN_1)) {
    on->layer_norm_backward(on, model->d_residual, g[GPT_LN_1_WEIGHT],
                            g[GPT_LN_1_BIAS], d_branch, residual_in, a->mean_1,
                            a->rstd_1, p[GPT_LN_1_WEIGHT], rows, width);
    leave(model, module + GPT_LN_1);
  }
}

static void blocks_backward(gpt* model) {
  for (int l = model->config.layers - 1; l >= 0; l--) {
    if (!enter(model, gpt_block_module(l))) return;
    mlp_branch_backward(model, l);
    attention_branch_backward(
        model, l, l > 0 ? model->blocks[l - 1].residual_out : model->embedded);
    leave(model, gpt_block_module(l));
  }
}

bool gpt_backward(gpt* model, const uint8_t* sequences) {
  const gpt_config* config = &model->config;
  layers* on = model->on;
  const int width = config->width;
  const int layers = config->layers;
  const int batch = model->batch;
  const int length = model->length;
  const int rows = batch * length;
  const real* const* params = model->params;
  real* const* grads = model->grads;
  begin(model, true);
  if (!enter(model, GPT_ROOT) || !enter(model, GPT_WTE)) return false;

  on->cross_entropy_backward(on, model->logits, sequences, batch, length,
                             GPT_VOCABULARY);
  on->linear_backward(on, model->d_branch, grads[GPT_TOKEN_WEIGHT], NULL,
                      model->logits, model->norm_f, params[GPT_TOKEN_WEIGHT],
                      rows, width, GPT_VOCABULARY);
  on->set_zero(on, model->d_residual, (size_t)rows * (size_t)width);
  if (enter(model, gpt_ln_f_module(config))) {
    const int final = GPT_FIRST_BLOCK + layers * GPT_PER_BLOCK;
    on->layer_norm_backward(
        on, model->d_residual, grads[final], grads[final + 1], model->d_branch,
        model->blocks[layers - 1].residual_out, model->mean_f, model->rstd_f,
        params[final], rows, width);
    leave(model, gpt_ln_f_module(config));
  }
  if (enter(model, GPT_BLOCKS)) {
    blocks_backward(model);
    leave(model, GPT_BLOCKS);
  }
  if (enter(model, GPT_WPE)) {
    on->embedding_backward(on, grads[GPT_TOKEN_WEIGHT],
                           grads[GPT_POSITION_WEIGHT], model->d_residual,
                           sequences, batch, length, config->context, width);
    leave(model, GPT_WPE);
  }
  leave(model, GPT_WTE);
  leave(model, GPT_ROOT);
  return !model->stopped && !on->error;
}
