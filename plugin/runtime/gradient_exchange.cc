#include "plugin/runtime/gradient_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr int kChannel = 1;

at::Tensor flatten(const std::vector<std::size_t>& indices, Gradients& gradients, at::ScalarType dtype) {
  TensorList parts;
  const auto options = gradients.parameters()[indices.front()].parameter.options().dtype(dtype).requires_grad(false);
  std::vector<double> flags;
  for (std::size_t index : indices) {
    const at::Tensor& gradient = gradients.step_gradient(index);
    flags.push_back(gradient.defined() ? 1 : 0);
    parts.push_back(gradient.defined() ? gradient.reshape({-1}).to(dtype)
                                       : at::zeros({gradients.parameters()[index].parameter.numel()}, options));
  }
  parts.push_back(at::tensor(flags, at::kDouble).to(options));
  return at::cat(parts);
}

std::vector<GradientBucket> make_buckets(std::vector<std::size_t> indices, Gradients& gradients) {
  const auto& parameters = gradients.parameters();
  std::sort(indices.begin(), indices.end(),
            [&](std::size_t a, std::size_t b) { return parameters[a].name < parameters[b].name; });
  std::map<at::ScalarType, GradientBucket> by_dtype;
  for (std::size_t index : indices) by_dtype[gradient_dtype(parameters[index])].indices.push_back(index);
  std::vector<GradientBucket> buckets;
  for (auto& [dtype, bucket] : by_dtype) {
    bucket.mine = flatten(bucket.indices, gradients, dtype);
    bucket.theirs = at::empty_like(bucket.mine);
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

void refuse_sparse(const std::vector<std::size_t>& indices, Gradients& gradients) {
  for (std::size_t index : indices) {
    const at::Tensor& gradient = gradients.step_gradient(index);
    if (!gradient.defined() || gradient.layout() == at::kStrided) continue;
    throw ScheduleError("mirrored_reduction", "gradients must be dense, got a sparse one for \"" +
                                                  gradients.parameters()[index].name +
                                                  "\"; an embedding with sparse=false works");
  }
}

void write_back(const GradientBucket& bucket, const at::Tensor& sums, Gradients& gradients) {
  const auto count = static_cast<std::int64_t>(bucket.indices.size());
  const at::Tensor flags = sums.narrow(0, sums.numel() - count, count).to(at::kDouble).cpu();
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t index = bucket.indices[i];
    const at::Tensor& parameter = gradients.parameters()[index].parameter;
    at::Tensor& gradient = gradients.step_gradient(index);
    const at::Tensor sum = sums.narrow(0, offset, parameter.numel()).view(parameter.sizes());
    offset += parameter.numel();
    if (gradient.defined()) {
      gradient.copy_(sum);
    } else if (flags.data_ptr<double>()[i] > 0) {
      gradient = sum.clone();
    }
  }
}

// Into the lower rank's buffer, whichever it is here: the same order of addition on both.
at::Tensor sum(const GradientBucket& bucket, bool is_lower) {
  at::Tensor lower = is_lower ? bucket.mine : bucket.theirs;
  return lower.add_(is_lower ? bucket.theirs : bucket.mine);
}

}  // namespace

at::ScalarType gradient_dtype(const StageParameter& parameter) {
  return parameter.main_grad.defined() ? parameter.main_grad.scalar_type() : parameter.parameter.scalar_type();
}

GradientExchange::GradientExchange(int peer, std::vector<std::size_t> indices, Gradients& gradients) : peer_(peer) {
  at::NoGradGuard no_grad;
  refuse_sparse(indices, gradients);
  buckets_ = make_buckets(std::move(indices), gradients);
}

void GradientExchange::post(Transport& transport) {
  TensorList mine;
  TensorList theirs;
  for (const GradientBucket& bucket : buckets_) {
    mine.push_back(bucket.mine);
    theirs.push_back(bucket.theirs);
  }
  receive_ = transport.receive(peer_, kChannel, theirs);
  send_ = transport.send(peer_, kChannel, mine);
}

void GradientExchange::finish(const Transport& transport, Gradients& gradients) {
  at::NoGradGuard no_grad;
  receive_->wait();
  send_->wait();
  for (const GradientBucket& bucket : buckets_) write_back(bucket, sum(bucket, transport.rank() < peer_), gradients);
}

}  // namespace dualpipe
