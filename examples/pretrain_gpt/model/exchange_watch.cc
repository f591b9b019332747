#include "examples/pretrain_gpt/model/exchange_watch.h"

#include <memory>
#include <utility>

namespace pretrain_gpt {
namespace {

using Clock = std::chrono::steady_clock;

class Watched : public PendingTensors {
 public:
  Watched(std::unique_ptr<PendingTensors> pending, ExchangeTimes times, const ExchangeWatch& watch)
      : pending_(std::move(pending)), times_(std::move(times)), watch_(watch) {}

  Tensors wait() override {
    times_.waiting = Clock::now();
    Tensors result = pending_->wait();
    times_.done = Clock::now();
    watch_(times_);
    return result;
  }

 private:
  std::unique_ptr<PendingTensors> pending_;
  ExchangeTimes times_;
  ExchangeWatch watch_;
};

using Exchange = decltype(ModelPhase::exchange);

Exchange watched(Exchange exchange, const std::string& phase, const ExchangeWatch& watch) {
  return [=](const Tensors& tensors, PhaseState& state) -> std::unique_ptr<PendingTensors> {
    ExchangeTimes times{phase, Clock::now(), {}, {}};
    return std::make_unique<Watched>(exchange(tensors, state), std::move(times), watch);
  };
}

}  // namespace

void watch_exchanges(std::vector<ModelPhase>& phases, const ExchangeWatch& watch) {
  for (ModelPhase& phase : phases) {
    if (phase.exchange) {
      phase.exchange = watched(std::move(phase.exchange), phase.name, watch);
    }
    if (phase.exchange_back) {
      phase.exchange_back = watched(std::move(phase.exchange_back), phase.name, watch);
    }
  }
}

}  // namespace pretrain_gpt
