// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/declare.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

// The modules on the way to the last parameter. Parameters come in the order of
// a walk of the tree, so that a prefix shared with the last one is all that has
// to be found again.
enum { kMaxDepth = 4 };
typedef struct path {
  int depth;
  char names[kMaxDepth][16];
  int32_t modules[kMaxDepth];
} path;

// Adds the modules that "h.3.attn.c_attn.weight" needs and that are not there,
// then the parameter itself.
static shard_error* add_tensor(shard_model* model, path* at,
                               const gpt_tensor* tensor) {
  int32_t module = 0;  // The root.
  int depth = 0;
  const char* name = tensor->name;
  for (const char* dot; (dot = strchr(name, '.')); name = dot + 1, depth++) {
    char component[16];
    snprintf(component, sizeof(component), "%.*s", (int)(dot - name), name);
    if (depth < at->depth && strcmp(at->names[depth], component) == 0) {
      module = at->modules[depth];
      continue;
    }
    shard_error* error = shard_model_add_module(model, module, component, NULL,
                                                &at->modules[depth]);
    if (error) return error;
    module = at->modules[depth];
    memcpy(at->names[depth], component, sizeof(component));
    at->depth = depth + 1;
  }
  at->depth = depth;
  int32_t param = 0;
  return shard_model_add_param(model, module, name, SHARD_F32, tensor->shape,
                               tensor->ndim, &param);
}

static shard_error* add_everything(const gpt_config* config,
                                   shard_model* model) {
  path at = {0};
  for (int i = 0; i < gpt_tensor_count(config); i++) {
    const gpt_tensor tensor = gpt_tensor_at(config, i);
    shard_error* error = add_tensor(model, &at, &tensor);
    if (error) return error;
  }
  int32_t lm_head = 0;
  shard_error* error =
      shard_model_add_module(model, 0, "lm_head", "Linear", &lm_head);
  if (error) return error;
  return shard_model_tie(model, lm_head, "weight", GPT_TOKEN_WEIGHT);
}

static bool in_a_block(const gpt_config* config, int tensor) {
  return tensor >= GPT_FIRST_BLOCK &&
         tensor < GPT_FIRST_BLOCK + config->layers * GPT_PER_BLOCK;
}

// The parameters that are vectors, or else the blocks' matrices, as a group.
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
  int32_t group = 0;
  return shard_model_add_param_group(model, optimizer, members, size, &group);
}

// Vectors decay nowhere: a layer norm's weight has no business going to 0. Muon
// is for the matrices that transform; with match_rms_adamw its updates are as
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
  shard_error* error = shard_model_create("GPT", model);
  if (error) return error;
  error = add_everything(&opts->model, *model);
  if (!error) error = add_groups(opts, *model);
  if (error) {
    shard_model_free(*model);
    *model = NULL;
  }
  return error;
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
  return shard_plan_create(model, &plan_options, plan);
}
