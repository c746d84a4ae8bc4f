// SPDX-License-Identifier: Apache-2.0
//
// GlooContext: Gloo's context of TCP connections, whose errors stay in the
// connection that has them.
//
// Gloo throws on the thread of its loop, where nobody catches: bytes that are
// not Gloo's, more data than is expected, or a connection that is reset before
// it is accepted would end the process. Here such an error closes the
// connection, is thrown again by whatever is called on it, as errors of sending
// and receiving are, and is reported: Gloo does not end the wait for data that
// has begun to come.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_GLOO_CONTEXT_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_GLOO_CONTEXT_H_

#include <exception>
#include <functional>
#include <memory>

#include "gloo/transport/tcp/context.h"
#include "gloo/transport/tcp/device.h"

namespace shard::network {

class GlooContext final : public gloo::transport::tcp::Context {
 public:
  // Is told of an error that Gloo has thrown on its loop's thread, there, with
  // a lock of the connection held. Must not throw.
  using Failed = std::function<void(int host, const std::exception_ptr& why)>;

  GlooContext(std::shared_ptr<gloo::transport::tcp::Device> device, int host,
              int hosts, Failed failed);

  // Listens for `host`, on a port of its own.
  std::unique_ptr<gloo::transport::Pair>& createPair(int host) override;

 private:
  const Failed failed_;
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_GLOO_CONTEXT_H_
