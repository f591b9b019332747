#include "plugin/runtime/loss_weights.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <cmath>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr int kChannel = 2;

}  // namespace

LossWeights::LossWeights(std::shared_ptr<Transport> transport, std::optional<int> other_end)
    : transport_(std::move(transport)), other_end_(other_end) {}

void LossWeights::start(double local) {
  local_ = local;
  total_.reset();
  if (!other_end_) return;
  const auto options = at::TensorOptions().dtype(at::kDouble).device(transport_->device());
  sent_ = at::full({1}, local, options);
  received_ = at::empty({1}, options);
  receive_ = transport_->receive(*other_end_, kChannel, {received_});
  send_ = transport_->send(*other_end_, kChannel, {sent_});
}

double LossWeights::total() {
  if (total_) return *total_;
  double other = 0;
  if (receive_) {
    receive_->wait();
    receive_.reset();
    other = received_.item<double>();
  }
  if (!(local_ + other >= 0) || !std::isfinite(local_ + other)) {
    throw ScheduleError("criterion",
                        fmt::format("the weights of a step must add up to a finite sum of at least 0, got {} "
                                    "here and {} at the other end",
                                    local_, other));
  }
  total_ = local_ + other;
  return *total_;
}

void LossWeights::finish() {
  if (receive_) receive_->wait();
  if (send_) send_->wait();
  receive_.reset();
  send_.reset();
}

}  // namespace dualpipe
