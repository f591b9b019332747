// examples/pretrain_gpt/gradient_reduction.h
//
// Sums a step's gradients over the ranks that hold copies of their parameters.
//
// Gradients are packed into buckets, at least in float32, and each is summed as soon as it is packed, a few at a time.
// Ranks with the same stage make the same buckets in the same order; all of them end up with the same bits.
#pragma once

#include <vector>

#include "examples/pretrain_gpt/parallel/groups.h"
#include "examples/pretrain_gpt/rank_parameters.h"

namespace pretrain_gpt {

class GradientReduction {
 public:
  static constexpr std::int64_t kBucketElements = std::int64_t{1} << 22;

  // `parameters` that have no other copy are left alone, gradients of earlier steps included.
  GradientReduction(const ProcessGroups& groups, const std::vector<RankParameter>& parameters,
                    std::int64_t bucket_elements = kBucketElements);

  // Before a step: puts aside what earlier ones have left, which is summed already.
  void begin();
  // After it: collective over the stage's copies. An undefined gradient counts as zeros.
  void finish();

 private:
  struct Bucket {
    Group group;
    at::ScalarType dtype;
    std::vector<std::size_t> members;  // Into parameters_.
    std::int64_t elements = 0;
  };

  void assign(std::size_t member, const Group& group);
  at::Tensor pack(const Bucket& bucket) const;
  void unpack(const Bucket& bucket, const at::Tensor& sums) const;

  std::vector<RankParameter> parameters_;
  std::vector<at::Tensor> earlier_;  // By parameter.
  std::int64_t bucket_elements_;
  std::vector<Bucket> buckets_;
};

// What a step adds to a gradient, apart from what was there: take before the step, give back after it.
at::Tensor take_gradient(const RankParameter& parameter);
void add_gradient(const RankParameter& parameter, const at::Tensor& taken);

}  // namespace pretrain_gpt
