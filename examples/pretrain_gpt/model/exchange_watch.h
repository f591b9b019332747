// examples/pretrain_gpt/model/exchange_watch.h
//
// How long the exchanges of a model's phases take, for whoever wants to know.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/model/phase.h"

namespace pretrain_gpt {

// An exchange that is over, of a forward or of the way back.
struct ExchangeTimes {
  std::string phase;  // "3.dispatch"
  std::chrono::steady_clock::time_point posted, waiting, done;
};

using ExchangeWatch = std::function<void(const ExchangeTimes& exchange)>;

// Has the exchanges of `phases` tell `watch` when they are over, on the thread that awaits them.
void watch_exchanges(std::vector<ModelPhase>& phases, const ExchangeWatch& watch);

}  // namespace pretrain_gpt
