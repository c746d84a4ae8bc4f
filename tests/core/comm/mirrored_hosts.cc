// SPDX-License-Identifier: Apache-2.0

#include "tests/core/comm/mirrored_hosts.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "core/base/fd.h"
#include "core/base/strings.h"
#include "core/comm/network/helper/mirror.h"
#include "core/comm/network/network_communicator.h"
#include "core/observe/observer.h"
#include "tests/core/comm/tcp_hosts.h"

namespace shard::testing {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kLongestDelay = std::chrono::microseconds(300);

std::shared_ptr<const Mapping> MapShared(int fd, size_t bytes) {
  auto mapping = Mapping::Shared(fd, bytes);
  return mapping.ok() ? std::make_shared<Mapping>(*std::move(mapping))
                      : nullptr;
}

}  // namespace

// One host: its memory, its mirror, and the thread that drives it.
class MirroredHosts::Host final : public network::HostLinks {
 public:
  Host(const direct::Hosts& hosts, int number,
       const std::vector<std::unique_ptr<Host>>* all)
      : hosts_(hosts),
        number_(number),
        all_(all),
        bell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        random_(static_cast<unsigned>(number)) {
    const size_t bytes = direct::ControlBlock::Bytes(hosts.world_size());
    const Fd memory(MakeMemory("", bytes));
    control_ = MapShared(memory.get(), bytes);
    mirror_ = std::make_unique<network::Mirror>(hosts, number, control_, this);
  }

