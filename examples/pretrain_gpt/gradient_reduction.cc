#include "examples/pretrain_gpt/gradient_reduction.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "examples/pretrain_gpt/collective.h"

namespace pretrain_gpt {
namespace {

constexpr std::size_t kBucketsUnderWay = 4;

at::ScalarType reduction_dtype(const RankParameter& parameter) {
  return parameter.parameter.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

GradientReduction::GradientReduction(const ProcessGroups& groups, const std::vector<RankParameter>& parameters,
                                     std::int64_t bucket_elements)
    : bucket_elements_(bucket_elements) {
  for (const RankParameter& parameter : parameters) {
    if (const Group& group = groups.gradient_group(parameter.layout)) {
      parameters_.push_back(parameter);
      assign(parameters_.size() - 1, group);
    }
  }
  earlier_.resize(parameters_.size());
}

// To the last bucket of its group, while that is not full.
void GradientReduction::assign(std::size_t member, const Group& group) {
  const at::ScalarType dtype = reduction_dtype(parameters_[member]);
  const auto last = std::find_if(buckets_.rbegin(), buckets_.rend(),
                                 [&](const Bucket& bucket) { return bucket.group == group && bucket.dtype == dtype; });
  const bool is_new = last == buckets_.rend() || last->elements >= bucket_elements_;
  Bucket& bucket = is_new ? buckets_.emplace_back(Bucket{group, dtype, {}}) : *last;
  bucket.members.push_back(member);
  bucket.elements += parameters_[member].parameter.numel();
}

void GradientReduction::begin() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    earlier_[i] = take_gradient(parameters_[i]);
  }
}

void GradientReduction::finish() {
  const at::NoGradGuard no_grad;
  std::deque<std::pair<const Bucket*, PendingSum>> under_way;
  const auto complete_first = [&] {
    unpack(*under_way.front().first, under_way.front().second.wait());
    under_way.pop_front();
  };
  for (const Bucket& bucket : buckets_) {
    if (under_way.size() == kBucketsUnderWay) {
      complete_first();
    }
    under_way.emplace_back(&bucket, post_sum(*bucket.group, pack(bucket)));
  }
  while (!under_way.empty()) {
    complete_first();
  }
}

at::Tensor GradientReduction::pack(const Bucket& bucket) const {
  at::Tensor packed = at::zeros({bucket.elements}, bucket.dtype);
  std::int64_t place = 0;
  for (const std::size_t member : bucket.members) {
    const at::Tensor gradient = parameters_[member].gradient();
    const std::int64_t size = parameters_[member].parameter.numel();
    if (gradient.defined()) {
      packed.narrow(0, place, size).copy_(gradient.reshape({-1}));
    }
    place += size;
  }
  return packed;
}

void GradientReduction::unpack(const Bucket& bucket, const at::Tensor& sums) const {
  std::int64_t place = 0;
  for (const std::size_t member : bucket.members) {
    const RankParameter& parameter = parameters_[member];
    const std::int64_t size = parameter.parameter.numel();
    if (!parameter.gradient().defined()) {
      parameter.parameter.mutable_grad() = at::empty_like(parameter.parameter);
    }
    parameter.gradient().copy_(sums.narrow(0, place, size).view(parameter.parameter.sizes()));
    add_gradient(parameter, earlier_[member]);
    place += size;
  }
}

at::Tensor take_gradient(const RankParameter& parameter) {
  if (!parameter.main_gradient.defined()) {
    return std::exchange(parameter.parameter.mutable_grad(), at::Tensor());
  }
  if (!parameter.main_gradient.any().item<bool>()) {
    return {};
  }
  at::Tensor taken = parameter.main_gradient.clone();
  parameter.main_gradient.zero_();
  return taken;
}

void add_gradient(const RankParameter& parameter, const at::Tensor& taken) {
  if (taken.defined()) {
    parameter.gradient().add_(taken);
  }
}

}  // namespace pretrain_gpt
