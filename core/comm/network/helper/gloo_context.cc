// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/gloo_context.h"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <mutex>
#include <utility>

#include "gloo/transport/tcp/pair.h"

namespace shard::network {

namespace {

namespace tcp = gloo::transport::tcp;

// The library constructs what this allocates, by headers of which one is ours
// (tools/bazel/system/gloo).
static_assert(sizeof(tcp::Pair) == 896, "not the Gloo of Debian 12");

// Gloo's constructor begins to listen, so who connects before it returns meets
// Gloo's own functions. Nobody is told the port before.
class GuardedPair final : public tcp::Pair {
 public:
  GuardedPair(tcp::Context* context, tcp::Device* device, int host,
              std::chrono::milliseconds timeout,
              const GlooContext::Failed* failed)
      : tcp::Pair(context, device, host, timeout), failed_(failed) {}

  // The loop's thread. As Gloo's own, which would unlock before who catches
  // locks again. It must not wait: who has the lock may wait for the loop.
  void handleEvents(int events) override {
    const std::unique_lock<std::mutex> lock(m_, std::try_to_lock);
    if (!lock.owns_lock()) return;
    try {
      if (state_ == CONNECTED) {
        handleReadWrite(events);
      } else if (state_ == LISTENING) {
        handleListening();
      } else if (state_ == CONNECTING) {
        handleConnecting();
      }
    } catch (...) {
      Fail(std::current_exception());
    }
  }

 private:
  // REQUIRES: the lock is held, so that this is not freed meanwhile.
  void Fail(const std::exception_ptr& why) noexcept {
    // A connection that is accepted is not in the loop before it has been
    // looked at, and Gloo throws once more where it removes what is not there.
    if (state_ == LISTENING && fd_ != -1) {
      ::close(fd_);
      fd_ = -1;
    }
    try {
      signalException(why);
    } catch (...) {  // Out of memory.
      changeState(CLOSED);
    }
    try {
      (*failed_)(rank_, why);
    } catch (...) {  // NOLINT: out of memory; later calls throw
    }
  }

  const GlooContext::Failed* const failed_;
};

}  // namespace

GlooContext::GlooContext(std::shared_ptr<tcp::Device> device, int host,
                         int hosts, Failed failed)
    : tcp::Context(std::move(device), host, hosts),
      failed_(std::move(failed)) {}

std::unique_ptr<gloo::transport::Pair>& GlooContext::createPair(int host) {
  auto& pair = pairs_[static_cast<size_t>(host)];
  pair = std::make_unique<GuardedPair>(this, device_.get(), host, getTimeout(),
                                       &failed_);
  return pair;
}

}  // namespace shard::network
