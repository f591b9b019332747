#include "plugin/runtime/loopback_transport.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "plugin/runtime/message.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

using TimePoint = LoopbackClock::TimePoint;

struct Posting {
  Posting(const MessageName& name, const TensorList& tensors) : name(name), tensors(tensors) {}

  MessageName name;
  TensorList tensors;
  std::atomic<bool> done = false;
  TimePoint arrival;  // Once done: when wait() may return.
  std::string error;  // Once done: the two sides do not match.
};
using PostingPtr = std::shared_ptr<Posting>;

// Messages of one directed edge and channel that one side alone has posted.
struct Line {
  std::int64_t sends = 0;
  std::int64_t receives = 0;
  std::deque<PostingPtr> unmatched;
};

// One call of a collective.
struct Round {
  std::vector<std::string> calls;  // By rank; empty until it has called.
  TensorList given;                // By rank.
  int arrived = 0;
  int left = 0;
};

struct Endpoint {
  std::condition_variable wake;
  int waiting = 0;  // Threads, so that nobody is woken who does not wait.
  std::atomic<bool> aborted = false;
  std::string reason;
  std::int64_t rounds = 0;
};

void copy_bytes(const at::Tensor& from, const at::Tensor& to) {
  if (!from.is_cpu() || !to.is_cpu()) {
    const at::NoGradGuard no_grad;
    to.copy_(from);
  } else if (from.nbytes() > 0) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  }
}

bool same_layout(const TensorList& a, const TensorList& b) {
  if (a.size() != b.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].scalar_type() != b[i].scalar_type() || a[i].sizes() != b[i].sizes()) {
      return false;
    }
  }
  return true;
}

std::string mismatch(const Posting& send, const Posting& receive) {
  return "message " + std::to_string(send.name.number) + " from rank " + std::to_string(send.name.rank) + " to rank " +
         std::to_string(receive.name.rank) + " (channel " + std::to_string(send.name.channel) + "): the sender gave " +
         describe_tensors(send.tensors) + ", the receiver expected " + describe_tensors(receive.tensors);
}

// What the ranks share. Every member is guarded by `mutex`; payloads are copied outside of it. A message that has
// arrived is taken without it.
class Hub {
 public:
  Hub(int ranks, const LoopbackOptions& options) : options_(options), endpoints_(ranks) {}

  int size() const { return static_cast<int>(endpoints_.size()); }
  at::Device device() const { return options_.device; }

  PostingPtr post(MessageName name, const TensorList& tensors) {
    auto mine = std::make_shared<Posting>(name, tensors);
    PostingPtr other = match(mine);
    if (other) {
      deliver(*mine, *other);
    }
    return mine;
  }

  void wait(Posting& posting) {
    const auto describe = [&] { return posting.name.to_string(); };
    Endpoint& endpoint = endpoints_[posting.name.rank];
    if (options_.delay.count() > 0 || endpoint.aborted || !posting.done) {
      std::unique_lock lock(mutex_);
      sleep_until_done(lock, posting.name.rank, describe, [&] { return posting.done.load(); });
      while (clock().now() < posting.arrival) {
        clock().wait_until(lock, endpoint.wake, posting.arrival);
        throw_if_aborted(endpoint, describe);
      }
    }
    if (!posting.error.empty()) {
      throw TransportError(posting.error);
    }
  }

  // Each rank gives a tensor and gets everybody's.
  TensorList gather(int rank, const std::string& call, const at::Tensor& given) {
    std::unique_lock lock(mutex_);
    const std::int64_t number = endpoints_[rank].rounds++;
    Round& round = rounds_[number];
    round.calls.resize(size());
    round.given.resize(size());
    round.calls[rank] = call;
    round.given[rank] = given;
    if (++round.arrived == size()) {
      wake_all();
    }
    const auto describe = [&] { return "rank " + std::to_string(rank) + ", " + call; };
    sleep_until_done(lock, rank, describe, [&] { return round.arrived == size(); });
    const Round result = round;
    if (++round.left == size()) {
      rounds_.erase(number);
    }
    lock.unlock();
    check_same_call(rank, result);
    return result.given;
  }

  void abort(int rank, const std::string& why) {
    std::lock_guard lock(mutex_);
    Endpoint& endpoint = endpoints_[rank];
    if (!endpoint.aborted) {
      endpoint.aborted = true;
      endpoint.reason = why;
    }
    clock().notify_all(endpoint.wake);
  }

 private:
  LoopbackClock& clock() const { return *options_.clock; }

  using LineKey = std::tuple<int, int, int>;  // From, to, channel.

  // Numbers the posting; gives back the other side's, if that came first.
  PostingPtr match(const PostingPtr& mine) {
    MessageName& name = mine->name;
    const bool sending = name.direction == Direction::kSend;
    std::lock_guard lock(mutex_);
    throw_if_aborted(endpoints_[name.rank], [&] { return name.to_string(); });
    Line& line =
        lines_[sending ? LineKey{name.rank, *name.peer, name.channel} : LineKey{*name.peer, name.rank, name.channel}];
    name.number = sending ? line.sends++ : line.receives++;
    if (line.unmatched.empty() || line.unmatched.front()->name.direction == name.direction) {
      line.unmatched.push_back(mine);
      return nullptr;
    }
    PostingPtr other = std::move(line.unmatched.front());
    line.unmatched.pop_front();
    return other;
  }

