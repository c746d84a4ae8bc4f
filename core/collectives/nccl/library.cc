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

// Finds the version, which decides whether the rest is looked for.
StatusOr<NcclLibrary> Examine(cuda::Library library) {
  NcclLibrary opened = {std::move(library), {}};
  const std::string& name = opened.library.name();
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
  // It would wait inside of calls, whatever their deadlines.
  const auto blocking = FindSetting("NCCL_COMM_BLOCKING");
  if (blocking && !blocking->value.empty() && blocking->value != "0") {
    const std::string& file = blocking->file;
    return FailedPrecondition("NCCL_COMM_BLOCKING=", blocking->value,
                              file.empty() ? "" : ", in ", file,
                              ", makes its calls wait for ever; ",
                              file.empty() ? "unset it" : "remove it there");
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
#undef SHARD_NCCL_FIND_LATER
  }
  opened.api.GetErrorString =
      opened.library.Find<const char*(NcclResult)>("ncclGetErrorString");
  opened.api.GetLastError =
      opened.library.Find<const char*(NcclComm)>("ncclGetLastError");
  return opened;
}

}  // namespace

std::vector<std::pair<std::string_view, bool>> NcclLibrary::FindLaterFunctions()
    const {
  std::vector<std::pair<std::string_view, bool>> found;
  for (const char* const name :
       {"ncclMemAlloc", "ncclCommRegister", "ncclCommWindowRegister",
        "ncclCommShrink", "ncclCommRevoke", "ncclCommGrow"}) {
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
                StrCat(call, rank < 0 ? "" : StrCat(" on rank ", rank), ": ",
                       text == nullptr ? "unknown error" : text, " (",
                       static_cast<int>(result), ")", tells_more ? ": " : "",
                       tells_more ? last : ""),
                rank);
}

StatusOr<NcclLibrary> OpenNccl() {
  auto opened = cuda::UseFirst({"libnccl.so.2"}, Examine);
  if (opened.ok()) return opened;
  return Status(
      opened.status().code(),
      StrCat("no usable NCCL: ", opened.status().message(), "; install NCCL ",
             VersionText(kOldestVersion),
             " or later (it is in Python's nvidia-nccl, too), and put "
             "its folder into LD_LIBRARY_PATH"));
}

}  // namespace shard::nccl