  void Start() {
    thread_ = std::thread([this] { Run(); });
  }
  void Stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stops_ = true;
    }
    Wake();
    if (thread_.joinable()) thread_.join();
  }

  const std::shared_ptr<const Mapping>& control() const { return control_; }
  int bell() const { return bell_.get(); }
  size_t data_sent() const { return data_sent_; }

  // Runs on the mirror's thread.
  void Post(std::function<void()> action, Clock::time_point at) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      AddToInbox(std::move(action), at);
    }
    Wake();
  }
  // The same of what a host sends, once its link is not held.
  void PostFrom(int host, std::function<void()> action, Clock::time_point at) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (const auto kept = kept_.find(host); kept != kept_.end()) {
        kept->second.push_back(std::move(action));
        return;
      }
      AddToInbox(std::move(action), at);
    }
    Wake();
  }

  void Hold(int from) {
    const std::lock_guard<std::mutex> lock(mutex_);
    kept_[from];
  }
  void Let(int from) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (auto& action : kept_[from]) {
        AddToInbox(std::move(action), Clock::now());
      }
      kept_.erase(from);
    }
    Wake();
  }

  // --- the ranks' requests ---

  StatusOr<Mapping> Request(const std::string& key,
                            const direct::RegionRequest& request,
                            const std::string& block) {
    const std::lock_guard<std::mutex> lock(memory_mutex_);
    SharedMemory& memory = memory_[key];
    if (!memory.fd.valid()) {
      memory.fd.Reset(MakeMemory(key.c_str(), request.bytes));
      auto mapping = MapShared(memory.fd.get(), request.bytes);
      const bool is_block = request.ring != nullptr;
      const direct::CellRing ring =
          is_block ? *request.ring : direct::kRoundCells;
      memory.is_block = is_block;
      if (!request.of_host) {
        PostAndWait([&] {
          const Status added = is_block ? mirror_->AddBlock(key, mapping, ring)
                                        : mirror_->AddStaging(block, mapping);
          if (!added.ok()) std::abort();
        });
      }
      memory.users = hosts_.size(number_);
    }
    return Mapping::Shared(memory.fd.get(), request.bytes);
  }

  void Release(const std::string& key) {
    const std::lock_guard<std::mutex> lock(memory_mutex_);
    SharedMemory& memory = memory_[key];
    if (--memory.users > 0) return;
    if (memory.is_block) PostAndWait([&] { mirror_->RemoveBlock(key); });
    memory_.erase(key);
  }

  // --- network::HostLinks ---

  void Send(int host, std::span<const std::byte> head,
            std::span<const std::byte> body) override {
    std::vector<std::byte> message(head.begin(), head.end());
    message.insert(message.end(), body.begin(), body.end());
    Host* const to = (*all_)[static_cast<size_t>(host)].get();
    to->PostFrom(
        number_,
        [to, from = number_, message = std::move(message)] {
          if (to->IsLost(from)) return;
          const Status received = to->mirror_->Receive(from, message);
          if (!received.ok()) std::abort();
        },
        Later());
  }

  void SendData(int host, const std::byte* data, size_t bytes,
                std::shared_ptr<const void> owner) override {
    data_sent_ += bytes;
    Host* const to = (*all_)[static_cast<size_t>(host)].get();
    to->PostFrom(
        number_,
        [to, from = number_, data, bytes, owner = std::move(owner)] {
          if (to->IsLost(from)) return;
          Line& line = to->lines_[from];
          line.sent.push_back({data, bytes, owner});
          line.Match();
        },
        Later());
  }

  void ReceiveData(int host, std::byte* data, size_t bytes,
                   std::function<void()> done) override {
    Line& line = lines_[host];
    line.wanted.push_back({data, bytes, std::move(done)});
    line.Match();
  }

  void LoseHost(int host) {
    Post(
        [this, host] {
          lost_.push_back(host);
          lines_.erase(host);
          mirror_->LoseHost(host);
        },
        Clock::now());
  }

 private:
  struct Wanted {
    std::byte* data;
    size_t bytes;
    std::function<void()> done;
  };
  struct Sent {
    const std::byte* data;
    size_t bytes;
    std::shared_ptr<const void> owner;
  };
  struct Line {
    std::deque<Sent> sent;
    std::deque<Wanted> wanted;

    void Match() {
      while (!sent.empty() && !wanted.empty()) {
        const Wanted next = std::move(wanted.front());
        if (next.bytes != sent.front().bytes) std::abort();
        std::memcpy(next.data, sent.front().data, next.bytes);
        wanted.pop_front();
        sent.pop_front();
        next.done();
      }
    }
  };
  struct SharedMemory {
    Fd fd;
    int users = 0;
    bool is_block = false;
  };

  int MakeMemory(const char* name, size_t bytes) {
    const int fd =
        ::memfd_create(StrCat("host", number_, name).c_str(), MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) std::abort();
    return fd;
  }
  bool IsLost(int host) const {
    return std::find(lost_.begin(), lost_.end(), host) != lost_.end();
  }
  // REQUIRES: mutex_ is held.
  void AddToInbox(std::function<void()> action, Clock::time_point at) {
    // In order: none overtakes an earlier one.
    if (!inbox_.empty()) at = std::max(at, inbox_.back().first);
    inbox_.emplace_back(at, std::move(action));
  }
  void Wake() { ::eventfd_write(bell_.get(), 1); }
  Clock::time_point Later() {
    return Clock::now() +
           std::chrono::microseconds(random_() % kLongestDelay.count());
  }
  void PostAndWait(const std::function<void()>& action) {
    std::atomic<bool> done = false;
    Post(
        [&] {
          action();
          done = true;
          done.notify_all();
        },
        Clock::now());
    done.wait(false);
  }

  // Runs what is due. Returns the time of the next, none when there is nothing.
  bool RunInbox(Clock::time_point* next) {
    bool any = false;
    for (;;) {
      std::function<void()> action;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (inbox_.empty()) {
          *next = Clock::time_point::max();
          return any;
        }
        if (inbox_.front().first > Clock::now()) {
          *next = inbox_.front().first;
          return any;
        }
        action = std::move(inbox_.front().second);
        inbox_.pop_front();
      }
      action();
      any = true;
    }
  }

  void Run() {
    auto* const block =
        reinterpret_cast<direct::ControlBlock*>(control_->data());
    for (;;) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (stops_) return;
      }
      block->mirror_sleeps.store(1, std::memory_order_seq_cst);
      Clock::time_point next;
      const bool any = RunInbox(&next);
      if (mirror_->Scan() || any) continue;
      pollfd entry{bell_.get(), POLLIN, 0};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(
          std::min<Clock::duration>(next == Clock::time_point::max()
                                        ? std::chrono::seconds(1)
                                        : next - Clock::now(),
                                    std::chrono::seconds(1)));
      ::poll(&entry, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
      eventfd_t value;
      ::eventfd_read(bell_.get(), &value);
      block->mirror_sleeps.store(0, std::memory_order_seq_cst);
    }
  }

  const direct::Hosts hosts_;
  const int number_;
  const std::vector<std::unique_ptr<Host>>* const all_;
  const Fd bell_;
  std::shared_ptr<const Mapping> control_;
  std::unique_ptr<network::Mirror> mirror_;
  std::thread thread_;
  std::atomic<size_t> data_sent_ = 0;

  // On the mirror's thread.
  std::minstd_rand random_;
  std::map<int, Line> lines_;
  std::vector<int> lost_;

  std::mutex mutex_;
  bool stops_ = false;  // mutex_
  std::deque<std::pair<Clock::time_point, std::function<void()>>> inbox_;
  // The messages of links that are held, by host.
  std::map<int, std::vector<std::function<void()>>> kept_;  // mutex_

  std::mutex memory_mutex_;
  std::map<std::string, SharedMemory> memory_;  // memory_mutex_
};

