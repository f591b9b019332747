// plugin/runtime/c10d_waiter.h
//
// The one place that waits for c10d work and turns whatever goes wrong into an exception: c10d reports an aborted wait
// by a return value alone.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "plugin/runtime/c10d_wire.h"
#include "plugin/runtime/failure.h"
#include "plugin/runtime/transport.h"

namespace dualpipe {

class C10dWaiter {
 public:
  // `timeout` 0 leaves it to the backend. `failures` may be null.
  C10dWaiter(std::chrono::milliseconds timeout, std::shared_ptr<FailureChannel> failures);
  ~C10dWaiter();
  C10dWaiter(const C10dWaiter&) = delete;
  C10dWaiter& operator=(const C10dWaiter&) = delete;

  // Throws PeerError if the link broke and nobody recorded why, else TransportError. After the first error every call
  // throws at once.
  void wait(const Pending& pending);
  void throw_if_aborted(const MessageName& name);
  // For an operation that could not even be started: as a wait that failed.
  [[noreturn]] void fail(const MessageName& name, const std::exception& error);

  // From any thread: wakes the wait under way and makes later ones throw. The first reason stays.
  void abort(const std::string& why);

  // Keeps work that will not be waited for until the process ends.
  void keep(std::vector<Pending> abandoned);

 private:
  using Clock = std::chrono::steady_clock;

  // Returns once the work is done. A backend's own collective cannot be woken, but it can be left.
  void watch_collective(c10d::Work& work, Clock::time_point start);
  [[noreturn]] void fail_by(const MessageName& name, const std::string& cause);
  [[noreturn]] void time_out(const MessageName& name);
  std::optional<FailureRecord> first_record();
  std::optional<std::string> reason();

  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<FailureChannel> failures_;
  std::mutex mutex_;  // Guards what follows.
  c10d::Work* waiting_for_ = nullptr;
  std::optional<std::string> reason_;
};

}  // namespace dualpipe
