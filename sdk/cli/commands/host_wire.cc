// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/host_wire.h"

#include <climits>
#include <utility>

namespace shardctl {

namespace {

constexpr size_t kFrameHeader = 5;
constexpr int64_t kMicroseconds = 1000 * 1000;

}  // namespace

Packer& Packer::Int(int64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    body_ += static_cast<char>(static_cast<uint64_t>(value) >> shift);
  }
  return *this;
}

Packer& Packer::Text(std::string_view text) {
  Int(static_cast<int64_t>(text.size()));
  body_ += text;
  return *this;
}

int64_t Unpacker::Int() {
  if (rest_.size() < 8) ok_ = false;
  if (!ok_) return 0;
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) {
    value =
        value << 8 | static_cast<unsigned char>(rest_[static_cast<size_t>(i)]);
  }
  rest_.remove_prefix(8);
  return static_cast<int64_t>(value);
}

int Unpacker::Int(int64_t least, int64_t most) {
  const int64_t value = Int();
  if (value < least || value > most) ok_ = false;
  return ok_ ? static_cast<int>(value) : 0;
}

std::string_view Unpacker::Text() {
  const int64_t size = Int();
  if (size < 0 || static_cast<uint64_t>(size) > rest_.size()) ok_ = false;
  if (!ok_) return "";
  const std::string_view text = rest_.substr(0, static_cast<size_t>(size));
  rest_.remove_prefix(text.size());
  return text;
}

std::string Frame(Message message, std::string_view body) {
  std::string frame;
  for (int shift = 0; shift < 32; shift += 8) {
    frame += static_cast<char>(body.size() >> shift);
  }
  frame += static_cast<char>(message);
  frame += body;
  return frame;
}

void FrameReader::Feed(std::string_view bytes) {
  bytes_.erase(0, std::exchange(taken_, 0));
  bytes_ += bytes;
}

bool FrameReader::Next(Message* message, std::string_view* body) {
  const std::string_view rest = std::string_view(bytes_).substr(taken_);
  if (broken_ || rest.size() < kFrameHeader) return false;
  size_t size = 0;
  for (size_t i = 4; i-- > 0;) {
    size = size << 8 | static_cast<unsigned char>(rest[i]);
  }
  if (size > kMaxBody) broken_ = true;
  if (broken_ || rest.size() < kFrameHeader + size) return false;
  *message = static_cast<Message>(rest[4]);
  *body = rest.substr(kFrameHeader, size);
  taken_ += kFrameHeader + size;
  return true;
}

std::string PackJob(const HostJob& job) {
  const RankSetup& setup = job.setup;
  Packer pack;
  pack.Int(setup.first_rank).Int(setup.ranks).Int(setup.world_size);
  pack.Int(setup.columns).Int(static_cast<int>(setup.binding));
  pack.Text(job.folder);
  pack.Int(static_cast<int64_t>(job.silence_seconds * kMicroseconds));
  pack.Int(static_cast<int64_t>(setup.environment.size()));
  for (const auto& [name, value] : setup.environment) {
    pack.Text(name).Text(value);
  }
  for (const std::string& argument : setup.command) pack.Text(argument);
  return pack.body();
}

std::optional<HostJob> UnpackJob(std::string_view body) {
  HostJob job;
  RankSetup& setup = job.setup;
  Unpacker unpack(body);
  setup.detached = true;
  setup.first_rank = unpack.Int(0, INT_MAX);
  setup.ranks = unpack.Int(1, INT_MAX);
  setup.world_size = unpack.Int(1, INT_MAX);
  setup.columns = unpack.Int(0, INT_MAX);
  setup.binding =
      static_cast<Binding>(unpack.Int(0, static_cast<int>(Binding::kNuma)));
  job.folder = unpack.Text();
  job.silence_seconds = static_cast<double>(unpack.Int()) / kMicroseconds;
  const int64_t variables = unpack.Int();
  for (int64_t i = 0; i < variables && unpack.ok(); ++i) {
    const std::string_view name = unpack.Text();
    setup.environment.emplace_back(name, unpack.Text());
  }
  while (unpack.ok() && !unpack.AtEnd()) {
    setup.command.emplace_back(unpack.Text());
  }
  if (!unpack.ok() || setup.command.empty()) return std::nullopt;
  return job;
}

}  // namespace shardctl
