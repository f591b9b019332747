#include "tests/bench/executor/delayed_transport.h"

#include <sys/prctl.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace dualpipe::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Message {
  Clock::time_point due;
  int peer;
  int channel;
  TensorList tensors;
  std::unique_ptr<Transfer> transfer;  // Once it has left.
  std::exception_ptr error;            // Where it could not.
};
using MessagePtr = std::shared_ptr<Message>;

// Sends what is due, in order. One lock for all calls of the transport below: it is made for one thread.
class Post {
 public:
  Post(std::shared_ptr<Transport> transport, Clock::duration delay)
      : transport_(std::move(transport)), delay_(delay), thread_([this] { run(); }) {}
  ~Post() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Post(const Post&) = delete;
  Post& operator=(const Post&) = delete;

  MessagePtr send(int peer, int channel, const TensorList& tensors) {
    auto message = std::make_shared<Message>(Message{Clock::now() + delay_, peer, channel, tensors, {}, {}});
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(message);
    }
    changed_.notify_all();
    return message;
  }

  std::unique_ptr<Transfer> receive(int peer, int channel, const TensorList& into) {
    const std::lock_guard lock(calls_);
    return transport_->receive(peer, channel, into);
  }
  std::unique_ptr<Transfer> send_now(int peer, int channel, const TensorList& tensors) {
    const std::lock_guard lock(calls_);
    return transport_->send(peer, channel, tensors);
  }

  std::unique_ptr<Transfer> wait_until_sent(Message& message) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return message.transfer || message.error; });
    if (message.error) std::rethrow_exception(message.error);
    return std::move(message.transfer);
  }

 private:
  void run() {
    ::prctl(PR_SET_TIMERSLACK, 1UL);
    std::unique_lock lock(mutex_);
    while (!closed_ || !waiting_.empty()) {
      if (waiting_.empty()) {
        changed_.wait(lock);
        continue;
      }
      const MessagePtr next = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      std::this_thread::sleep_until(next->due);
      post(*next, lock);
    }
  }

  // Leaves the lock taken.
  void post(Message& message, std::unique_lock<std::mutex>& lock) {
    std::unique_ptr<Transfer> transfer;
    std::exception_ptr error;
    try {
      transfer = send_now(message.peer, message.channel, message.tensors);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    message.transfer = std::move(transfer);
    message.error = error;
    changed_.notify_all();
  }

  std::shared_ptr<Transport> transport_;
  const Clock::duration delay_;
  std::mutex calls_;
  std::mutex mutex_;  // Guards what follows, and messages.
  std::condition_variable changed_;
  std::deque<MessagePtr> waiting_;
  bool closed_ = false;
  std::thread thread_;
};

class DelayedSend : public Transfer {
 public:
  DelayedSend(std::shared_ptr<Post> post, MessagePtr message) : post_(std::move(post)), message_(std::move(message)) {}
  void wait() override {
    if (!transfer_) transfer_ = post_->wait_until_sent(*message_);
    transfer_->wait();
  }

 private:
  std::shared_ptr<Post> post_;
  MessagePtr message_;
  std::unique_ptr<Transfer> transfer_;
};

class DelayedTransport : public Transport {
 public:
  DelayedTransport(std::shared_ptr<Transport> transport, Clock::duration delay)
      : transport_(std::move(transport)), post_(std::make_shared<Post>(transport_, delay)) {}

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  at::Device device() const override { return transport_->device(); }
  std::unique_ptr<Transfer> send(int peer, int channel, const TensorList& tensors) override {
    if (channel != 0) return post_->send_now(peer, channel, tensors);
    return std::make_unique<DelayedSend>(post_, post_->send(peer, channel, tensors));
  }
  std::unique_ptr<Transfer> receive(int peer, int channel, const TensorList& into) override {
    return post_->receive(peer, channel, into);
  }
  void all_reduce_sum(at::Tensor& tensor) override { transport_->all_reduce_sum(tensor); }
  std::vector<std::string> all_gather(const std::string& bytes) override { return transport_->all_gather(bytes); }
  void broadcast(at::Tensor& tensor, int root) override { transport_->broadcast(tensor, root); }
  void abort(const std::string& why) override { transport_->abort(why); }

 private:
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<Post> post_;
};

}  // namespace

std::shared_ptr<Transport> make_delayed(std::shared_ptr<Transport> transport, std::chrono::microseconds delay) {
  return std::make_shared<DelayedTransport>(std::move(transport), delay);
}

}  // namespace dualpipe::bench
