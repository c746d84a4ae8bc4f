// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/gloo_data.h"

#include <sys/random.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/network/helper/gloo_context.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/unbound_buffer.h"

namespace shard::network {

namespace {

using gloo::transport::UnboundBuffer;

// Operations end by the loss of a host, which the Channel finds, and by no time
// of Gloo's.
constexpr auto kForEver = std::chrono::hours(24 * 365);

// Returns the result of `work`; an exception as kUnavailable.
template <typename Work>
Status Guard(std::string_view what, const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return Unavailable(what, ": ", error.what());
  }
}

}  // namespace

struct GlooData::Transport {
  std::shared_ptr<GlooContext> context;

  std::mutex mutex;
  bool is_ending = false;  // GUARDED_BY(mutex), as the next four.
  int host = -1;           // Whose token is waited for, if any.
  Status failed;           // Why the wait for it was ended.
  UnboundBuffer* sent = nullptr;
  UnboundBuffer* received = nullptr;

  // Ends the wait for the token of `ended`.
  void EndWait(int ended, const Status& why) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (host != ended) return;
    failed = why;
    Abort();
  }

  // Ends the waits for tokens, also those to come.
  void EndWaits() {
    const std::lock_guard<std::mutex> lock(mutex);
    is_ending = true;
    Abort();
  }

  // REQUIRES: the mutex is held.
  void Abort() {
    if (sent != nullptr) sent->abortWaitSend();
    if (received != nullptr) received->abortWaitRecv();
  }

  // Lets EndWaits find the buffers of tokens that are waited for.
  class Waits {
   public:
    Waits(Transport* transport, int host, UnboundBuffer* sent,
          UnboundBuffer* received)
        : transport_(transport) {
      Set(host, sent, received);
    }
    ~Waits() { Set(-1, nullptr, nullptr); }
    Waits(const Waits&) = delete;
    Waits& operator=(const Waits&) = delete;

    // Returns why the wait was ended; OK where it was not, or by this end.
    Status failed() const {
      const std::lock_guard<std::mutex> lock(transport_->mutex);
      return transport_->failed;
    }
    // Returns whether the waits were ended before there were buffers.
    bool are_ended() const {
      const std::lock_guard<std::mutex> lock(transport_->mutex);
      return transport_->is_ending;
    }

   private:
    void Set(int host, UnboundBuffer* sent, UnboundBuffer* received) {
      const std::lock_guard<std::mutex> lock(transport_->mutex);
      transport_->host = host;
      transport_->failed = Status();
      transport_->sent = sent;
      transport_->received = received;
    }
    Transport* const transport_;
  };
};

// The operations with one host. Gloo begins each at once; a thread per
// direction waits for their ends, in order.
class GlooData::Line {
 public:
  using Lost = std::function<void(const Status&)>;

  Line(gloo::transport::Context* context, int host, Lost lost)
      : context_(context), host_(host), lost_(std::move(lost)) {
    sender_ = std::thread([this] {
      Wait(&sends_, [](UnboundBuffer* buffer) {
        return buffer->waitSend(nullptr, kForEver);
      });
    });
    try {
      receiver_ = std::thread([this] {
        Wait(&receptions_, [](UnboundBuffer* buffer) {
          return buffer->waitRecv(nullptr, kForEver);
        });
      });
    } catch (...) {
      Close();
      sender_.join();
      throw;
    }
  }

  ~Line() {
    Close();
    sender_.join();
    receiver_.join();
  }

  void Send(const std::byte* data, size_t bytes,
            std::shared_ptr<const void> owner) {
    // Gloo takes memory that it only reads as memory that it may write.
    Begin(&sends_, const_cast<std::byte*>(data), bytes, std::move(owner),
          nullptr, [this, bytes](UnboundBuffer* buffer, uint64_t slot) {
            buffer->send(host_, slot, 0, bytes);
          });
  }

  void Receive(std::byte* data, size_t bytes, std::function<void()> done) {
    Begin(&receptions_, data, bytes, nullptr, std::move(done),
          [this, bytes](UnboundBuffer* buffer, uint64_t slot) {
            buffer->recv(host_, slot, 0, bytes);
          });
  }

