#include "plugin/runtime/loss_weights.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr int kChannel = 2;

}  // namespace

LossWeights::LossWeights(std::shared_ptr<Transport> transport, std::optional<int> other_end)
    : transport_(std::move(transport)), other_end_(other_end) {}

LossWeights::LossWeights(std::shared_ptr<GroupCollectives> members) : members_(std::move(members)) {}

void LossWeights::start(double local) {
  local_ = local;
  total_.reset();
  if (members_) {
    sum_ = at::full({1}, local, at::TensorOptions().dtype(at::kDouble).device(members_->device()));
    reduce_ = members_->start_all_reduce_sum(sum_);
    return;
  }
  if (!other_end_) return;
  const auto options = at::TensorOptions().dtype(at::kDouble).device(transport_->device());
  sent_ = at::full({1}, local, options);
  received_ = at::empty({1}, options);
  receive_ = transport_->receive(*other_end_, kChannel, {received_});
  send_ = transport_->send(*other_end_, kChannel, {sent_});
}

double LossWeights::total() {
  if (!total_) total_ = members_ ? sum_of_members() : sum_of_ends();
  return *total_;
}

double LossWeights::sum_of_members() {
  if (reduce_) std::exchange(reduce_, {})->wait();
  const double sum = sum_.item<double>();
  if (sum >= 0 && std::isfinite(sum)) return sum;
  throw ScheduleError("criterion", fmt::format("the weights of a step must add up to a finite sum of at least 0, got "
                                               "{} over {} ranks",
                                               sum, members_->size()));
}

double LossWeights::sum_of_ends() {
  double other = 0;
  if (receive_) {
    receive_->wait();
    receive_.reset();
    other = received_.item<double>();
  }
  if (local_ + other >= 0 && std::isfinite(local_ + other)) return local_ + other;
  throw ScheduleError("criterion",
                      fmt::format("the weights of a step must add up to a finite sum of at least 0, got {} "
                                  "here and {} at the other end",
                                  local_, other));
}

void LossWeights::finish() {
  if (receive_) receive_->wait();
  if (send_) send_->wait();
  if (reduce_) reduce_->wait();
  receive_.reset();
  send_.reset();
  reduce_.reset();
}

}  // namespace dualpipe
