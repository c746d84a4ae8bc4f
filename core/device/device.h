// SPDX-License-Identifier: Apache-2.0
//
// Device: the memory that holds tensors and the streams that work on them. All
// memory, copies, kernels and waits of an engine go through one device, so that
// the engine is written once for hosts and accelerators: it enqueues on
// streams, orders them with events, and blocks only where the host asks for a
// result.
//
// The host's own work is a stream too (WrapStream), so that one mechanism
// orders all work: a->Wait(b->Record(), deadline). Where the host reads and
// writes tensors in its own thread (cpu), that stream is inline: its events are
// done, and its Wait blocks the thread. Where the host enqueues its work (an
// accelerator), that stream is the host's own.
//
// Streams, memory and events may outlive their device. Thread-safe. In a child
// of fork they may be destroyed, and nothing else.

#ifndef SHARD_CORE_DEVICE_DEVICE_H_
#define SHARD_CORE_DEVICE_DEVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/offload.h"
#include "core/base/status.h"
#include "core/base/transport.h"
#include "core/device/stream.h"

namespace shard {

class Collectives;
struct CollectivesOptions;
class Communicator;
struct RankSet;

// Memory with one owner, which frees it. Zero-filled at first, aligned to a
// page. An allocation of 0 bytes holds nothing: data() is null.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // `owner` frees the memory at `data`.
  DeviceMemory(std::byte* data, size_t size, std::shared_ptr<void> owner)
      : data_(data), size_(size), owner_(std::move(owner)) {}
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        owner_(std::move(other.owner_)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    owner_ = std::move(other.owner_);
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::shared_ptr<void> owner_;
};

enum class StreamKind {
  kCompute,        // Kernels.
  kCommunication,  // Collectives, and the waits around them.
};

// The place of a device's tensors, in the codes of DLPack.
struct DeviceId {
  enum class Kind : int32_t { kCpu = 1, kCuda = 2 };
  Kind kind = Kind::kCpu;
  int32_t ordinal = 0;  // Among the devices of the kind.
};

// The room that is left in the memory of Device::Allocate.
struct MemoryRoom {
  uint64_t free = 0;
  uint64_t total = 0;
  // Names the memory: the same for all devices, of any process, that share it.
  std::array<char, 16> id = {};
};

// The place of memory that the host gives.
enum class MemoryPlace {
  kDevice,  // Where the device's tensors lie.
  kHost,
};

class Device {
 public:
  virtual ~Device() = default;

  // Returns the spec from which OpenDevice makes another device like this:
  // "cpu".
  virtual const std::string& name() const = 0;

  virtual DeviceId id() const { return {}; }

  // Returns how the host updates the states that are offloaded to its memory;
  // null where the device has them.
  virtual const Offload* offload() const { return nullptr; }

  // Allocates memory for tensors. Errors: kResourceExhausted, which names
  // `what` the memory is for.
  virtual StatusOr<DeviceMemory> Allocate(size_t bytes,
                                          std::string_view what) = 0;
  // Allocates memory for what updates alone use: optimizer states, masters and
  // workspaces. It is the host's where states are offloaded. Streams and
  // HostAccess reach it, as tensors.
  virtual StatusOr<DeviceMemory> AllocateStates(size_t bytes,
                                                std::string_view what) {
    return Allocate(bytes, what);
  }
  // Returns whether `memory` lies in memory of AllocateStates that is the
  // host's, where tensors are not.
  virtual bool IsOffloaded(const void* /*memory*/) const { return false; }
  // Returns what is left for Allocate, where that memory is the device's own;
  // kUnimplemented elsewhere. Memory that was freed, and that this process kept
  // for itself, is given back first, once the device has freed it. The figure
  // is a snapshot and reserves nothing. Errors: kDeadlineExceeded where the
  // device does not work.
  virtual StatusOr<MemoryRoom> FindMemoryRoom(const Deadline& /*deadline*/) {
    return Unimplemented(name(), " has no memory of its own");
  }
  // Returns whether the host may read and write the memory of Allocate where it
  // lies. Elsewhere only streams may; HostAccess (host_access.h) serves both.
  virtual bool IsHostMemory() const = 0;
  // Returns whether kernels and copies reach the memory that the ranks of a
  // host share (Communicator::Allocate).
  virtual bool ReachesSharedMemory() const = 0;
  // Allocates memory that the host and the device's copies and kernels reach
  // under one address: for what the host gives to streams, and gets from them.
  // Where IsHostMemory() is false, kernels are slow there.
  virtual StatusOr<DeviceMemory> AllocateHost(size_t bytes,
                                              std::string_view what) = 0;