  // Ends the waits in progress and those to come.
  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(closed_, true)) return;
    for (const auto& each : sends_.operations) each->buffer->abortWaitSend();
    for (const auto& each : receptions_.operations) {
      each->buffer->abortWaitRecv();
    }
    changed_.notify_all();
  }

 private:
  struct Operation {
    std::unique_ptr<UnboundBuffer> buffer;
    std::shared_ptr<const void> owner;
    std::function<void()> done;
  };
  struct Direction {
    uint64_t count = 0;  // The slot of the next operation.
    std::deque<std::shared_ptr<Operation>> operations;  // Under mutex_.
  };

  template <typename BeginFunction>
  void Begin(Direction* direction, std::byte* data, size_t bytes,
             std::shared_ptr<const void> owner, std::function<void()> done,
             const BeginFunction& begin) {
    const auto operation = std::make_shared<Operation>();
    const Status begun = Guard("Gloo", [&]() -> Status {
      operation->buffer = context_->createUnboundBuffer(data, bytes);
      operation->owner = std::move(owner);
      operation->done = std::move(done);
      begin(operation->buffer.get(), direction->count++);
      return Status();
    });
    if (!begun.ok()) return lost_(begun);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    direction->operations.push_back(operation);
    changed_.notify_all();
  }

  template <typename WaitFunction>
  void Wait(Direction* direction, const WaitFunction& wait) {
    for (;;) {
      std::shared_ptr<Operation> operation;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(
            lock, [&] { return closed_ || !direction->operations.empty(); });
        if (closed_) return;
        operation = direction->operations.front();
      }
      bool completed = false;
      const Status ended = Guard("Gloo", [&]() -> Status {
        completed = wait(operation->buffer.get());
        return Status();
      });
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (closed_) return;
        direction->operations.pop_front();
      }
      if (!ended.ok()) return lost_(ended);
      if (!completed)
        return lost_(Unavailable("Gloo ended an operation early"));
      if (operation->done) operation->done();
    }
  }

  gloo::transport::Context* const context_;
  const int host_;
  const Lost lost_;  // Any thread.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;  // Under mutex_.
  Direction sends_;
  Direction receptions_;
  std::thread sender_;
  std::thread receiver_;
};

GlooData::GlooData(Loop* loop, int host, int hosts, const Deadline& deadline)
    : loop_(loop),
      host_(host),
      hosts_(hosts),
      deadline_(deadline),
      transport_(std::make_unique<Transport>()),
      ends_(static_cast<size_t>(hosts)),
      lines_(static_cast<size_t>(hosts)),
      alive_(std::make_shared<std::atomic<bool>>(true)) {}

GlooData::~GlooData() {
  *alive_ = false;
  for (const auto& line : lines_) {
    if (line != nullptr) line->Close();
  }
  for (int h = 0; h < hosts_; ++h) {
    if (h == host_ || transport_->context == nullptr) continue;
    (void)Guard("closing", [&]() -> Status {
      auto& pair = transport_->context->getPair(h);
      if (pair != nullptr) pair->close();
      return Status();
    });
  }
  transport_->EndWaits();
  if (connecting_.joinable()) connecting_.join();
  lines_.clear();
  // Gloo's thread, which calls this, ends with it.
  transport_->context = nullptr;
}

StatusOr<std::unique_ptr<GlooData>> GlooData::Create(Loop* loop, int host,
                                                     int hosts,
                                                     const std::string& address,
                                                     const Deadline& deadline) {
  std::unique_ptr<GlooData> data(new GlooData(loop, host, hosts, deadline));
  Transport& transport = *data->transport_;
  SHARD_RETURN_IF_ERROR(
      Guard(StrCat("opening Gloo's sockets on ", address), [&]() -> Status {
        transport.context = std::make_shared<GlooContext>(
            std::dynamic_pointer_cast<gloo::transport::tcp::Device>(
                gloo::transport::tcp::CreateDevice(
                    gloo::transport::tcp::attr(address.c_str()))),
            host, hosts, [&data = *data](int h, const std::exception_ptr& why) {
              const Status error = Guard(
                  "Gloo", [&]() -> Status { std::rethrow_exception(why); });
              data.transport_->EndWait(h, error);
              data.ReportLost(h, error);
            });
        // Pairs take the time over when they are made, and Gloo sets none by
        // itself. To connect they wait five times as long.
        transport.context->setTimeout(data->Remaining() / 5);
        for (int h = 0; h < hosts; ++h) {
          if (h == host) continue;
          const std::vector<char> bytes =
              transport.context->createPair(h)->address().bytes();
          End& end = data->ends_[static_cast<size_t>(h)];
          end.address.assign(bytes.begin(), bytes.end());
          end.token.resize(kTokenBytes);
          if (::getrandom(end.token.data(), kTokenBytes, 0) !=
              static_cast<ssize_t>(kTokenBytes)) {
            return ErrnoStatus("reading random numbers", errno);
          }
        }
        return Status();
      }));
  return data;
}

const GlooData::End& GlooData::end(int host) const {
  return ends_[static_cast<size_t>(host)];
}

