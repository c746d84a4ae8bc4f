// SPDX-License-Identifier: Apache-2.0
//
// Device: where tensors live and what works on them. All memory, copies,
// kernels and waits of an engine go through one, so that the engine is written
// once for hosts and accelerators: it enqueues on streams, orders them with
// events, and blocks only where the host asks for a result.
//
// The host's own work is ordered the same way. Where the host works on the
// tensors with its own hands (cpu), it is done with what it wrote, and waits
// with its thread; where it enqueues work itself (its stream of an
// accelerator), HostRecord and HostWait are events and waits of that stream.
//
// Streams, memory and events may outlive their device. Thread-safe. In a child
// of fork they may be destroyed, and nothing else.

#ifndef SHARD_CORE_DEVICE_DEVICE_H_
#define SHARD_CORE_DEVICE_DEVICE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/device/event.h"
#include "core/device/stream.h"

namespace shard {

// Memory with one owner, freed with it. Zero-filled at first, aligned to a
// page. Nothing when it was asked for 0 bytes: data() is null.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // `owner` frees what is at `data`.
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

class Device {
 public:
  virtual ~Device() = default;

  // What OpenDevice makes another one like it from: "cpu".
  virtual const std::string& name() const = 0;

  // Tensors' memory. `what` it is for is in the error: kResourceExhausted.
  virtual StatusOr<DeviceMemory> Allocate(size_t bytes,
                                          std::string_view what) = 0;
  // Memory that the host reads and that kernels can write results to.
  virtual StatusOr<DeviceMemory> AllocateHost(size_t bytes,
                                              std::string_view what) = 0;

  virtual StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind) = 0;

  // Finds what Stream::Orthogonalize multiplies matrices with, once; returns
  // its name. kBackendUnavailable says what was tried.
  virtual StatusOr<std::string> LoadBlas() = 0;

  // After all that the host has written or enqueued so far.
  virtual Event HostRecord() = 0;

  // What the host does next comes after `event`. Returns the event's error
  // where the host's thread waits for it; where its stream does, the error is
  // that of the next Synchronize. REQUIRES: an event of this device.
  virtual Status HostWait(const Event& event, const Deadline& deadline) = 0;
};

// Devices (grammar: core/base/spec.h); an empty spec is "cpu":
//   cpu        The host's memory. Compute streams run inside the call, in the
//              caller's thread; communication streams have a thread each.
//   cpu-async  To find errors: every stream has a thread, which before each
//              piece of work may pause for a pseudo-random time, as an
//              accelerator would take. So a Wait that is missing shows as a
//              wrong result, or as a data race under a sanitizer.
//              ?max_delay=SECONDS, the longest pause (0.0002; at most 1);
//              &seed=N, which pauses (0).
StatusOr<std::shared_ptr<Device>> OpenDevice(std::string_view spec);

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_DEVICE_H_
