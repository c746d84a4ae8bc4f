/* SPDX-License-Identifier: Apache-2.0
 *
 * libshard: sharded data-parallel training for any engine with a C FFI. Linux
 * only.
 *
 * A host declares its parameters (shard_model), decides how they are sharded
 * (shard_plan, a pure computation), meets the other ranks (shard_comm), and
 * trains (shard_engine): it reads parameters and writes gradients through
 * pointers libshard gives it, and calls shard_engine_step once per step.
 *
 *   shard_comm_open("env:", NULL, &comm);
 *   shard_model_create("GPT", &model);
 *   shard_model_add_param(model, 0, "weight", SHARD_F32, shape, 2, &weight);
 *   shard_plan_create(model, &plan_options, &plan);
 *   shard_engine_create(plan, comm, NULL, &engine);
 *   shard_engine_set_param(engine, weight, initial, sizeof(initial));
 *   shard_engine_broadcast_params(engine, 0);
 *   for (...) {
 *     ... forward and backward: read shard_engine_param, write _grad ...
 *     shard_engine_step(engine, &step_options, &report);
 *   }
 *
 * This header includes all others; base.h has the conventions. */

#ifndef SHARD_SHARD_H_
#define SHARD_SHARD_H_

/* IWYU pragma: begin_exports */
#include "shard/base.h"
#include "shard/checkpoint.h"
#include "shard/comm.h"
#include "shard/engine.h"
#include "shard/layout.h"
#include "shard/model.h"
#include "shard/plan.h"
#include "shard/state.h"
#include "shard/tensors.h"
#include "shard/units.h"
/* IWYU pragma: end_exports */

#endif /* SHARD_SHARD_H_ */
