// SPDX-License-Identifier: Apache-2.0
//
// The guard device, and communicators for it: an accelerator's rules on the
// CPU, for tests. Tensors lie at addresses that fault when code of the host
// reads or writes them (guard_memory.h); kernels, copies and the exchange of
// the ranks find the memory under its other address. So a test that passes on
// the guard device has shown that the host touched tensors through HostAccess
// alone.
//
// Kernels reach tensors and memory of AllocateHost. Given other memory of the
// host, they end the process; so they do where the block of a step, or sums of
// a norm, are not memory of Allocate. Copies and fills take any memory: a host
// that binds memory of its own to gradients has it filled with zeros, and on an
// accelerator that memory is the device's.
//
// Hosts cannot open it: tests give it to an engine as
// EngineOptions::opened_device, with a communicator of GuardTensors, which
// gives ranks that share memory guarded addresses of it.

#ifndef SHARD_TESTS_CORE_DEVICE_GUARD_DEVICE_H_
#define SHARD_TESTS_CORE_DEVICE_GUARD_DEVICE_H_

#include <functional>
#include <memory>

#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"

namespace shard::testing {

// Makes a guard device whose memory and streams are those of `device`.
// `before_copy` is enqueued before each Copy where it is given.
std::shared_ptr<Device> GuardTensors(
    std::shared_ptr<Device> device,
    std::function<Status()> before_copy = nullptr);

// Makes a communicator that does the work of `comm` on guarded tensors.
std::shared_ptr<Communicator> GuardTensors(std::shared_ptr<Communicator> comm);

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_DEVICE_GUARD_DEVICE_H_
