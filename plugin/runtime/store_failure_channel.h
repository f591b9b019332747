// plugin/runtime/store_failure_channel.h
//
// The failure channel over a c10d store: first-writer-wins under one key. And the watchdog, a thread that looks at a
// channel now and then and acts once when another rank has failed.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <memory>

#include "plugin/runtime/failure.h"

namespace dualpipe {

// `store` is a client of its own (a TCPStore's clients share one lock, so a blocked training thread would block the
// watchdog), asked by a thread of the channel's own. A store that is gone counts as a failure: "the store is lost (it
// lives in rank 0)". One that keeps silent, its host being stopped, holds nobody up: first() gives nothing after a
// second and at once from then on, record() its own failure after three, and the channel goes without its thread, which
// keeps the store.
std::shared_ptr<FailureChannel> make_store_failure_channel(c10::intrusive_ptr<c10d::Store> store);

class Watchdog {
 public:
  // Polls every `interval`; calls `on_failure` at most once, from its own thread, with the first record.
  Watchdog(std::shared_ptr<FailureChannel> channel, std::function<void(const FailureRecord&)> on_failure,
           std::chrono::milliseconds interval = std::chrono::milliseconds(200));
  ~Watchdog();  // Joins; takes at most one poll, which a store that keeps silent makes a second.
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dualpipe