namespace {

template <typename Host>
class Keeper final : public network::RegionKeeper {
 public:
  explicit Keeper(Host* host) : host_(host) {}
  StatusOr<Mapping> Request(std::string_view key,
                            const direct::RegionRequest& request,
                            std::string_view block, const Deadline&) override {
    return host_->Request(std::string(key), request, std::string(block));
  }
  void Release(std::string_view key) override {
    host_->Release(std::string(key));
  }

 private:
  Host* const host_;
};

}  // namespace

MirroredHosts::MirroredHosts(std::vector<int> begins, direct::HostSums sums)
    : ranks_(std::move(begins)), sums_(sums) {
  for (int h = 0; h < ranks_.count(); ++h) {
    hosts_.push_back(std::make_unique<Host>(ranks_, h, &hosts_));
  }
  for (const auto& host : hosts_) host->Start();
}

MirroredHosts::~MirroredHosts() {
  for (const auto& host : hosts_) host->Stop();
}

std::shared_ptr<Communicator> MirroredHosts::Open(const CommOptions& options) {
  Host* const host =
      hosts_[static_cast<size_t>(ranks_.HostOf(options.rank))].get();
  CommOptions all = options;
  all.observer = std::make_shared<Observer>(options.logger, options.rank,
                                            options.world_size);
  auto* const block =
      reinterpret_cast<direct::ControlBlock*>(host->control()->data());
  return network::MakeNetworkCommunicator(
      {ranks_, host->control(), direct::Membership(block, options.rank),
       host->bell(), std::make_shared<Keeper<Host>>(host), nullptr, sums_},
      StrCat("hosts rank ", options.rank, " of ", options.world_size), all);
}

void MirroredHosts::Lose(int host) {
  for (const auto& other : hosts_) {
    if (other.get() == hosts_[static_cast<size_t>(host)].get()) {
      for (int h = 0; h < static_cast<int>(hosts_.size()); ++h) {
        if (h != host) other->LoseHost(h);
      }
    } else {
      other->LoseHost(host);
    }
  }
}

void MirroredHosts::Hold(int from, int to) {
  hosts_[static_cast<size_t>(to)]->Hold(from);
}

void MirroredHosts::Let(int from, int to) {
  hosts_[static_cast<size_t>(to)]->Let(from);
}

size_t MirroredHosts::data_sent(int host) const {
  return hosts_[static_cast<size_t>(host)]->data_sent();
}

}  // namespace shard::testing
