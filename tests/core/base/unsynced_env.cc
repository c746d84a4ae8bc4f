// SPDX-License-Identifier: Apache-2.0

#include "tests/core/base/unsynced_env.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace shard::testing {

namespace {

constexpr size_t kPage = 4096;

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

}  // namespace

UnsyncedEnv::UnsyncedEnv(const std::string& folder, FileEnv* base)
    : ForwardingEnv(base), folder_(folder) {
  AddExisting(folder);
}

UnsyncedEnv::Id UnsyncedEnv::AddExisting(const std::string& path) {
  const Id id = static_cast<Id>(nodes_.size());
  nodes_.emplace_back();
  if (!std::filesystem::is_directory(path)) {
    nodes_[id].live = nodes_[id].durable = ReadAll(path);
    return id;
  }
  nodes_[id].is_directory = true;
  struct stat found;
  EXPECT_EQ(::stat(path.c_str(), &found), 0) << path;
  live_[{found.st_dev, found.st_ino}] = id;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const Id child = AddExisting(entry.path().string());
    nodes_[id].live_entries[entry.path().filename().string()] = child;
  }
  nodes_[id].durable_entries = nodes_[id].live_entries;
  return id;
}

std::pair<UnsyncedEnv::Id, std::string> UnsyncedEnv::Parent(
    int dir, const char* path) const {
  std::string text = path;
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  const size_t slash = text.rfind('/');
  const std::string above = slash == std::string::npos
                                ? "."
                                : text.substr(0, std::max<size_t>(slash, 1));
  const std::string name =
      slash == std::string::npos ? text : text.substr(slash + 1);
  struct stat found;
  if (::fstatat(dir, above.c_str(), &found, 0) != 0) return {kNone, name};
  const auto it = live_.find({found.st_dev, found.st_ino});
  return {it == live_.end() ? kNone : it->second, name};
}

UnsyncedEnv::Id UnsyncedEnv::Lookup(Id directory,
                                    const std::string& name) const {
  if (directory == kNone) return kNone;
  const Entries& entries = nodes_[directory].live_entries;
  const auto it = entries.find(name);
  return it == entries.end() ? kNone : it->second;
}

void UnsyncedEnv::Apply(Id directory, const Change& change) {
  Node& node = nodes_[directory];
  for (const auto& [name, id] : change) {
    if (id == kNone) {
      node.live_entries.erase(name);
    } else {
      node.live_entries[name] = id;
    }
  }
  node.unsynced.push_back(change);
}

// --- Calls -----------------------------------------------------------------

int UnsyncedEnv::Open(int dir, const char* path, int flags, mode_t mode) {
  if ((flags & (O_CREAT | O_TRUNC)) != 0) RunHook();
  const std::lock_guard lock(mutex_);
  const int fd = base()->Open(dir, path, flags, mode);
  if (fd < 0) return fd;
  struct stat opened;
  EXPECT_EQ(::fstat(fd, &opened), 0);
  if (S_ISDIR(opened.st_mode)) {
    const auto it = live_.find({opened.st_dev, opened.st_ino});
    if (it != live_.end()) open_[fd] = it->second;
    return fd;
  }
  const auto [parent, name] = Parent(dir, path);
  if (parent == kNone) return fd;
  Id id = Lookup(parent, name);
  if (id == kNone) {
    EXPECT_TRUE(flags & O_CREAT) << path << " was made past the environment";
    id = static_cast<Id>(nodes_.size());
    nodes_.emplace_back();
    Apply(parent, {{name, id}});
  }
  if ((flags & O_TRUNC) != 0) nodes_[id].live.clear();
  open_[fd] = id;
  return fd;
}

int UnsyncedEnv::Close(int fd) {
  const std::lock_guard lock(mutex_);
  open_.erase(fd);
  return base()->Close(fd);
}

ssize_t UnsyncedEnv::Write(int fd, const void* data, size_t bytes,
                           uint64_t offset) {
  RunHook();
  const std::lock_guard lock(mutex_);
  const ssize_t written = base()->Write(fd, data, bytes, offset);
  const auto it = open_.find(fd);
  if (written > 0 && it != open_.end()) {
    std::string& live = nodes_[it->second].live;
    const size_t count = static_cast<size_t>(written);
    if (live.size() < offset + count) live.resize(offset + count);
    live.replace(offset, count, static_cast<const char*>(data), count);
  }
  return written;
}

int UnsyncedEnv::Sync(int fd) {
  RunHook();
  const std::lock_guard lock(mutex_);
  const int result = base()->Sync(fd);
  const auto it = open_.find(fd);
  if (result == 0 && it != open_.end()) {
    Node& node = nodes_[it->second];
    node.durable = node.live;
    node.durable_entries = node.live_entries;
    node.unsynced.clear();
  }
  return result;
}

void UnsyncedEnv::Resize(int fd, uint64_t bytes, bool shrink) {
  const auto it = open_.find(fd);
  if (it == open_.end()) return;
  std::string& live = nodes_[it->second].live;
  if (shrink || live.size() < bytes) live.resize(bytes);
}

int UnsyncedEnv::Truncate(int fd, uint64_t bytes) {
  RunHook();
  const std::lock_guard lock(mutex_);
  const int result = base()->Truncate(fd, bytes);
  if (result == 0) Resize(fd, bytes, true);
  return result;
}

