// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/mesh.h"

#include <algorithm>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/network/helper/rendezvous_wire.h"

namespace shard::network {

namespace {

constexpr double kLongestRetrySeconds = 1;

}  // namespace

StatusOr<std::unique_ptr<MeshBuilder>> MeshBuilder::Create(Loop* loop,
                                                           Fd listening,
                                                           Options options,
                                                           Done done) {
  std::unique_ptr<MeshBuilder> mesh(
      new MeshBuilder(loop, std::move(options), std::move(done)));
  MeshBuilder* const self = mesh.get();
  SHARD_ASSIGN_OR_RETURN(
      self->listener_,
      Listener::Create(
          loop, std::move(listening),
          {.channel = {.identity = self->options_.identity,
                       .role = Role::kLowerHost,
                       .silence_seconds = self->options_.silence_seconds},
           .warn = self->options_.warn},
          [self](std::unique_ptr<Channel> channel) {
            self->TakeIncoming(std::move(channel));
          }));
  return mesh;
}

MeshBuilder::MeshBuilder(Loop* loop, Options options, Done done)
    : loop_(loop), options_(std::move(options)), done_(std::move(done)) {}

MeshBuilder::~MeshBuilder() = default;

void MeshBuilder::TakeIncoming(std::unique_ptr<Channel> channel) {
  if (nameless_.size() + early_.size() >=
      static_cast<size_t>(options_.world_size)) {
    return;  // More than there are hosts: the channel ends here.
  }
  const uint64_t id = next_id_++;
  channel->SetHandlers(
      {.on_frame = [this, id](
                       uint32_t kind,
                       Channel::Bytes body) { HandleHello(id, kind, body); },
       .on_closed = [this, id](const Status&) { nameless_.erase(id); }});
  nameless_.emplace(id, std::move(channel));
}

void MeshBuilder::HandleHello(uint64_t id, uint32_t kind, Channel::Bytes body) {
  std::unique_ptr<Channel> channel = std::move(nameless_.extract(id).mapped());
  const auto numbers = ReadNumbers(body);
  if (static_cast<Kind>(kind) != Kind::kMeshHello || !numbers ||
      numbers->size() != 1 || (*numbers)[0] < 0) {
    return;  // The channel ends here.
  }
  channel->SetHandlers({});
  const int index = (*numbers)[0];
  if (!has_table()) {
    early_.emplace(index, std::move(channel));
  } else if (index > mesh_.self) {
    Place(index, std::move(channel));
  }
}

void MeshBuilder::Connect(std::vector<HostEntry> hosts, int self) {
  mesh_.hosts = std::move(hosts);
  mesh_.self = self;
  mesh_.channels.resize(mesh_.hosts.size());
  for (auto& [index, channel] : early_) {
    if (index > self) Place(index, std::move(channel));
  }
  early_.clear();
  for (int index = 0; index < self; ++index) {
    attempts_[index].give_up = Deadline::After(options_.reach_seconds);
    ConnectTo(index);
  }
  if (mesh_.hosts.size() == 1) Finish(Status());
}

void MeshBuilder::Place(int index, std::unique_ptr<Channel> channel) {
  const auto i = static_cast<size_t>(index);
  if (index == mesh_.self || i >= mesh_.channels.size() ||
      mesh_.channels[i] != nullptr) {
    return;  // Not a connection of this job: the channel ends here.
  }
  const HostEntry& host = mesh_.hosts[i];
  channel->set_peer(
      StrCat("host ", host.name, " (", host.address.HostText(), ")"));
  mesh_.channels[i] = std::move(channel);
  if (++placed_ + 1 == mesh_.hosts.size()) Finish(Status());
}

void MeshBuilder::ConnectTo(int index) {
  const HostEntry& host = mesh_.hosts[static_cast<size_t>(index)];
  const auto failed = [this, index](const Status& why) {
    HandleFailed(index, why);
  };
  auto socket = network::ConnectTo(host.address);
  StatusOr<std::unique_ptr<Channel>> channel =
      socket.ok()
          ? Channel::Create(loop_, *std::move(socket),
                            {.identity = options_.identity,
                             .role = Role::kHigherHost,
                             .peer = host.address.ToString(),
                             .silence_seconds = options_.silence_seconds},
                            {.on_open = [this, index] { HandleOpen(index); },
                             .on_closed = failed})
          : socket.status();
  if (channel.ok()) {
    attempts_[index].channel = *std::move(channel);
  } else {
    HandleFailed(index, channel.status());
  }
}

void MeshBuilder::HandleOpen(int index) {
  std::unique_ptr<Channel> channel = std::move(attempts_[index].channel);
  attempts_.erase(index);
  channel->SetHandlers({});
  const int32_t self = mesh_.self;
  const Status sent = channel->Send(static_cast<uint32_t>(Kind::kMeshHello),
                                    {WriteNumbers({&self, 1}).bytes()});
  if (!sent.ok()) return Finish(sent);
  Place(index, std::move(channel));
}

void MeshBuilder::HandleFailed(int index, const Status& why) {
  Attempt& attempt = attempts_[index];
  const bool hopeless = attempt.channel != nullptr &&
                        attempt.channel->refusal() != Refusal::kNone;
  if (hopeless || attempt.give_up.Expired()) {
    const HostEntry& host = mesh_.hosts[static_cast<size_t>(index)];
    Finish(Status(
        StatusCode::kUnavailable,
        StrCat("connecting to host ", host.name, " at ",
               host.address.ToString(), ": ", why.message(),
               "; let firewalls pass all TCP ports between the hosts, and "
               "interface= or address= choose the address of a host"),
        host.first_rank));
    return;
  }
  // The other host listens already: many connect at once, or one was lost.
  attempt.timer = loop_->At(Deadline::After(attempt.wait_seconds),
                            [this, index] { ConnectTo(index); });
  attempt.wait_seconds =
      std::min(2 * attempt.wait_seconds, kLongestRetrySeconds);
}

void MeshBuilder::Finish(const Status& status) {
  // From the loop: a caller may still be in Connect.
  finish_ = loop_->Soon([this, status] {
    const Done done = std::exchange(done_, nullptr);
    if (done) done(status);
  });
}

Mesh MeshBuilder::Take() {
  listener_ = nullptr;
  return std::move(mesh_);
}

}  // namespace shard::network
