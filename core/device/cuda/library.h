// SPDX-License-Identifier: Apache-2.0
//
// Library: a shared library that is opened at run time, as NVIDIA's are.
//
// Thread-compatible.

#ifndef SHARD_CORE_DEVICE_CUDA_LIBRARY_H_
#define SHARD_CORE_DEVICE_CUDA_LIBRARY_H_

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/base/strings.h"

namespace shard::cuda {

class Library {
 public:
  enum class Origin { kProcess, kAnywhere };

  // Opens a library by its name. kProcess: only the one that the process has
  // already. Errors: kNotFound, with the loader's reason.
  static StatusOr<Library> Open(const char* name, Origin origin);
  // Closes it, so that the host's process is as it was.
  ~Library();
  Library(Library&& other) noexcept
      : name_(std::move(other.name_)),
        handle_(std::exchange(other.handle_, nullptr)),
        origin_(other.origin_),
        is_kept_(other.is_kept_) {}
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  const std::string& name() const { return name_; }
  // Returns kProcess for a library that the process had before.
  Origin origin() const { return origin_; }
  // Returns the path of its file, or "" where the loader does not know it.
  std::string FindPath() const;

  // Returns null where the library has no such symbol.
  template <typename Function>
  Function* Find(const char* symbol) const {
    return reinterpret_cast<Function*>(FindSymbol(symbol));
  }

  // Keeps it open for good: for a library that has begun to work, which may
  // have left its code with others.
  void Keep() { is_kept_ = true; }

 private:
  Library(const char* name, void* handle, Origin origin)
      : name_(name), handle_(handle), origin_(origin) {}
  void* FindSymbol(const char* symbol) const;

  std::string name_;
  void* handle_;  // Null: another object has it.
  Origin origin_;
  bool is_kept_ = false;
};

// Returns the result of use(Library) for the first of `names` with which that
// is OK. Those that the process has come first: two copies of a library would
// not know of each other. Errors: kBackendUnavailable, with the reason for
// each.
template <typename Use>
auto UseFirst(std::initializer_list<const char*> names, const Use& use)
    -> decltype(use(std::declval<Library>())) {
  std::string reasons;
  std::vector<const char*> tried;
  for (const Library::Origin origin :
       {Library::Origin::kProcess, Library::Origin::kAnywhere}) {
    for (const char* const name : names) {
      if (std::count(tried.begin(), tried.end(), name) != 0) continue;
      auto library = Library::Open(name, origin);
      Status reason = library.status();
      if (library.ok()) {
        auto used = use(*std::move(library));
        if (used.ok()) return used;
        reason = used.status();
      } else if (origin == Library::Origin::kProcess) {
        continue;
      }
      tried.push_back(name);
      StrAppend(&reasons, reasons.empty() ? "" : "; ", reason.message());
    }
  }
  return BackendUnavailable(reasons);
}

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_LIBRARY_H_
