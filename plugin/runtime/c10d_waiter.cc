#include "plugin/runtime/c10d_waiter.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace dualpipe {
namespace {

// A rank that fails records why and then closes its links; its record may take this long to show.
constexpr std::chrono::milliseconds kRecordDelay{1000};
constexpr std::chrono::milliseconds kRecordPoll{50};
// How late the end of a backend's collective may be noticed.
constexpr std::chrono::microseconds kCompletionPoll{500};

// c10's errors carry a stack trace, which says nothing about the peer.
std::string text_of(const std::exception& error) {
  const auto* from_c10 = dynamic_cast<const c10::Error*>(&error);
  return from_c10 ? from_c10->what_without_backtrace() : error.what();
}

}  // namespace

C10dWaiter::C10dWaiter(std::chrono::milliseconds timeout, std::shared_ptr<FailureChannel> failures)
    : timeout_(timeout), failures_(std::move(failures)) {}

C10dWaiter::~C10dWaiter() = default;

void C10dWaiter::wait(const Pending& pending) {
  {
    std::lock_guard lock(mutex_);
    if (reason_) {
      throw TransportError(pending.name.to_string() + ": aborted: " + *reason_);
    }
    waiting_for_ = pending.work.get();
  }
  const Clock::time_point start = Clock::now();
  std::string error;
  bool arrived = false;
  try {
    if (!pending.name.peer && timeout_.count() > 0) {
      watch_collective(*pending.work, start);
    }
    arrived = pending.work->wait(timeout_);
  } catch (const std::exception& caught) {
    error = text_of(caught);
  }
  {
    std::lock_guard lock(mutex_);
    waiting_for_ = nullptr;
  }
  if (arrived) {
    return;
  }
  throw_if_aborted(pending.name);
  if (timeout_.count() > 0 && Clock::now() - start >= timeout_) {
    time_out(pending.name);
  }
  fail_by(pending.name, error);
}

void C10dWaiter::throw_if_aborted(const MessageName& name) {
  if (const auto why = reason()) {
    throw TransportError(name.to_string() + ": aborted: " + *why);
  }
}

void C10dWaiter::time_out(const MessageName& name) {
  const std::string message = name.to_string() + ": timed out after " + std::to_string(timeout_.count()) + " ms";
  abort(message);
  throw TransportError(message);
}

void C10dWaiter::fail(const MessageName& name, const std::exception& error) { fail_by(name, text_of(error)); }

void C10dWaiter::fail_by(const MessageName& name, const std::string& cause) {
  if (const auto record = first_record()) {
    const std::string message = name.to_string() + ": " + record->to_string();
    abort(message);
    throw TransportError(message);
  }
  const std::string message = name.to_string() + ": the link is broken: " + cause;
  abort(message);
  if (!name.peer) {
    throw TransportError(message);
  }
  throw PeerError(*name.peer, message);
}

void C10dWaiter::watch_collective(c10d::Work& work, Clock::time_point start) {
  std::chrono::microseconds pause{10};
  while (!work.isCompleted()) {
    if (reason()) {
      throw TransportError("aborted");
    }
    if (Clock::now() - start >= timeout_) {
      throw TransportError("timed out");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kCompletionPoll);
  }
}

std::optional<FailureRecord> C10dWaiter::first_record() {
  std::optional<FailureRecord> record;
  const Clock::time_point deadline = Clock::now() + kRecordDelay;
  while (failures_ && !(record = failures_->first()) && Clock::now() < deadline) {
    std::this_thread::sleep_for(kRecordPoll);
  }
  return record;
}

std::optional<std::string> C10dWaiter::reason() {
  std::lock_guard lock(mutex_);
  return reason_;
}

void C10dWaiter::abort(const std::string& why) {
  std::lock_guard lock(mutex_);
  if (!reason_) {
    reason_ = why;
  }
  if (waiting_for_) {
    try {
      waiting_for_->abort();
    } catch (const std::exception&) {
      // A collective of the backend, which nothing wakes: watch_collective() sees the reason.
    }
  }
}

void C10dWaiter::keep(std::vector<Pending> abandoned) {
  // Gloo writes into a posted receive whenever its message comes, and taking one back breaks the link for good.
  // Reachable from here, so that a leak checker knows that it is meant.
  static auto& kept = *new std::vector<Pending>;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  kept.insert(kept.end(), std::make_move_iterator(abandoned.begin()), std::make_move_iterator(abandoned.end()));
}

}  // namespace dualpipe
