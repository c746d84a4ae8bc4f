// SPDX-License-Identifier: Apache-2.0

#include "core/comm/direct/call.h"

#include "core/base/dtype.h"
#include "core/base/strings.h"

namespace shard::direct {

namespace {

static_assert(sizeof(Fingerprint) % sizeof(uint64_t) == 0 &&
                  offsetof(Cell, call) % sizeof(uint64_t) == 0,
              "it is copied by words");

uint64_t HashOf(std::string_view text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

std::string_view OperationName(uint32_t operation) {
  switch (static_cast<Operation>(operation)) {
    case Operation::kBarrier:
      return "barrier";
    case Operation::kAllGather:
      return "all-gather";
    case Operation::kAllocatePerRank:
      return "allocation per rank";
    case Operation::kAllocatePerHost:
      return "allocation per host";
    case Operation::kShutdown:
      return "shutdown";
    case Operation::kReduceScatter:
      return "reduce-scatter";
    case Operation::kAllGatherBlocks:
      return "all-gather of blocks";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kDuplicate:
      return "duplication";
    case Operation::kOpenExchange:
      return "opening of an exchange";
    case Operation::kOpenNotices:
      return "opening of notices";
    case Operation::kNotice:
      return "notice";
    case Operation::kGatherOnHosts:
      return "all-gather on hosts";
  }
  return "unknown operation";
}

}  // namespace

Fingerprint FingerprintOf(const Call& call, uint64_t number) {
  Fingerprint out{};
  out.operation = static_cast<uint32_t>(call.operation);
  out.what_bytes = CopyText(call.what, out.what);
  out.what_hash = HashOf(call.what);
  out.bytes = call.bytes;
  out.number = number;
  out.tensor = call.tensor;
  out.direct = call.direct ? 1 : 0;
  return out;
}

bool SameCall(const Fingerprint& a, const Fingerprint& b) {
  const TensorCall& s = a.tensor;
  const TensorCall& t = b.tensor;
  return a.operation == b.operation && a.bytes == b.bytes &&
         a.number == b.number && a.what_hash == b.what_hash &&
         a.direct == b.direct && s.set.stride == t.set.stride &&
         s.set.count == t.set.count && s.root == t.root && s.dtype == t.dtype &&
         s.recv_dtype == t.recv_dtype && s.add == t.add &&
         s.block_groups == t.block_groups;
}

std::string WhyWrong(const Fingerprint& call, int rank, int world_size) {
  const auto operation = static_cast<Operation>(call.operation);
  const bool has_order = operation == Operation::kReduceScatter ||
                         operation == Operation::kGatherOnHosts;
  if (!has_order && operation != Operation::kAllGatherBlocks) return "";
  const RankSet& set = call.tensor.set;
  if (!set.Divides(world_size) || set.IndexOf(rank) < 0) {
    return StrCat("which is not its set of the ", world_size,
                  " ranks; every rank must be in one set, all of one stride "
                  "and count");
  }
  const int32_t groups = call.tensor.block_groups;
  if (!has_order || (groups >= 1 && set.count % groups == 0)) return "";
  return StrCat("whose blocks lie in an order of ", groups,
                " groups; their number must divide that of the ranks, ",
                set.count);
}

std::string Format(const Fingerprint& call) {
  std::string out = StrCat(OperationName(call.operation), " '",
                           TextOf(call.what, call.what_bytes), "'");
  const TensorCall& tensor = call.tensor;
  const auto over_set = [&] {
    StrAppend(&out, " over ", tensor.set.count, " ranks from ",
              tensor.set.first, " in steps of ", tensor.set.stride);
  };
  switch (static_cast<Operation>(call.operation)) {
    case Operation::kAllGather:
    case Operation::kAllocatePerRank:
    case Operation::kAllocatePerHost:
    case Operation::kOpenNotices:
    case Operation::kNotice:
      StrAppend(&out, " of ", call.bytes, " bytes");
      break;
    case Operation::kReduceScatter:
      StrAppend(&out, " of ", call.bytes, " ",
                DTypeName(static_cast<DType>(tensor.dtype)),
                tensor.add != 0 ? " added to " : " to ",
                DTypeName(static_cast<DType>(tensor.recv_dtype)));
      over_set();
      if (tensor.block_groups != 1) {
        StrAppend(&out, ", blocks by ", tensor.block_groups, " groups");
      }
      break;
    case Operation::kAllGatherBlocks:
      StrAppend(&out, " of ", call.bytes, " bytes");
      over_set();
      break;
    case Operation::kGatherOnHosts:
      StrAppend(&out, " of ", call.bytes, " bytes");
      over_set();
      if (tensor.block_groups != 1) {
        StrAppend(&out, ", blocks by ", tensor.block_groups, " groups");
      }
      break;
    case Operation::kBroadcast:
      StrAppend(&out, " of ", call.bytes, " bytes from rank ", tensor.root);
      break;
    default:
      break;
  }
  if (call.direct == 0) out += " without shared memory";
  return out;
}

bool CarriesShipments(const Fingerprint& call) {
  switch (static_cast<Operation>(call.operation)) {
    case Operation::kReduceScatter:
    case Operation::kBroadcast:
      return true;
    case Operation::kAllGatherBlocks:
    case Operation::kGatherOnHosts:
      return call.bytes > kPayloadBytes;
    default:
      return false;
  }
}

void StoreCall(const Fingerprint& from, Cell* to) {
  StoreWords(&from, sizeof(from), &to->call);
}

Fingerprint LoadCall(const Cell& from) {
  Fingerprint call;
  LoadWords(&from.call, sizeof(call), &call);
  return call;
}

}  // namespace shard::direct
