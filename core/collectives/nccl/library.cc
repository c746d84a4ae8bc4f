// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/nccl/library.h"

#include <utility>

#include "core/base/strings.h"
#include "core/collectives/nccl/conf_files.h"

namespace shard::nccl {

std::string VersionText(int version) {
  return StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

namespace {

constexpr char kName[] = "libnccl.so.2";

StatusCode CodeOf(NcclResult result) {
  switch (result) {
    case NcclResult::kInvalidArgument:
    case NcclResult::kInvalidUsage:
      return StatusCode::kInvalidArgument;
    case NcclResult::kUnhandledCudaError:
    case NcclResult::kSystemError:
    case NcclResult::kRemoteError:
      return StatusCode::kUnavailable;
    default:
      return StatusCode::kInternal;
  }
}

// Returns "libnccl.so.2 (/usr/lib/libnccl.so.2)".
std::string NameOf(const cuda::Library& library) {
  const bool is_of_process =
      library.origin() == cuda::Library::Origin::kProcess;
  return StrCat(library.name(), " (", library.FindPath(),
                is_of_process ? ", which the process had before)" : ")");
}

// Finds the version, which decides whether the rest is looked for.
StatusOr<NcclLibrary> Examine(cuda::Library library) {
  NcclLibrary opened = {std::move(library), {}};
  const std::string name = NameOf(opened.library);
  auto* const get_version =
      opened.library.Find<NcclResult(int*)>("ncclGetVersion");
  if (get_version == nullptr ||
      get_version(&opened.version) != NcclResult::kSuccess) {
    return NotFound(name, " does not tell its version");
  }
  if (opened.version < kOldestVersion || opened.version >= 30000) {
    return FailedPrecondition(name, " is of version ",
                              VersionText(opened.version), "; libshard needs ",
                              VersionText(kOldestVersion),
                              " or later, before 3.0");
  }
#define SHARD_NCCL_FIND(Name, symbol, parameters)                        \
  opened.api.Name = opened.library.Find<NcclResult parameters>(#symbol); \
  if (opened.api.Name == nullptr) return NotFound(name, " lacks ", #symbol);
  SHARD_NCCL(SHARD_NCCL_FIND)
#undef SHARD_NCCL_FIND
  if (opened.version >= kRegistersFrom) {
#define SHARD_NCCL_FIND_LATER(Name, symbol, parameters) \
  opened.api.Name = opened.library.Find<NcclResult parameters>(#symbol);
    SHARD_NCCL_REGISTRATION(SHARD_NCCL_FIND_LATER)
  }
  if (opened.version >= kMakesWindowsFrom) {
    SHARD_NCCL_WINDOWS(SHARD_NCCL_FIND_LATER)
    SHARD_NCCL_PEERS(SHARD_NCCL_FIND_LATER)
  }
#undef SHARD_NCCL_FIND_LATER
  opened.api.GetErrorString =
      opened.library.Find<const char*(NcclResult)>("ncclGetErrorString");
  opened.api.GetLastError =
      opened.library.Find<const char*(NcclComm)>("ncclGetLastError");
  return opened;
}

// Returns why a library does not have what comes with the version `since`.
// `lacks`: the first function of it that was not found.
std::string WhyWithout(int version, int since, std::string_view does_not,
                       std::string_view lacks) {
  const std::string name = StrCat("NCCL ", VersionText(version));
  if (version < since) {
    return StrCat(name, " ", does_not, "; use ", VersionText(since),
                  " or later");
  }
  return StrCat(name, " lacks ", lacks, ", which ", VersionText(since),
                " has, and so ", does_not,
                "; install another build of it on all hosts");
}

}  // namespace

std::string NcclLibrary::WhyNoRegistration() const {
  std::string_view lacks;
#define SHARD_NCCL_LACKS(Name, symbol, parameters) \
  if (lacks.empty() && api.Name == nullptr) lacks = #symbol;
  SHARD_NCCL_REGISTRATION(SHARD_NCCL_LACKS)
  if (lacks.empty()) return "";
  return WhyWithout(version, kRegistersFrom, "does not register memory", lacks);
}

std::string NcclLibrary::WhyNoWindows() const {
  std::string_view lacks;
  SHARD_NCCL_WINDOWS(SHARD_NCCL_LACKS)
  SHARD_NCCL_PEERS(SHARD_NCCL_LACKS)
#undef SHARD_NCCL_LACKS
  if (lacks.empty()) return "";
  return WhyWithout(version, kMakesWindowsFrom,
                    "makes no windows that collectives can use", lacks);
}

std::vector<std::pair<std::string_view, bool>> NcclLibrary::FindLaterFunctions()
    const {
  std::vector<std::pair<std::string_view, bool>> found;
  for (const char* const name :
       {"ncclMemAlloc", "ncclCommRegister", "ncclCommWindowRegister",
        "ncclCommShrink", "ncclCommRevoke", "ncclCommGrow",
        "ncclGetPeerDevicePointer"}) {
    found.emplace_back(name, library.Find<void()>(name) != nullptr);
  }
  return found;
}

Status NcclLibrary::ToStatus(NcclResult result, std::string_view call,
                             NcclComm comm) const {
  if (result == NcclResult::kSuccess) return Status();
  const char* const text =
      api.GetErrorString == nullptr ? nullptr : api.GetErrorString(result);
  const char* const last =
      api.GetLastError == nullptr ? nullptr : api.GetLastError(comm);
  const bool tells_more = last != nullptr && *last != '\0';
  return Status(CodeOf(result),
                StrCat(call, ": ", text == nullptr ? "unknown error" : text,
                       " (", static_cast<int>(result), ")",
                       tells_more ? "; NCCL's last error, maybe of another "
                                    "communicator: "
                                  : "",
                       tells_more ? last : ""));
}

StatusOr<NcclLibrary> OpenNccl() {
  // Calls would wait inside of NCCL, whatever their deadlines. NCCL takes an
  // empty value for none.
  const auto blocking = FindSetting("NCCL_COMM_BLOCKING");
  if (blocking && !blocking->value.empty() && blocking->value != "0") {
    const std::string& file = blocking->file;
    return BackendUnavailable(
        "no usable NCCL: NCCL_COMM_BLOCKING=", blocking->value,
        file.empty() ? "" : ", in ", file, ", makes its calls wait for ever; ",
        file.empty() ? "unset it" : "remove it there");
  }
  // No second copy is loaded beside that of the process.
  const bool is_loaded =
      cuda::Library::Open(kName, cuda::Library::Origin::kProcess).ok();
  auto opened = cuda::UseFirst({kName}, Examine);
  if (opened.ok()) return opened;
  return Status(
      opened.status().code(),
      StrCat("no usable NCCL: ", opened.status().message(),
             is_loaded ? "; let the process load NCCL " : "; install NCCL ",
             VersionText(kOldestVersion),
             is_loaded ? " or later, or none before libshard does"
                       : " or later (it is in Python's nvidia-nccl, too), and "
                         "put its folder into LD_LIBRARY_PATH"));
}

}  // namespace shard::nccl