int UnsyncedEnv::Allocate(int fd, uint64_t bytes) {
  RunHook();
  const std::lock_guard lock(mutex_);
  const int result = base()->Allocate(fd, bytes);
  if (result == 0) Resize(fd, bytes, false);
  return result;
}

int UnsyncedEnv::MakeDir(int dir, const char* path, mode_t mode) {
  RunHook();
  const std::lock_guard lock(mutex_);
  const auto [parent, name] = Parent(dir, path);
  const int result = base()->MakeDir(dir, path, mode);
  if (result != 0 || parent == kNone) return result;
  const Id id = static_cast<Id>(nodes_.size());
  nodes_.emplace_back();
  nodes_[id].is_directory = true;
  struct stat found;
  EXPECT_EQ(::fstatat(dir, path, &found, 0), 0);
  live_[{found.st_dev, found.st_ino}] = id;
  Apply(parent, {{name, id}});
  return result;
}

int UnsyncedEnv::Rename(int from_dir, const char* from, int to_dir,
                        const char* to, unsigned flags) {
  RunHook();
  const std::lock_guard lock(mutex_);
  const auto [from_parent, from_name] = Parent(from_dir, from);
  const auto [to_parent, to_name] = Parent(to_dir, to);
  const Id moved = Lookup(from_parent, from_name);
  const Id other = Lookup(to_parent, to_name);
  const int result = base()->Rename(from_dir, from, to_dir, to, flags);
  if (result != 0 || (from_parent == kNone && to_parent == kNone)) {
    return result;
  }
  EXPECT_TRUE(moved != kNone && from_parent != kNone && to_parent != kNone)
      << from << " -> " << to << " leaves or enters the folder";
  const Id left = (flags & RENAME_EXCHANGE) != 0 ? other : kNone;
  if (from_parent == to_parent) {
    Apply(from_parent, {{from_name, left}, {to_name, moved}});
  } else {
    Apply(from_parent, {{from_name, left}});
    Apply(to_parent, {{to_name, moved}});
  }
  return result;
}

int UnsyncedEnv::Unlink(int dir, const char* path, int flags) {
  RunHook();
  const std::lock_guard lock(mutex_);
  const auto [parent, name] = Parent(dir, path);
  const Id id = Lookup(parent, name);
  const int result = base()->Unlink(dir, path, flags);
  if (result != 0 || id == kNone) return result;
  Apply(parent, {{name, kNone}});
  // The inode number may be given to another directory now.
  std::erase_if(live_, [&](const auto& entry) { return entry.second == id; });
  return result;
}

// --- After a power cut -----------------------------------------------------

UnsyncedEnv::Entries UnsyncedEnv::EntriesAfter(const Node& node, PowerCut cut,
                                               std::mt19937_64* random) {
  if (cut == PowerCut::kLost || cut == PowerCut::kEntriesLost) {
    return node.durable_entries;
  }
  if (cut != PowerCut::kRandom) return node.live_entries;
  Entries entries = node.durable_entries;
  for (const Change& change : node.unsynced) {
    if ((*random)() % 2 == 0) continue;
    for (const auto& [name, id] : change) {
      if (id == kNone) {
        entries.erase(name);
      } else {
        entries[name] = id;
      }
    }
  }
  return entries;
}

std::string UnsyncedEnv::BytesAfter(const Node& node, PowerCut cut,
                                    std::mt19937_64* random) {
  switch (cut) {
    case PowerCut::kKept:
    case PowerCut::kEntriesLost:
      return node.live;
    case PowerCut::kLost:
    case PowerCut::kTruncated:
      return node.durable;
    case PowerCut::kNamesKept: {
      std::string bytes = node.durable;
      bytes.resize(node.live.size());
      return bytes;
    }
    case PowerCut::kRandom:
      break;
  }
  std::string bytes = node.durable;
  if ((*random)() % 2 == 0) bytes.resize(node.live.size());
  for (size_t at = 0; at < bytes.size() && at < node.live.size(); at += kPage) {
    if ((*random)() % 2 == 0) continue;
    const size_t count =
        std::min({kPage, bytes.size() - at, node.live.size() - at});
    bytes.replace(at, count, node.live, at, count);
  }
  return bytes;
}

void UnsyncedEnv::WriteCopy(Id id, PowerCut cut, std::mt19937_64* random,
                            const std::string& path) const {
  const Node& node = nodes_[id];
  if (!node.is_directory) {
    const std::string bytes = BytesAfter(node, cut, random);
    std::ofstream out(path, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    EXPECT_TRUE(out.good()) << path;
    return;
  }
  EXPECT_TRUE(std::filesystem::create_directory(path)) << path;
  for (const auto& [name, child] : EntriesAfter(node, cut, random)) {
    WriteCopy(child, cut, random, path + "/" + name);
  }
}

void UnsyncedEnv::AfterPowerCut(PowerCut cut, uint64_t seed,
                                const std::string& copy) const {
  const std::lock_guard lock(mutex_);
  std::mt19937_64 random(seed);
  WriteCopy(0, cut, &random, copy);
}

}  // namespace shard::testing
