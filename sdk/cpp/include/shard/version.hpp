// SPDX-License-Identifier: Apache-2.0
//
// Versions of the library and of these headers.
//
// A program may run with a newer library than it was compiled with, as long as
// that has the same ABI version. An older one may lack functions, so every
// function that makes a handle first checks the library, once per program.

#ifndef SHARD_VERSION_HPP_
#define SHARD_VERSION_HPP_

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "shard/base.h"
#include "shard/error.hpp"

namespace shard {

// Returns the version of the library that is loaded: "0.2.0". Any thread.
inline const char* version() noexcept { return shard_version(); }

// Returns the number in the SONAME, libshard.so.N. Any thread.
inline std::int32_t abi_version() noexcept { return shard_abi_version(); }

namespace detail {

// The ABI version that these headers describe.
inline constexpr std::int32_t kAbiVersion = 0;

// Returns the problem of running with a library of these versions, or "".
inline std::string version_problem(const char* version, std::int32_t abi) {
  constexpr std::array<long, 3> built = {
      SHARD_VERSION_MAJOR, SHARD_VERSION_MINOR, SHARD_VERSION_PATCH};
  std::array<long, 3> loaded = {-1, -1, -1};
  const char* at = version;
  for (long& number : loaded) {
    char* end = nullptr;
    number = std::strtol(at, &end, 10);
    if (*end != '.') break;
    at = end + 1;
  }
  if (abi == kAbiVersion && loaded >= built) return {};
  const std::string headers = std::to_string(SHARD_VERSION_MAJOR) + "." +
                              std::to_string(SHARD_VERSION_MINOR) + "." +
                              std::to_string(SHARD_VERSION_PATCH);
  return std::string("libshard.so is version ") + version + " with ABI " +
         std::to_string(abi) + ", and this program was compiled with the " +
         "headers of version " + headers + " with ABI " +
         std::to_string(kAbiVersion) + "; run it with a library of ABI " +
         std::to_string(kAbiVersion) + " that is not older than " + headers +
         ", or compile it with the headers of the library";
}

// Throws FAILED_PRECONDITION where the library does not fit these headers.
inline void require_library() {
  static const bool fits = [] {
    const std::string problem = version_problem(version(), abi_version());
    if (!problem.empty()) throw Error(Code::failed_precondition, problem);
    return true;
  }();
  static_cast<void>(fits);
}

}  // namespace detail
}  // namespace shard

#endif  // SHARD_VERSION_HPP_
