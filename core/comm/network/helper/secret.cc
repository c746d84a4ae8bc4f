// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/secret.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/fd.h"
#include "core/base/strings.h"

namespace shard::network {

namespace {

// Wiped when it goes.
struct Text {
  // One byte more than allowed shows that a file is too long.
  std::array<char, kMaxSecretBytes + 1> bytes;
  size_t size = 0;

  ~Text() { ::sodium_memzero(bytes.data(), bytes.size()); }
};

Status CheckFile(int fd, const std::string& path) {
  struct stat file {};
  if (::fstat(fd, &file) != 0) {
    return ErrnoStatus(StrCat("looking at the secret file ", path), errno);
  }
  if (!S_ISREG(file.st_mode)) {
    return InvalidArgument("the secret file ", path, " is no regular file");
  }
  if (file.st_uid != ::geteuid() && file.st_uid != 0) {
    return PermissionDenied("the secret file ", path, " belongs to user ",
                            file.st_uid,
                            ", who can change it; this process is "
                            "of user ",
                            static_cast<uint64_t>(::geteuid()));
  }
  if ((file.st_mode & 077) != 0) {
    return PermissionDenied("other users may use the secret file ", path,
                            "; run: chmod 600 ", path);
  }
  return Status();
}

StatusOr<Secret> ReadFile(const std::string& path) {
  // Not blocking: the path may be that of a pipe.
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    return ErrnoStatus(StrCat("opening the secret file ", path), errno);
  }
  SHARD_RETURN_IF_ERROR(CheckFile(fd.get(), path));
  Text text;
  while (text.size < text.bytes.size()) {
    const ssize_t size = ::read(fd.get(), text.bytes.data() + text.size,
                                text.bytes.size() - text.size);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) {
      return ErrnoStatus(StrCat("reading the secret file ", path), errno);
    }
    if (size == 0) break;
    text.size += static_cast<size_t>(size);
  }
  auto secret =
      Secret::FromText(std::string_view(text.bytes.data(), text.size));
  if (!secret.ok()) return secret.status().WithContext(path);
  return secret;
}

}  // namespace

StatusOr<Secret> Secret::FromText(std::string_view text) {
  // A file of the longest secret may end with a newline and still be too long
  // to tell from one that goes on.
  if (text.size() > kMaxSecretBytes) {
    return InvalidArgument("the secret has more than ", kMaxSecretBytes,
                           " bytes; 32 random ones are enough: head -c 32 "
                           "/dev/urandom | base64");
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) {
    text.remove_suffix(1);
  }
  if (text.empty()) {
    return InvalidArgument(
        "the secret is empty; make one that is the same on all hosts: head -c "
        "32 /dev/urandom | base64");
  }
  Secret secret;
  secret.given_ = true;
  ::crypto_generichash(secret.key_.data(), secret.key_.size(),
                       reinterpret_cast<const unsigned char*>(text.data()),
                       text.size(), nullptr, 0);
  return secret;
}

Secret::~Secret() { ::sodium_memzero(key_.data(), key_.size()); }

StatusOr<Secret> ReadSecret(const char* token, const std::string& path) {
  if (token != nullptr && !path.empty()) {
    return InvalidArgument(
        "both SHARD_TOKEN and the secret file ", path,
        " are given; unset SHARD_TOKEN, or leave out secret_file");
  }
  if (!path.empty()) return ReadFile(path);
  if (token == nullptr) return Secret();
  auto secret = Secret::FromText(token);
  if (!secret.ok()) return secret.status().WithContext("SHARD_TOKEN");
  return secret;
}

}  // namespace shard::network
