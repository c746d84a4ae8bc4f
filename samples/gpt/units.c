// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/units.h"

#include <stdbool.h>

shard_error* units_connect(units* u, const gpt_config* config,
                           const shard_plan* plan, shard_engine* engine) {
  *u = (units){.engine = engine, .tensors = gpt_tensor_count(config)};
  for (int i = 0; i < gpt_module_count(config); i++) {
    shard_error* error = shard_plan_unit_of_module(plan, i, &u->of_module[i]);
    if (error) return error;
  }
  for (int i = 0; i < u->tensors; i++) {
    shard_error* error = shard_plan_unit_of(plan, i, &u->of_tensor[i]);
    if (error) return error;
  }
  return NULL;
}

static shard_error* find_tensor(units* u, int tensor, bool backward) {
  const void* param = NULL;
  shard_error* error = shard_engine_param(u->engine, tensor, &param, NULL);
  if (error) return error;
  u->params[tensor] = param;
  if (!backward) return NULL;
  void* grad = NULL;
  error = shard_engine_grad(u->engine, tensor, &grad, NULL);
  if (error) return error;
  u->grads[tensor] = grad;
  return NULL;
}

static shard_error* find_tensors(units* u, int32_t unit, bool backward) {
  for (int i = 0; i < u->tensors; i++) {
    if (u->of_tensor[i] != unit) continue;
    shard_error* error = find_tensor(u, i, backward);
    if (error) return error;
  }
  return NULL;
}

static void forget_tensors(units* u, int32_t unit) {
  for (int i = 0; i < u->tensors; i++) {
    if (u->of_tensor[i] != unit) continue;
    u->params[i] = NULL;
    u->grads[i] = NULL;
  }
}

static bool enter(void* user_data, int module, bool backward) {
  units* u = user_data;
  const int32_t unit = u->of_module[module];
  if (unit < 0) return true;
  u->error = shard_engine_unit_acquire(
      u->engine, unit, backward ? SHARD_PASS_BACKWARD : SHARD_PASS_FORWARD, 0);
  if (!u->error) u->error = find_tensors(u, unit, backward);
  return !u->error;
}

static bool leave(void* user_data, int module, bool backward) {
  units* u = user_data;
  const int32_t unit = u->of_module[module];
  if (unit < 0) return true;
  forget_tensors(u, unit);
  if (backward) u->error = shard_engine_mark_unit_grads_ready(u->engine, unit);
  if (!u->error) u->error = shard_engine_unit_release(u->engine, unit);
  return !u->error;
}

gpt_hooks units_hooks(units* u) {
  return (gpt_hooks){.enter = enter, .leave = leave, .user_data = u};
}

shard_error* units_find_all(units* u) {
  for (int i = 0; i < u->tensors; i++) {
    shard_error* error = find_tensor(u, i, true);
    if (error) return error;
  }
  return NULL;
}
