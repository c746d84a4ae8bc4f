// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/rendezvous_wire.h"

#include <utility>

namespace shard::network {

FrameWriter Write(const MemberHello& hello) {
  FrameWriter writer;
  writer.Put(hello.world_size)
      .Put(hello.remaining_nanos)
      .Put(uint8_t{hello.on_master})
      .Put(hello.address.ToWire())
      .PutText(hello.name, kMaxNameBytes);
  return writer;
}

std::optional<MemberHello> ReadHello(std::span<const std::byte> bytes) {
  FrameReader reader(bytes);
  MemberHello hello;
  hello.world_size = reader.Get<int32_t>();
  hello.remaining_nanos = reader.Get<int64_t>();
  hello.on_master = reader.Get<uint8_t>() != 0;
  hello.address = SocketAddress::FromWire(reader.Get<SocketAddress::Wire>());
  hello.name = reader.GetText();
  if (!reader.done()) return std::nullopt;
  return hello;
}

FrameWriter WriteTable(const std::vector<HostEntry>& table, int index) {
  FrameWriter writer;
  writer.Put(static_cast<int32_t>(index))
      .Put(static_cast<uint32_t>(table.size()));
  for (const HostEntry& host : table) {
    writer.Put(host.address.ToWire())
        .Put(static_cast<int32_t>(host.first_rank))
        .Put(static_cast<int32_t>(host.ranks))
        .PutText(host.name, kMaxNameBytes);
  }
  return writer;
}

std::optional<std::vector<HostEntry>> ReadTable(
    std::span<const std::byte> bytes, int* index) {
  FrameReader reader(bytes);
  *index = reader.Get<int32_t>();
  const auto count = reader.Get<uint32_t>();
  // A host takes more than a byte: a wrong count does not allocate much.
  if (!reader.ok() || count > reader.left()) return std::nullopt;
  std::vector<HostEntry> table;
  int next_rank = 0;
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    HostEntry host;
    host.address = SocketAddress::FromWire(reader.Get<SocketAddress::Wire>());
    host.first_rank = reader.Get<int32_t>();
    host.ranks = reader.Get<int32_t>();
    host.name = reader.GetText();
    if (host.first_rank != next_rank || host.ranks <= 0) return std::nullopt;
    next_rank += host.ranks;
    table.push_back(std::move(host));
  }
  if (!reader.done() || *index < 0 || *index >= static_cast<int>(count)) {
    return std::nullopt;
  }
  return table;
}

FrameWriter Write(const Status& status) {
  FrameWriter writer;
  writer.Put(static_cast<int32_t>(status.code()))
      .Put(static_cast<int32_t>(status.rank()))
      .PutText(status.message(), kMaxMessageBytes);
  return writer;
}

std::optional<Status> ReadStatus(std::span<const std::byte> bytes) {
  FrameReader reader(bytes);
  const auto code = reader.Get<int32_t>();
  const auto rank = reader.Get<int32_t>();
  std::string message = reader.GetText();
  if (!reader.done()) return std::nullopt;
  if (code == 0) return Status();
  return Status(static_cast<StatusCode>(code), std::move(message), rank);
}

FrameWriter WriteNumbers(std::span<const int32_t> numbers) {
  FrameWriter writer;
  for (const int32_t number : numbers) writer.Put(number);
  return writer;
}

std::optional<std::vector<int32_t>> ReadNumbers(
    std::span<const std::byte> bytes) {
  if (bytes.size() % sizeof(int32_t) != 0) return std::nullopt;
  FrameReader reader(bytes);
  std::vector<int32_t> numbers(bytes.size() / sizeof(int32_t));
  for (int32_t& number : numbers) number = reader.Get<int32_t>();
  return numbers;
}

}  // namespace shard::network
