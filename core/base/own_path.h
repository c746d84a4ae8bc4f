// SPDX-License-Identifier: Apache-2.0
//
// Finds the files that are installed with the library.

#ifndef SHARD_CORE_BASE_OWN_PATH_H_
#define SHARD_CORE_BASE_OWN_PATH_H_

#include <string>
#include <string_view>

namespace shard {

// Returns the path of the library or program that has this code, as the loader
// found it, or "".
std::string OwnPath();

// Returns `path` without links, or "" where there is no such file.
std::string ResolvedPath(const std::string& path);

// Returns the path of `file` in the folder of `neighbor`.
std::string PathBeside(const std::string& neighbor, std::string_view file);

}  // namespace shard

#endif  // SHARD_CORE_BASE_OWN_PATH_H_
