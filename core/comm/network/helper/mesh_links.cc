// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/mesh_links.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/strings.h"

namespace shard::network {

namespace {

// Beyond the kinds of a rendezvous, which the same channels carried before.
enum LinkKind : uint32_t {
  kGlooEnd = 256,
  kReady = 257,
  kMessage = 258,
  kGoodbye = 259,
  kGoodbyeRead = 260,
  kFailed = 261,
};

// The head of a kFailed, which the message follows.
struct FailedHead {
  int32_t code;
  int32_t rank;
};

Channel::Bytes BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// An end is its token, of a fixed size, and the address.
GlooData::End ParseEnd(Channel::Bytes body) {
  const auto* text = reinterpret_cast<const char*>(body.data());
  constexpr size_t kToken = GlooData::kTokenBytes;
  if (body.size() <= kToken) return {};
  return {.address = std::string(text + kToken, body.size() - kToken),
          .token = std::string(text, kToken)};
}

}  // namespace

MeshLinks::MeshLinks(Loop* loop, Mesh mesh, const Deadline& deadline,
                     Handlers handlers)
    : loop_(loop),
      deadline_(deadline),
      handlers_(std::move(handlers)),
      mesh_(std::move(mesh)),
      peers_(mesh_.hosts.size()),
      ends_(mesh_.hosts.size()) {}

StatusOr<std::unique_ptr<MeshLinks>> MeshLinks::Create(Loop* loop, Mesh mesh,
                                                       const Deadline& deadline,
                                                       Handlers handlers) {
  std::unique_ptr<MeshLinks> links(
      new MeshLinks(loop, std::move(mesh), deadline, std::move(handlers)));
  const int self = links->mesh_.self;
  const auto hosts = static_cast<int>(links->mesh_.hosts.size());
  SHARD_ASSIGN_OR_RETURN(
      links->data_,
      GlooData::Create(
          loop, self, hosts,
          links->mesh_.hosts[static_cast<size_t>(self)].address.HostText(),
          deadline));
  links->data_->set_on_lost([links = links.get()](int host, const Status& why) {
    links->Lose(host, why);
  });
  for (int h = 0; h < hosts; ++h) {
    if (h == self) continue;
    Channel* const channel =
        links->mesh_.channels[static_cast<size_t>(h)].get();
    channel->SetHandlers(
        {.on_open = nullptr,
         .on_frame =
             [links = links.get(), h](uint32_t kind, Channel::Bytes body) {
               links->HandleFrame(h, kind, body);
             },
         .on_closed = [links = links.get(),
                       h](const Status& why) { links->Lose(h, why); },
         .on_drained = nullptr});
    const GlooData::End& end = links->data_->end(h);
    links->SendFrame(h, kGlooEnd, {BytesOf(end.token), BytesOf(end.address)});
  }
  links->ready_timer_ = loop->At(deadline, [links = links.get(), hosts] {
    for (int h = 0; h < hosts; ++h) {
      if (!links->IsOpen(h) || links->peer(h).is_ready) continue;
      const SocketAddress& at =
          links->mesh_.hosts[static_cast<size_t>(h)].address;
      // A packet of 1500 bytes has so many behind the headers of IP and ICMP.
      const int bytes = at.family() == AF_INET6 ? 1452 : 1472;
      return links->Lose(
          h, DeadlineExceeded(
                 "its tensor connections were not ready in time; let firewalls "
                 "pass all TCP ports between the hosts, and packets as large "
                 "as the MTU of the interfaces: with 1500, `ping -M do -s ",
                 bytes, " ", at.HostText(),
                 "` must be answered on each of the other hosts"));
    }
  });
  if (hosts == 1) {
    links->is_connected_ = true;
    loop->Post([links = links.get()] { links->CheckReady(); });
  }
  return links;
}

void MeshLinks::SendFrame(int host, uint32_t kind,
                          std::initializer_list<Channel::Bytes> parts) {
  if (!IsOpen(host)) return;
  const Status sent =
      mesh_.channels[static_cast<size_t>(host)]->Send(kind, parts);
  // A channel that has ended says why in its callback.
  if (sent.code() == StatusCode::kResourceExhausted) {
    loop_->Post([this, host, sent] {
      Lose(host, sent.WithContext("it does not take what it is sent"));
    });
  }
}

void MeshLinks::Send(int host, std::span<const std::byte> head,
                     std::span<const std::byte> body) {
  SendFrame(host, kMessage, {head, body});
}

void MeshLinks::SendData(int host, const std::byte* data, size_t bytes,
                         std::shared_ptr<const void> owner) {
  if (IsOpen(host)) data_->Send(host, data, bytes, std::move(owner));
}

void MeshLinks::ReceiveData(int host, std::byte* data, size_t bytes,
                            std::function<void()> done) {
  if (!IsOpen(host)) return;
  data_->Receive(host, data, bytes, [this, done = std::move(done)] {
    done();
    AnswerGoodbyes();
  });
}

void MeshLinks::HandleFrame(int host, uint32_t kind, Channel::Bytes body) {
  // Frames that had come before the host was lost.
  if (!IsOpen(host)) return;
  switch (kind) {
    case kGlooEnd:
      return TakeEnd(host, body);
    case kReady:
      peer(host).is_ready = true;
      return CheckReady();
    case kFailed: {
      FailedHead head{};
      if (body.size() < sizeof(head)) break;
      std::memcpy(&head, body.data(), sizeof(head));
      if (head.code == 0) break;
      return handlers_.on_failed(Status(
          static_cast<StatusCode>(head.code),
          std::string(reinterpret_cast<const char*>(body.data()) + sizeof(head),
                      body.size() - sizeof(head)),
          head.rank));
    }
    case kMessage:
      return handlers_.on_message(host, body);
    case kGoodbye:
      peer(host).waits_for_answer = true;
      return AnswerGoodbyes();
    case kGoodbyeRead:
      peer(host).has_answered = true;
      return CheckGoodbye();
    default:
      break;
  }
  Lose(host, InvalidArgument("it sent a wrong frame of kind ", kind));
}

void MeshLinks::Fail(const Status& why) {
  const FailedHead head{static_cast<int32_t>(why.code()), why.rank()};
  const std::string text(why.message());
  for (const auto& channel : mesh_.channels) {
    // A host that is just being lost is told, too. One that does not take it is
    // gone.
    if (channel == nullptr) continue;
    (void)channel->Send(kFailed,
                        {std::as_bytes(std::span(&head, 1)), BytesOf(text)});
  }
}

void MeshLinks::TakeEnd(int host, Channel::Bytes body) {
  GlooData::End end = ParseEnd(body);
  if (end.address.empty() || std::exchange(peer(host).has_end, true)) {
    return Lose(host, InvalidArgument("it sent a wrong address of Gloo's"));
  }
  ends_[static_cast<size_t>(host)] = std::move(end);
  for (int h = 0; h < static_cast<int>(peers_.size()); ++h) {
    if (h != mesh_.self && !peer(h).has_end) return;
  }
  data_->Connect(std::move(ends_), [this](int failed, const Status& connected) {
    if (!connected.ok()) return Lose(failed, connected);
    is_connected_ = true;
    for (int h = 0; h < static_cast<int>(peers_.size()); ++h) {
      SendFrame(h, kReady, {});
    }
    CheckReady();
  });
}

void MeshLinks::CheckReady() {
  if (!is_connected_ || was_ready_) return;
  for (int h = 0; h < static_cast<int>(peers_.size()); ++h) {
    if (h != mesh_.self && (!peer(h).is_ready || peer(h).is_lost)) return;
  }
  was_ready_ = true;
  ready_timer_.Reset();
  handlers_.on_ready();
}

void MeshLinks::Lose(int host, Status why) {
  if (!IsOpen(host)) return;
  peer(host).is_lost = true;
  data_->Lose(host);
  handlers_.on_lost(host, why);
  // A callback of the channel may be on the stack: it is freed after it.
  loop_->Post([channel = std::shared_ptr<Channel>(
                   std::move(mesh_.channels[static_cast<size_t>(host)]))] {});
  CheckGoodbye();
}

void MeshLinks::SayGoodbye(double seconds, std::function<void()> done) {
  on_goodbye_ = std::move(done);
  for (int h = 0; h < static_cast<int>(peers_.size()); ++h) {
    SendFrame(h, kGoodbye, {});
  }
  goodbye_timer_ = loop_->At(Deadline::After(seconds), [this] {
    if (on_goodbye_) std::exchange(on_goodbye_, nullptr)();
  });
  CheckGoodbye();
}

void MeshLinks::AnswerGoodbyes() {
  for (int h = 0; h < static_cast<int>(peers_.size()); ++h) {
    if (!IsOpen(h) || !peer(h).waits_for_answer) continue;
    if (!handlers_.has_all_data(h)) continue;
    peer(h).waits_for_answer = false;
    SendFrame(h, kGoodbyeRead, {});
  }
}

void MeshLinks::CheckGoodbye() {
  if (!on_goodbye_) return;
  for (int h = 0; h < static_cast<int>(peers_.size()); ++h) {
    if (IsOpen(h) && !peer(h).has_answered) return;
  }
  std::exchange(on_goodbye_, nullptr)();
}

}  // namespace shard::network
