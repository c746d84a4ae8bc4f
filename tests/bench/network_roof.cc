// SPDX-License-Identifier: Apache-2.0

#include "tests/bench/network_roof.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "core/base/status.h"
#include "gloo/allreduce.h"
#include "gloo/broadcast.h"
#include "gloo/math.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/file_store.h"
#include "gloo/transport/tcp/device.h"
#include "tests/bench/ranks.h"
#include "tests/bench/roof.h"

namespace shard::bench {
namespace {

constexpr uint16_t kPort = 7071;

void RequireCall(const char* call, bool succeeded) {
  if (!succeeded) Require(ErrnoStatus(call, errno));
}

}  // namespace

GlooStep::GlooStep(int rank, const std::string& address,
                   const std::string& folder, size_t numel)
    : rank_(rank),
      grads_(numel, 1e-3f),
      clone_(numel),
      params_(numel),
      m_(numel / 2 + 1),
      v_(numel / 2 + 1) {
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, kWorldSize);
  gloo::rendezvous::FileStore store(folder);
  auto device = gloo::transport::tcp::CreateDevice(address.c_str());
  context->setTimeout(std::chrono::minutes(10));
  context->connectFullMesh(store, device);
  context_ = std::move(context);
}

GlooStep::~GlooStep() = default;

void GlooStep::Step() {
  std::memcpy(clone_.data(), grads_.data(), grads_.size() * sizeof(float));
  gloo::AllreduceOptions reduce(context_);
  reduce.setOutput(clone_.data(), clone_.size());
  reduce.setReduceFunction(
      static_cast<void (*)(void*, const void*, const void*, size_t)>(
          &gloo::sum<float>));
  gloo::allreduce(reduce);
  const size_t half = params_.size() / 2;
  const size_t begins[] = {0, half, params_.size()};
  const size_t begin = begins[rank_];
  AdamRoof(clone_.data() + begin, clone_.data() + begin, params_.data() + begin,
           m_.data(), v_.data(), begins[rank_ + 1] - begin, zero_);
  for (int root = 0; root < kWorldSize; ++root) {
    gloo::BroadcastOptions broadcast(context_);
    broadcast.setOutput(params_.data() + begins[root],
                        begins[root + 1] - begins[root]);
    broadcast.setRoot(root);
    gloo::broadcast(broadcast);
  }
}

RawTcp::RawTcp(int rank, const std::string& address)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  RequireCall("socket", socket_.valid());
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(kPort);
  RequireCall("inet_pton",
              ::inet_pton(AF_INET, address.c_str(), &where.sin_addr) == 1);
  auto* const any = reinterpret_cast<sockaddr*>(&where);
  if (rank == 0) {
    RequireCall("bind", ::bind(socket_.get(), any, sizeof(where)) == 0);
    RequireCall("listen", ::listen(socket_.get(), 1) == 0);
    socket_.Reset(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    RequireCall("accept", socket_.valid());
  } else {
    // Rank 0 may not listen yet.
    const Deadline deadline = Deadline::After(60);
    while (::connect(socket_.get(), any, sizeof(where)) != 0) {
      RequireCall("connect", !deadline.Expired());
      std::this_thread::yield();
    }
  }
  const int on = 1;
  RequireCall("setsockopt", ::setsockopt(socket_.get(), IPPROTO_TCP,
                                         TCP_NODELAY, &on, sizeof(on)) == 0);
}

void RawTcp::Exchange(size_t bytes) {
  constexpr size_t kBlock = 1 << 20;
  static const std::vector<std::byte> zeros(kBlock);
  std::thread sender([&] {
    for (size_t sent = 0; sent < bytes;) {
      const ssize_t n = ::send(socket_.get(), zeros.data(),
                               std::min(kBlock, bytes - sent), MSG_NOSIGNAL);
      RequireCall("send", n > 0);
      sent += static_cast<size_t>(n);
    }
  });
  std::vector<std::byte> block(kBlock);
  for (size_t received = 0; received < bytes;) {
    const ssize_t n = ::recv(socket_.get(), block.data(),
                             std::min(kBlock, bytes - received), 0);
    RequireCall("recv", n > 0);
    received += static_cast<size_t>(n);
  }
  sender.join();
}

}  // namespace shard::bench
