// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/declare.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

// Ids are given in the order of adding, so they are the sample's own indices.
static shard_error* add_everything(const gpt_config* config,
                                   shard_model* model) {
  for (int i = GPT_ROOT + 1; i < gpt_module_count(config); i++) {
    const gpt_module module = gpt_module_at(config, i);
    shard_error* error = shard_model_add_module(
        model, module.parent, module.name, module.class_name, NULL);
    if (error) return error;
  }
  for (int i = 0; i < gpt_tensor_count(config); i++) {
    const gpt_tensor tensor = gpt_tensor_at(config, i);
    // The last part of the name: "weight" of "h.3.attn.c_attn.weight".
    const char* name = strrchr(tensor.name, '.') + 1;
    shard_error* error = shard_model_add_param(
        model, tensor.module, name, SHARD_F32, tensor.shape, tensor.ndim, NULL);
    if (error) return error;
  }
  return shard_model_tie(model, gpt_lm_head_module(config), "weight",
                         GPT_TOKEN_WEIGHT);
}

static bool in_a_block(const gpt_config* config, int tensor) {
  return tensor >= GPT_FIRST_BLOCK &&
         tensor < GPT_FIRST_BLOCK + config->layers * GPT_PER_BLOCK;
}

// Declares a param group: the parameters that are vectors, or the matrices of
// the blocks.
static shard_error* add_group(const gpt_config* config, shard_model* model,
                              bool vectors, const char* optimizer) {
  int32_t members[GPT_MAX_TENSORS];
  size_t size = 0;
  for (int i = 0; i < gpt_tensor_count(config); i++) {
    const bool vector = gpt_tensor_at(config, i).ndim == 1;
    if (vectors ? vector : !vector && in_a_block(config, i)) {
      members[size++] = i;
    }
  }
  return shard_model_add_param_group(model, optimizer, members, size, NULL);
}

// Vectors do not decay: decay would pull the weight of a layer norm to 0. Muon
// is for the matrices that transform. With match_rms_adamw its updates are as
// large as AdamW's, so that one learning rate serves both.
static shard_error* add_groups(const options* opts, shard_model* model) {
  shard_error* error = add_group(&opts->model, model, true, "?weight_decay=0");
  if (error || strcmp(opts->optimizer, "muon") != 0) return error;
  char muon[96];
  snprintf(muon, sizeof(muon),
           "muon?lr=%.9g&weight_decay=%.9g&adjust_lr_fn=match_rms_adamw",
           opts->lr, opts->weight_decay);
  return add_group(&opts->model, model, false, muon);
}

shard_error* declare_model(const options* opts, shard_model** model) {
  shard_error* error = shard_model_create(
      gpt_module_at(&opts->model, GPT_ROOT).class_name, model);
  if (error) return error;
  error = add_everything(&opts->model, *model);
  if (!error) error = add_groups(opts, *model);
  if (error) {
    shard_model_free(*model);
    *model = NULL;
  }
  return error;
}

static const char* wrap_policy(const char* wrap) {
  if (strcmp(wrap, "none") == 0) return NULL;
  if (strcmp(wrap, "block") == 0) return "class?names=Block";
  return wrap;
}

shard_error* declare_plan(const shard_model* model, const options* opts,
                          int world_size, shard_plan** plan) {
  char optimizer[160];
  snprintf(optimizer, sizeof(optimizer),
           "adamw?lr=%.9g&beta1=0.9&beta2=0.95&weight_decay=%.9g&states=%s",
           opts->lr, opts->weight_decay, opts->states);
  shard_plan_options plan_options = SHARD_PLAN_OPTIONS_INIT;
  plan_options.stage = opts->stage;
  plan_options.world_size = world_size;
  plan_options.partition = strcmp(opts->partition, "greedy") == 0
                               ? SHARD_PARTITION_GREEDY
                               : SHARD_PARTITION_EVEN;
  plan_options.seed = opts->seed;
  plan_options.optimizer = optimizer;
  plan_options.wrap = wrap_policy(opts->wrap);
  plan_options.shard_group_size = opts->hybrid;
  // To libshard, 0 means its default.
  plan_options.prefetch = opts->prefetch > 0 ? opts->prefetch : -1;
  plan_options.deterministic = opts->deterministic;
  return shard_plan_create(model, &plan_options, plan);
}

shard_error* learning_rate(const options* opts, int64_t step, double* lr) {
  char schedule[128];
  snprintf(
      schedule, sizeof(schedule),
      "cosine?lr=%.9g&min_lr=%.9g&warmup=%d&total=%d", opts->lr, opts->min_lr,
      opts->warm_up < opts->steps ? opts->warm_up : opts->steps, opts->steps);
  return shard_schedule_lr(schedule, step, lr);
}
