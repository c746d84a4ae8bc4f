// SPDX-License-Identifier: Apache-2.0
//
// libshard for C++20: RAII over the C interface, header-only. Link with
// -lshard. docs/cpp.md is the guide; the C headers are the reference manual,
// and a function here is called like the C function that it calls.
//
//   auto comm = shard::Comm::open("env:");
//   auto model = shard::Model::create("GPT");
//   const auto weight = model.add_param(shard::root_module, "weight",
//                                       shard::DType::f32, {768, 768});
//   const auto plan = shard::Plan::create(
//       model, {.stage = 1, .world_size = comm.world_size()});
//   auto engine = shard::Engine::create(plan, comm);
//   engine.set_param(weight, initial);
//   engine.broadcast_params();
//   for (...) {
//     ... read engine.param<float>(weight), write engine.grad<float>(weight)
//     ... engine.step();
//   }
//   comm.shutdown();
//
// Errors: shard::Error is thrown, or what a callback of the host threw.
// Destructors never throw. Needs exceptions, but no run-time type information.
//
// Ownership: every class is a handle that can be moved and not copied, and
// frees what it has. Objects may be destroyed in any order: each keeps what it
// needs alive. A moved-from object is an error in every call.
//
// Threads, collective calls, fork: as shard/base.h says. Calls on a
// communicator and its engines must not overlap.

#ifndef SHARD_SHARD_HPP_
#define SHARD_SHARD_HPP_

// IWYU pragma: begin_exports
#include "shard/checkpoint.hpp"
#include "shard/comm.hpp"
#include "shard/engine.hpp"
#include "shard/error.hpp"
#include "shard/model.hpp"
#include "shard/plan.hpp"
#include "shard/state.hpp"
#include "shard/types.hpp"
#include "shard/units.hpp"
#include "shard/version.hpp"
// IWYU pragma: end_exports

#endif  // SHARD_SHARD_HPP_
