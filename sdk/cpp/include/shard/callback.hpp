// SPDX-License-Identifier: Apache-2.0
//
// Functions of the host that the library calls.
//
// A callback may throw: the call that runs it then ends, and throws the same
// exception. A callback that calls a function of the handle that runs it gets
// FAILED_PRECONDITION, where the C interface has no answer.

#ifndef SHARD_CALLBACK_HPP_
#define SHARD_CALLBACK_HPP_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "shard/error.hpp"

namespace shard {

// A function of the host, or none: any callable object, which is moved in and
// lives as long as the library may call it. Copies share it. Where a result is
// expected, a callable may return nothing, which stands for false or 0.
template <class Signature>
class Function;

template <class Result, class... Arguments>
class Function<Result(Arguments...)> {
 public:
  Function() noexcept = default;
  Function(std::nullptr_t) noexcept {}
  template <class F, class = std::enable_if_t<
                         !std::is_same_v<std::remove_cvref_t<F>, Function> &&
                         std::is_invocable_v<std::decay_t<F>&, Arguments...>>>
  Function(F&& function)
      : callable_(std::make_shared<Holder<std::decay_t<F>>>(
            std::forward<F>(function))) {}

  explicit operator bool() const noexcept { return callable_ != nullptr; }

  // REQUIRES: this is not an empty function.
  Result operator()(Arguments... arguments) const {
    return callable_->call(arguments...);
  }

 private:
  struct Callable {
    virtual ~Callable() = default;
    virtual Result call(Arguments... arguments) = 0;
  };
  template <class F>
  struct Holder final : Callable {
    explicit Holder(const F& f) : function(f) {}
    explicit Holder(F&& f) : function(std::move(f)) {}
    Result call(Arguments... arguments) override {
      if constexpr (std::is_void_v<std::invoke_result_t<F&, Arguments...>>) {
        function(arguments...);
        return Result();
      } else {
        return static_cast<Result>(function(arguments...));
      }
    }
    F function;
  };

  std::shared_ptr<Callable> callable_;
};

// Called with the progress of a long operation: this rank's bytes done and in
// all. Returns true to cancel it. Called from threads of libshard, one call at
// a time.
using Progress = Function<bool(std::uint64_t done, std::uint64_t total)>;

namespace detail {

// Marks that this thread runs a callback of `handle`.
class CallbackScope {
 public:
  explicit CallbackScope(const void* handle) noexcept
      : handle_(handle), outer_(innermost()) {
    innermost() = this;
  }
  CallbackScope(const CallbackScope&) = delete;
  ~CallbackScope() { innermost() = outer_; }

  // Throws within a callback of `handle`.
  static void refuse(const void* handle, const char* what) {
    for (const CallbackScope* at = innermost(); at != nullptr;
         at = at->outer_) {
      if (at->handle_ == handle) {
        throw Error(Code::failed_precondition,
                    std::string("a callback of the ") + what +
                        " calls a function of it; return first");
      }
    }
  }

 private:
  static const CallbackScope*& innermost() noexcept {
    thread_local const CallbackScope* scope = nullptr;
    return scope;
  }

  const void* const handle_;
  const CallbackScope* const outer_;
};

// Calls `function` as a callback of `handle`. Keeps the first exception in
// `thrown`, and then returns `otherwise`.
template <class Result, class F>
Result guarded(const void* handle, std::exception_ptr& thrown, Result otherwise,
               const F& function) noexcept {
  const CallbackScope scope(handle);
  try {
    return function();
  } catch (...) {
    if (thrown == nullptr) thrown = std::current_exception();
    return otherwise;
  }
}

// The progress of one operation of `handle`. `thrown` may be read once the
// operation has ended.
struct ProgressCall {
  static std::int32_t call(std::uint64_t done, std::uint64_t total,
                           void* user_data) noexcept {
    auto& self = *static_cast<ProgressCall*>(user_data);
    return guarded(self.handle, self.thrown, std::int32_t{1},
                   [&] { return std::int32_t{self.progress(done, total)}; });
  }

  auto function() const noexcept {
    return progress ? &ProgressCall::call : nullptr;
  }

  Progress progress;
  const void* handle = nullptr;
  std::exception_ptr thrown;
};

}  // namespace detail
}  // namespace shard

#endif  // SHARD_CALLBACK_HPP_
