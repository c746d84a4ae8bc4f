// SPDX-License-Identifier: Apache-2.0
//
// MeshLinks: the connections of a host to the others, as a Mirror needs them:
// messages go by the Channels of the mesh, tensor data by Gloo.
//
//   host                                 other host
//   GlooEnd  --------------------------> (and the other way round)
//   Ready    -------------------------->  Gloo's connections are there
//   Failed   -------------------------->  in place of Ready: the meeting fails
//   Message  -------------------------->  of the mirror, from now on
//   Goodbye  -------------------------->  its ranks are gone
//            <--------------------------  GoodbyeRead, once all that came
//                                         before was written into the blocks
//
// A helper ends when the others have read what its ranks wrote last: a socket
// that is closed with bytes to read takes back those that are on their way.
//
// Threads: the loop's.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_MESH_LINKS_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_MESH_LINKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/network/helper/gloo_data.h"
#include "core/comm/network/helper/loop.h"
#include "core/comm/network/helper/mesh.h"
#include "core/comm/network/helper/mirror.h"

namespace shard::network {

class MeshLinks final : public HostLinks {
 public:
  struct Handlers {
    // All hosts can be sent to. Called once, and not after an error of a host.
    std::function<void()> on_ready;
    // Another host's Failed.
    std::function<void(const Status& why)> on_failed;
    // A message of the other host's mirror.
    std::function<void(int host, std::span<const std::byte>)> on_message;
    // Whether all data that the other host has announced is there.
    std::function<bool(int host)> has_all_data;
    // A host is lost, by itself or by a message that cannot be. Called once for
    // each.
    std::function<void(int host, const Status& why)> on_lost;
  };

  // Begins to connect. `loop` outlives the result.
  static StatusOr<std::unique_ptr<MeshLinks>> Create(Loop* loop, Mesh mesh,
                                                     const Deadline& deadline,
                                                     Handlers handlers);

  int host() const { return mesh_.self; }
  const std::vector<HostEntry>& hosts() const { return mesh_.hosts; }

  void Send(int host, std::span<const std::byte> head,
            std::span<const std::byte> body) override;
  void SendData(int host, const std::byte* data, size_t bytes,
                std::shared_ptr<const void> owner) override;
  void ReceiveData(int host, std::byte* data, size_t bytes,
                   std::function<void()> done) override;

  // Tells all hosts that the meeting has failed. REQUIRES: on_ready was not
  // called.
  void Fail(const Status& why);

  // Ends the connections with a host that sent something wrong, and reports it
  // lost.
  void Lose(int host, Status why);

  // Tells all hosts that this one's ranks are gone, and calls `done` when they
  // have read it, or after `seconds`.
  void SayGoodbye(double seconds, std::function<void()> done);

 private:
  struct Peer {
    bool has_end = false;
    bool is_ready = false;
    bool is_lost = false;
    bool waits_for_answer = false;  // To its Goodbye.
    bool has_answered = false;      // This host's.
  };

  MeshLinks(Loop* loop, Mesh mesh, const Deadline& deadline, Handlers handlers);

  Peer& peer(int host) { return peers_[static_cast<size_t>(host)]; }
  bool IsOpen(int host) const {
    return host != mesh_.self && !peers_[static_cast<size_t>(host)].is_lost;
  }
  void HandleFrame(int host, uint32_t kind, Channel::Bytes body);
  void TakeEnd(int host, Channel::Bytes body);
  void SendFrame(int host, uint32_t kind,
                 std::initializer_list<Channel::Bytes> parts);
  void CheckReady();
  // Answers the goodbyes of hosts whose data is all there.
  void AnswerGoodbyes();
  void CheckGoodbye();

  Loop* const loop_;
  const Deadline deadline_;  // To connect.
  const Handlers handlers_;
  Mesh mesh_;
  std::vector<Peer> peers_;  // By host.
  std::unique_ptr<GlooData> data_;
  std::vector<GlooData::End> ends_;  // That the others sent.
  bool is_connected_ = false;        // Gloo is.
  bool was_ready_ = false;
  Loop::Timer ready_timer_;
  std::function<void()> on_goodbye_;
  Loop::Timer goodbye_timer_;
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_MESH_LINKS_H_