// Connects in the order of hosts, as they all do, so that none waits for one
// that waits for it.
void GlooData::Connect(std::vector<End> ends, Connected done) {
  connecting_ = std::thread(
      [this, ends = std::move(ends), done = std::move(done), alive = alive_] {
        Status connected;
        int failed = -1;
        for (int h = 0; h < hosts_ && connected.ok() && *alive; ++h) {
          if (h == host_) continue;
          connected = ConnectTo(h, ends[static_cast<size_t>(h)]);
          if (!connected.ok()) failed = h;
        }
        loop_->Post([this, connected, failed, done, alive] {
          if (!*alive) return;
          if (!connected.ok()) return done(failed, connected);
          for (int h = 0; h < hosts_; ++h) {
            if (h == host_) continue;
            const Status started =
                Guard("starting threads for Gloo", [&]() -> Status {
                  lines_[static_cast<size_t>(h)] = std::make_unique<Line>(
                      transport_->context.get(), h,
                      [this, h](const Status& why) { ReportLost(h, why); });
                  return Status();
                });
            if (!started.ok()) return done(h, started);
          }
          done(-1, Status());
        });
      });
}

std::chrono::milliseconds GlooData::Remaining() const {
  // A time of 0 would be none at all.
  return std::chrono::ceil<std::chrono::milliseconds>(
      std::max<std::chrono::nanoseconds>(deadline_.Remaining(),
                                         std::chrono::milliseconds(10)));
}

Status GlooData::ConnectTo(int host, const End& theirs) {
  // Who waits for the meeting ends it at the deadline, with an error that says
  // more.
  const std::chrono::milliseconds left = Remaining() + std::chrono::seconds(1);
  return Guard("connecting by Gloo", [&]() -> Status {
    gloo::transport::Context& context = *transport_->context;
    context.getPair(host)->connect(
        std::vector<char>(theirs.address.begin(), theirs.address.end()));
    // Each end sends the token that it got over the Channel.
    std::string sent = theirs.token;
    sent.resize(kProbeBytes);
    std::string received(kProbeBytes, '\0');
    constexpr uint64_t kTokenSlot = ~uint64_t{0};
    const auto out = context.createUnboundBuffer(sent.data(), kProbeBytes);
    const auto in = context.createUnboundBuffer(received.data(), kProbeBytes);
    const Transport::Waits waits(transport_.get(), host, out.get(), in.get());
    in->recv(host, kTokenSlot, 0, kProbeBytes);
    out->send(host, kTokenSlot, 0, kProbeBytes);
    if (waits.are_ended() || !out->waitSend(nullptr, left) ||
        !in->waitRecv(nullptr, left)) {
      SHARD_RETURN_IF_ERROR(waits.failed());
      return Unavailable("the connection with host ", host, " was closed");
    }
    received.resize(kTokenBytes);
    if (received != end(host).token) {
      return PermissionDenied("a stranger has connected to the port of host ",
                              host_, " where host ", host, " was expected");
    }
    return Status();
  });
}

void GlooData::set_on_lost(
    std::function<void(int host, const Status& why)> on_lost) {
  on_lost_ = std::move(on_lost);
}

// Any thread.
void GlooData::ReportLost(int host, const Status& why) {
  loop_->Post([this, host, why, alive = alive_] {
    if (!*alive || lines_[static_cast<size_t>(host)] == nullptr) return;
    if (on_lost_) on_lost_(host, why);
  });
}

void GlooData::Send(int host, const std::byte* data, size_t bytes,
                    std::shared_ptr<const void> owner) {
  Line* const line = lines_[static_cast<size_t>(host)].get();
  if (line == nullptr) return;  // Lost.
  bytes_sent_ += bytes;
  line->Send(data, bytes, std::move(owner));
}

void GlooData::Receive(int host, std::byte* data, size_t bytes,
                       std::function<void()> done) {
  Line* const line = lines_[static_cast<size_t>(host)].get();
  if (line == nullptr) return;
  line->Receive(
      data, bytes, [this, host, bytes, done = std::move(done), alive = alive_] {
        loop_->Post([this, host, bytes, done, alive] {
          if (!*alive || lines_[static_cast<size_t>(host)] == nullptr) {
            return;
          }
          bytes_received_ += bytes;
          done();
        });
      });
}

void GlooData::Lose(int host) {
  const std::unique_ptr<Line> line =
      std::exchange(lines_[static_cast<size_t>(host)], nullptr);
  if (line == nullptr) return;
  line->Close();
  (void)Guard("closing", [&]() -> Status {
    transport_->context->getPair(host)->close();
    return Status();
  });
}

}  // namespace shard::network
