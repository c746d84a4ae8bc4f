// SPDX-License-Identifier: Apache-2.0
//
// ExchangeCollectives: the part that all collectives over an Exchange share.
// Their calls run inside Calls of the stream: a stream with a thread runs them
// there, and an inline stream runs them in the thread that enqueues them.

#ifndef SHARD_CORE_COLLECTIVES_EXCHANGE_COLLECTIVES_H_
#define SHARD_CORE_COLLECTIVES_EXCHANGE_COLLECTIVES_H_

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/collectives/collectives.h"
#include "core/collectives/rank_work.h"

namespace shard {

class ExchangeCollectives : public Collectives {
 public:
  std::optional<Deadline> SetDeadline(std::optional<Deadline> deadline) final {
    return std::exchange(deadline_, deadline);
  }

 protected:
  ExchangeCollectives(std::shared_ptr<Exchange> exchange,
                      std::vector<RankSet> sets, double timeout)
      : running_(std::make_shared<Running>(std::move(exchange))),
        sets_(std::move(sets)),
        timeout_(timeout) {}

  // Enqueues `work`, a Status(Exchange*, const Deadline&), which makes one call
  // of a collective. The time of the collective begins when its first call
  // runs, and holds for the calls that follow.
  template <typename Work>
  void Enqueue(std::string_view tag, bool first, Stream* stream, Work work) {
    EnqueueRankWork(running_->exchange->host_waits(), stream, tag,
                    [running = running_, first, call = deadline_,
                     timeout = timeout_, work = std::move(work)] {
                      if (first) {
                        running->deadline =
                            call.value_or(Deadline::After(timeout));
                      }
                      return work(running->exchange.get(), *running->deadline);
                    });
  }

  // Returns kInvalidArgument for a set that was not opened.
  Status CheckOpened(std::string_view tag, const RankSet& set) const;

 private:
  struct Running {
    explicit Running(std::shared_ptr<Exchange> given)
        : exchange(std::move(given)) {}

    const std::shared_ptr<Exchange> exchange;
    // The deadline of the collective that runs; one runs at a time.
    std::optional<Deadline> deadline;
  };

  const std::shared_ptr<Running> running_;
  const std::vector<RankSet> sets_;
  const double timeout_;
  std::optional<Deadline> deadline_;
};

}  // namespace shard

#endif  // SHARD_CORE_COLLECTIVES_EXCHANGE_COLLECTIVES_H_
