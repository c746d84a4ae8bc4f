// SPDX-License-Identifier: Apache-2.0
//
// How commands write to a PATH that a person gives. It may be anything: a new
// file, one that is there, a link, a FIFO, a device, /dev/stdout.

#ifndef SHARD_SDK_CLI_OUTPUT_FILE_H_
#define SHARD_SDK_CLI_OUTPUT_FILE_H_

#include <string>
#include <string_view>

namespace shardctl {

// Throws Failure unless the folder of `path` exists and a file can be made in
// it: for what is written beside `path` and then gets its name. So a conversion
// fails before it works, and every command in the same words.
void CheckFolderOf(const std::string& path);
// The same of a folder that is `path`, or is to be made there.
void CheckFolderAt(const std::string& path);

// Writes `text` to `path`. A file appears whole or not at all, under its name:
// who looks at an old one meanwhile sees the old one. A link to a file stays a
// link. What is there and is no file is opened and written, and stays what it
// is; of /dev/stdout, /dev/stderr and /dev/fd/N the descriptor is written that
// shardctl was started with. Throws Failure with the reason.
void WriteOutput(const std::string& path, std::string_view text);

// Whether WriteOutput(path) writes where PrintText does.
bool IsStdout(const std::string& path);

// The file that `path` stands for, if that is a link to one, and else `path`:
// for what is written under another name and then renamed.
std::string FileOf(const std::string& path);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_OUTPUT_FILE_H_
