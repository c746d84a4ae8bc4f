// SPDX-License-Identifier: Apache-2.0
//
// The look-up of names. Its thread shares the State with the Resolution, whose
// loop may be gone when the resolver returns.

#include <netdb.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/network/helper/address.h"

namespace shard::network {

struct Resolution::State {
  std::string host;
  uint16_t port;
  Resolver resolver;
  Done done;  // The loop's thread's; null once it was called.

  std::mutex mutex;
  Loop* loop;  // Under the mutex; null once the Resolution is gone.

  // Calls `done`, which may free the Resolution.
  void Finish(Addresses addresses) {
    const Done call = std::exchange(done, nullptr);
    if (call) call(std::move(addresses));
  }
};

namespace {

Status ErrorOfLookup(const std::string& host, int error) {
  const char* text = ::gai_strerror(error);
  switch (error) {
    case EAI_NONAME:
    case EAI_NODATA:
    case EAI_ADDRFAMILY:
      return NotFound("the name ", host, " does not resolve: ", text,
                      "; `getent hosts ", host, "` asks the same sources");
    case EAI_MEMORY:
      return ResourceExhausted("resolving ", host, ": ", text);
    default:
      return Unavailable("resolving the name ", host, " failed: ", text,
                         "; check /etc/resolv.conf and the name servers");
  }
}

Resolution::Addresses SystemResolver(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) return ErrorOfLookup(host, error);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    SocketAddress address(entry->ai_addr);
    address.set_port(port);
    addresses.push_back(address);
  }
  ::freeaddrinfo(found);
  if (addresses.empty()) return ErrorOfLookup(host, EAI_NODATA);
  return addresses;
}

}  // namespace

StatusOr<std::unique_ptr<Resolution>> Resolution::Start(
    Loop* loop, const std::string& host, uint16_t port,
    const Deadline& deadline, Done done, Resolver resolver) {
  const auto state = std::make_shared<State>();
  state->host = host;
  state->port = port;
  state->done = std::move(done);
  state->loop = loop;
  state->resolver = resolver ? std::move(resolver) : SystemResolver;
  std::unique_ptr<Resolution> resolution(new Resolution(state));

  auto numeric = SocketAddress::Parse(host, port);
  if (numeric.ok()) {
    resolution->timer_ = loop->Soon([state, address = *numeric] {
      state->Finish(std::vector<SocketAddress>{address});
    });
    return resolution;
  }
  resolution->timer_ = loop->At(deadline, [state, deadline] {
    state->Finish(DeadlineExceeded("resolving the name ", state->host,
                                   " took more than ", deadline.seconds(),
                                   " s; check /etc/resolv.conf and the name "
                                   "servers"));
  });
  const auto run = [](void* argument) -> void* {
    const std::unique_ptr<std::shared_ptr<State>> shared(
        static_cast<std::shared_ptr<State>*>(argument));
    const std::shared_ptr<State>& mine = *shared;
    Addresses addresses = mine->resolver(mine->host, mine->port);
    const std::lock_guard lock(mine->mutex);
    if (mine->loop == nullptr) return nullptr;
    mine->loop->Post([state = mine, addresses] { state->Finish(addresses); });
    return nullptr;
  };
  // A new thread inherits the signal mask: signals are for the loop's thread.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  auto argument = std::make_unique<std::shared_ptr<State>>(state);
  pthread_t thread;
  const int error = ::pthread_create(&thread, nullptr, run, argument.get());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return ErrnoStatus("starting a thread", error);
  (void)argument.release();  // The thread's now.
  ::pthread_detach(thread);
  return resolution;
}

Resolution::~Resolution() {
  const std::lock_guard lock(state_->mutex);
  state_->loop = nullptr;
  state_->done = nullptr;
}

}  // namespace shard::network
