// SPDX-License-Identifier: Apache-2.0
//
// Communicators: the ranks of a run, and how they meet. shard/comm.h has the
// URLs and what each call does.

#ifndef SHARD_COMM_HPP_
#define SHARD_COMM_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "shard/arguments.hpp"
#include "shard/callback.hpp"
#include "shard/comm.h"
#include "shard/version.hpp"

namespace shard {

enum class LogLevel : shard_log_level {
  error = SHARD_LOG_ERROR,
  warning = SHARD_LOG_WARNING,
  info = SHARD_LOG_INFO,
  debug = SHARD_LOG_DEBUG
};

// The options of shard_comm_options.
struct CommOptions {
  std::int32_t rank = 0;
  std::int32_t world_size = 0;
  double timeout = 0;
  // Called from any thread that uses the library, from several at once. What
  // it throws is dropped, for there is no call to throw it from.
  Function<void(LogLevel level, const char* message)> log = {};
  LogLevel log_level = LogLevel::warning;
  std::string trace = {};
  std::string metrics = {};
  std::string dump = {};
};

// The totals of an event on a rank. See shard_counter.
struct Counter {
  std::uint64_t calls = 0;
  std::uint64_t errors = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;
};

namespace detail {

// A communicator with the callback that it uses. Its engines share it, for they
// log too.
struct CommState {
  CommState() = default;
  CommState(const CommState&) = delete;
  ~CommState() { shard_comm_free(handle); }

  static void on_log(shard_log_level level, const char* message,
                     void* user_data) noexcept {
    const auto& self = *static_cast<CommState*>(user_data);
    std::exception_ptr dropped;
    guarded(&self, dropped, false, [&] {
      self.log(LogLevel{level}, message);
      return true;
    });
  }

  Function<void(LogLevel, const char*)> log = {};
  shard_comm* handle = nullptr;
};

}  // namespace detail

// A communicator. Movable; a moved-from one is INVALID_ARGUMENT in every call.
// The ranks leave each other by shutdown(). A communicator that is destroyed
// without it, by an exception for example, is a lost rank to the others, which
// get RANK_LOST and do not wait.
class Comm {
 public:
  Comm(Comm&&) noexcept = default;
  Comm& operator=(Comm&&) noexcept = default;

  // Meets the other ranks. COLLECTIVE, blocks.
  [[nodiscard]] static Comm open(Text url, const CommOptions& options = {}) {
    detail::require_library();
    auto state = std::make_shared<detail::CommState>();
    state->log = options.log;
    const shard_comm_options c{
        .struct_size = sizeof(shard_comm_options),
        .rank = options.rank,
        .world_size = options.world_size,
        .timeout = options.timeout,
        .log = options.log ? &detail::CommState::on_log : nullptr,
        .log_user_data = state.get(),
        .log_level = static_cast<shard_log_level>(options.log_level),
        .reserved = 0,
        .trace = detail::option(options.trace),
        .metrics = detail::option(options.metrics),
        .dump = detail::option(options.dump),
    };
    detail::check(shard_comm_open(url.c_str(), &c, &state->handle));
    return Comm(std::move(state));
  }

  // Return this rank and the number of ranks; -1 and 0 when moved from. Any
  // thread.
  std::int32_t rank() const noexcept { return shard_comm_rank(get()); }
  std::int32_t world_size() const noexcept {
    return shard_comm_world_size(get());
  }

  // Return this rank's number among those of its host, and their number. Any
  // thread.
  std::int32_t local_rank() const noexcept {
    return shard_comm_local_rank(get());
  }
  std::int32_t local_world_size() const noexcept {
    return shard_comm_local_world_size(get());
  }

  // Returns one line for people. It lives as long as the communicator. Any
  // thread.
  std::string_view describe() const SHARD_LIFETIMEBOUND {
    const char* text = nullptr;
    detail::check(shard_comm_describe(use(), &text));
    return text;
  }

  // Returns the counter of an event, such as "step" or "reduce_scatter". Any
  // thread.
  Counter counter(Text event) const {
    shard_counter c = SHARD_COUNTER_INIT;
    detail::check(shard_comm_counter(use(), event.c_str(), &c));
    return {c.calls, c.errors, c.bytes, c.seconds};
  }

  // Returns all counters in the text format of Prometheus. Any thread.
  std::string metrics() const {
    return detail::copied_text(
        [&](auto... buffer) { return shard_comm_metrics(use(), buffer...); });
  }

  // Returns the last collectives of this rank as JSON. Any thread.
  std::string dump() const {
    return detail::copied_text(
        [&](auto... buffer) { return shard_comm_dump(use(), buffer...); });
  }

  // Waits until every rank has called it. COLLECTIVE, blocks.
  void barrier(double timeout = 0) {
    detail::check(shard_comm_barrier(use(), timeout));
  }

  // Replaces each value by its sum over the ranks, the same bits on every rank.
  // COLLECTIVE, blocks.
  void sum(std::span<double> values, double timeout = 0) {
    detail::check(shard_comm_sum(use(), values.data(), values.size(), timeout));
  }
  // Returns the sum of one value.
  [[nodiscard]] double sum(double value, double timeout = 0) {
    sum(std::span<double>(&value, 1), timeout);
    return value;
  }

  // Checks that GPUs move tensors between the ranks by NCCL. `device`: this
  // rank's own GPU, such as "cuda:0". An error of NCCL ends the communicator.
  // COLLECTIVE, blocks.
  void check_device(Text device, double timeout = 0) {
    detail::check(shard_comm_check_device(use(), device.c_str(), timeout));
  }

  // Copies the elements of rank `root` to those of all other ranks. As many
  // bytes on every rank. COLLECTIVE, blocks.
  template <class T>
  void broadcast(std::span<T> elements, std::int32_t root = 0,
                 double timeout = 0) {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>,
                  "a broadcast replaces the bytes of the elements");
    detail::check(shard_comm_broadcast(use(), elements.data(),
                                       elements.size_bytes(), root, timeout));
  }

  // Ends the group from one side: the other ranks get POISONED with `reason`.
  // For a host that will not come to the next collective. Any thread, never
  // blocks.
  void abort(Text reason) {
    detail::check(shard_comm_abort(use(), reason.c_str()));
  }

  // Ends the group with a last barrier. COLLECTIVE, blocks.
  void shutdown(double timeout = 0) {
    detail::check(shard_comm_shutdown(use(), timeout));
  }

  // Returns the handle of the C interface, which stays this object's; NULL when
  // moved from.
  shard_comm* get() const noexcept {
    return state_ == nullptr ? nullptr : state_->handle;
  }

 private:
  friend class Engine;

  explicit Comm(std::shared_ptr<detail::CommState> state) noexcept
      : state_(std::move(state)) {}

  shard_comm* use() const {
    if (state_ != nullptr) {
      detail::CallbackScope::refuse(state_.get(), "communicator");
    }
    return get();
  }

  std::shared_ptr<detail::CommState> state_;
};

}  // namespace shard

#endif  // SHARD_COMM_HPP_
