// SPDX-License-Identifier: Apache-2.0
//
// Writes to a PATH that a person gives. The path may be anything: a new file,
// an existing one, a link, a FIFO, a device, /dev/stdout.

#ifndef SHARD_SDK_CLI_OUTPUT_FILE_H_
#define SHARD_SDK_CLI_OUTPUT_FILE_H_

#include <string>
#include <string_view>

namespace shardctl {

// Throws Failure unless the folder of `path` exists and a file can be made in
// it, for output that is written beside `path` and then gets its name. Checked
// first, a conversion fails before its work, and every command in the same
// words.
void CheckFolderOf(const std::string& path);
// Throws Failure unless `path` is a folder in which a file can be made, or a
// folder that can be made.
void CheckFolderAt(const std::string& path);

// Writes `text` to `path`. A file appears whole or not at all under its name:
// until then readers see the old one. A link to a file stays a link. Anything
// else that exists, such as a FIFO, is opened and written, and stays. For
// /dev/stdout, /dev/stderr and /dev/fd/N the descriptor that shardctl was
// started with is written. Throws Failure with the reason.
void WriteOutput(const std::string& path, std::string_view text);

// Returns whether WriteOutput(path) writes where PrintText does.
bool IsStdout(const std::string& path);

// Returns the file that the link `path` leads to, or `path` when it is none,
// for output that is written under another name and then renamed.
std::string FileOf(const std::string& path);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_OUTPUT_FILE_H_