  void deliver(Posting& mine, Posting& other) {
    const bool sending = mine.name.direction == Direction::kSend;
    Posting& send = sending ? mine : other;
    Posting& receive = sending ? other : mine;
    std::string error;
    if (same_layout(send.tensors, receive.tensors)) {
      for (std::size_t i = 0; i < send.tensors.size(); ++i) {
        copy_bytes(send.tensors[i], receive.tensors[i]);
      }
    } else {
      error = mismatch(send, receive);
    }
    const TimePoint now = clock().now();
    Endpoint& endpoint = endpoints_[other.name.rank];
    std::unique_lock lock(mutex_);
    send.arrival = now;
    receive.arrival = now + options_.delay;
    send.error = receive.error = error;
    send.done = receive.done = true;
    const bool wakes = endpoint.waiting > 0;
    lock.unlock();
    if (wakes) {
      clock().notify_all(endpoint.wake);
    }
  }

  template <typename Describe, typename Done>
  void sleep_until_done(std::unique_lock<std::mutex>& lock, int rank, Describe describe, Done done) {
    Endpoint& endpoint = endpoints_[rank];
    throw_if_aborted(endpoint, describe);
    const TimePoint deadline = clock().now() + options_.timeout;
    while (!done()) {
      ++endpoint.waiting;
      clock().wait_until(lock, endpoint.wake, deadline);
      --endpoint.waiting;
      const bool late = clock().now() >= deadline;
      throw_if_aborted(endpoint, describe);
      if (late && !done()) {
        throw TransportError(describe() + ": timed out after " + std::to_string(options_.timeout.count()) + " ms");
      }
    }
  }

  template <typename Describe>
  static void throw_if_aborted(const Endpoint& endpoint, Describe describe) {
    if (endpoint.aborted) {
      throw TransportError(describe() + ": aborted: " + endpoint.reason);
    }
  }

  static void check_same_call(int rank, const Round& round) {
    for (int other = 0; other < static_cast<int>(round.calls.size()); ++other) {
      if (round.calls[other] != round.calls[rank]) {
        throw TransportError("collectives do not match: rank " + std::to_string(rank) + " called " + round.calls[rank] +
                             ", rank " + std::to_string(other) + " called " + round.calls[other]);
      }
    }
  }

  void wake_all() {
    for (Endpoint& endpoint : endpoints_) {
      clock().notify_all(endpoint.wake);
    }
  }

  const LoopbackOptions options_;
  std::mutex mutex_;
  std::vector<Endpoint> endpoints_;
  std::map<LineKey, Line> lines_;
  std::map<std::int64_t, Round> rounds_;
};

class LoopbackTransfer : public Transfer {
 public:
  LoopbackTransfer(std::shared_ptr<Hub> hub, PostingPtr posting) : hub_(std::move(hub)), posting_(std::move(posting)) {}
  void wait() override { hub_->wait(*posting_); }

 private:
  std::shared_ptr<Hub> hub_;
  PostingPtr posting_;
};

class LoopbackTransport : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return hub_->size(); }
  at::Device device() const override { return hub_->device(); }

  std::unique_ptr<Transfer> send(int peer, int channel, const TensorList& tensors) override {
    return post(peer, channel, Direction::kSend, tensors);
  }
  std::unique_ptr<Transfer> receive(int peer, int channel, const TensorList& into) override {
    return post(peer, channel, Direction::kReceive, into);
  }

  void all_reduce_sum(at::Tensor& tensor) override {
    at::NoGradGuard no_grad;
    const TensorList given = hub_->gather(rank_, "all_reduce_sum of " + describe_tensors({tensor}), tensor.clone());
    tensor.copy_(sum_in_rank_order(given));
  }

  std::vector<std::string> all_gather(const std::string& bytes) override {
    at::Tensor mine = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
    std::copy(bytes.begin(), bytes.end(), static_cast<char*>(mine.mutable_data_ptr()));
    std::vector<std::string> result;
    for (const at::Tensor& theirs : hub_->gather(rank_, "all_gather", mine)) {
      result.emplace_back(static_cast<const char*>(theirs.const_data_ptr()), theirs.nbytes());
    }
    return result;
  }

  void broadcast(at::Tensor& tensor, int root) override {
    at::NoGradGuard no_grad;
    const std::string call = "broadcast from rank " + std::to_string(root) + " of " + describe_tensors({tensor});
    const TensorList given = hub_->gather(rank_, call, rank_ == root ? tensor.clone() : at::Tensor());
    tensor.copy_(given.at(root));
  }

  void abort(const std::string& why) override { hub_->abort(rank_, why); }

 private:
  std::unique_ptr<Transfer> post(int peer, int channel, Direction direction, const TensorList& tensors) {
    const MessageName name{rank_, peer, direction, channel, 0};
    check_message(name, size(), tensors);
    return std::make_unique<LoopbackTransfer>(hub_, hub_->post(name, tensors));
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
};

class LoopbackFailureChannel : public FailureChannel {
 public:
  FailureRecord record(const FailureRecord& failure) override {
    std::lock_guard lock(mutex_);
    if (!first_) {
      first_ = failure;
    }
    return *first_;
  }
  std::optional<FailureRecord> first() override {
    std::lock_guard lock(mutex_);
    return first_;
  }

 private:
  std::mutex mutex_;
  std::optional<FailureRecord> first_;
};

}  // namespace

TimePoint LoopbackClock::now() { return std::chrono::steady_clock::now(); }

void LoopbackClock::wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& wake, TimePoint deadline) {
  wake.wait_until(lock, deadline);
}

void LoopbackClock::notify_all(std::condition_variable& wake) { wake.notify_all(); }

std::vector<std::shared_ptr<Transport>> make_loopback(int ranks, const LoopbackOptions& options) {
  auto hub = std::make_shared<Hub>(ranks, options);
  std::vector<std::shared_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank) {
    transports.push_back(std::make_shared<LoopbackTransport>(hub, rank));
  }
  return transports;
}

std::shared_ptr<FailureChannel> make_loopback_failure_channel() { return std::make_shared<LoopbackFailureChannel>(); }

}  // namespace dualpipe