  virtual StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind) = 0;

  // Returns the stream of the host's own work: an event of it comes after all
  // that the host has done or enqueued so far, and the host's next work comes
  // after its Waits. `native` is the device's own form of a stream that the
  // host made, which must outlive the result; null: the device's usual one. The
  // end of the result leaves the host's work alone. Errors: kInvalidArgument
  // where the device knows no such stream.
  virtual StatusOr<std::shared_ptr<Stream>> WrapStream(void* native) = 0;

  // Returns kInvalidArgument where the device knows that memory which the host
  // gives does not lie in that place.
  virtual Status CheckPlace(const void* /*memory*/,
                            MemoryPlace /*place*/) const {
    return Status();
  }

  // Makes what the device's kernels need of a list, in list->prepared, before
  // streams are given the list. Errors: kUnimplemented for an optimizer that
  // the device has no kernel for; kResourceExhausted.
  virtual Status Prepare(UpdateList* /*list*/) { return Status(); }

  // Opens collectives (core/collectives/collectives.h) that the device has of
  // its own. COLLECTIVE. Null on all ranks where they cannot be used, which is
  // logged with the reason: tensors then pass through the host's memory.
  virtual StatusOr<std::shared_ptr<Collectives>> OpenCollectives(
      Communicator* /*control*/, std::span<const RankSet> /*sets*/,
      const CollectivesOptions& /*options*/, const Deadline& /*deadline*/) {
    return std::shared_ptr<Collectives>();
  }

  // Finds the BLAS with which Stream::Update multiplies matrices, once,
  // and returns its name. Errors: kBackendUnavailable, which lists the
  // libraries that were tried.
  virtual StatusOr<std::string> LoadBlas() = 0;
};

// Opens a device (grammar: core/base/spec.h); an empty spec is "cpu":
//   cpu        The host's memory. Compute streams run inside the call, in the
//              caller's thread; communication streams have a thread each.
//   cpu-async  For finding errors: every stream of the engine has a thread,
//              which before each piece of work may pause for a pseudo-random
//              time, as long as an accelerator would take. A missing Wait then
//              shows as a wrong result, or as a data race under a sanitizer.
//              ?max_delay=SECONDS, the longest pause (0.0002; at most 1);
//              &seed=N, the seed of the pauses (0).
//   cuda:N     A GPU (core/device/cuda/cuda_device.h), by its ordinal or UUID.
//              Loads libshard_cuda.so from beside this library.
//              ?offload=states, optimizer states lie in the host's memory,
//              where its threads step them; &offload_threads=N, threads for
//              each rank (4; at most 256). ?collectives=nccl, tensors move
//              between ranks by NCCL or not at all; =auto, by NCCL where all
//              ranks can use it; =staged (the default), through the host's
//              memory.
StatusOr<std::shared_ptr<Device>> OpenDevice(std::string_view spec);

// The device that a spec names.
struct DeviceChoice {
  DeviceId::Kind kind = DeviceId::Kind::kCpu;
  std::optional<Offload> offload;
  Transport transport = Transport::kStaged;
  // A step of several ranks is one kernel on each GPU, where that is possible.
  bool one_kernel = false;
};

// Reads a spec of a device, which this machine need not have.
StatusOr<DeviceChoice> ReadDeviceSpec(std::string_view spec);

// Returns a JSON document: the accelerators of this machine, and why one cannot
// be used (shard_devices_json).
std::string DescribeDevices();

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_DEVICE_H_
