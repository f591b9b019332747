#include "examples/pretrain_gpt/parallel/tensor_collectives.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <vector>

#include "examples/pretrain_gpt/collective.h"
#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr const char* kWhat = "a collective between tensor ranks";

// Gloo has not always summed bfloat16, and float32 rounds once.
at::ScalarType sum_dtype(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 ? at::kFloat : x.scalar_type();
}

// Never x itself.
at::Tensor owned(const at::Tensor& x, at::ScalarType dtype) {
  return x.detach().to(dtype, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
}

at::Tensor all_reduce(const at::Tensor& x, const LayerGroup& group, c10d::ReduceOp::RedOpType operation) {
  Tensors tensors{owned(x, sum_dtype(x))};
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  wait_for(*posted(kWhat, [&] { return group.group->allreduce(tensors, options); }), kWhat);
  return tensors[0].to(x.scalar_type());
}

std::int64_t part_length(const at::Tensor& x, const LayerGroup& group) {
  const std::int64_t length = x.size(1), parts = group.size();
  if (length % parts != 0) {
    throw UserError("sequence_parallel", fmt::format("tensor_model_parallel_size must divide the length of a sequence "
                                                     "= {}, got {}; for example {}",
                                                     length, parts, std::gcd(length, parts)));
  }
  return length / parts;
}

at::Tensor as_it_is(const at::Tensor& x, const LayerGroup&) { return x; }

at::Tensor sum(const at::Tensor& x, const LayerGroup& group) {
  return all_reduce(x, group, c10d::ReduceOp::RedOpType::SUM);
}

at::Tensor join(const at::Tensor& x, const LayerGroup& group) {
  Tensors mine{x.detach().contiguous()};
  std::vector<Tensors> all(1);
  for (int rank = 0; rank < group.size(); ++rank) {
    all[0].push_back(at::empty_like(mine[0]));
  }
  wait_for(*posted(kWhat, [&] { return group.group->allgather(all, mine); }), kWhat);
  return at::cat(all[0], 1);
}

at::Tensor split(const at::Tensor& x, const LayerGroup& group) {
  const std::int64_t length = part_length(x, group);
  return x.detach().narrow(1, group.rank() * length, length).clone(at::MemoryFormat::Contiguous);
}

at::Tensor sum_and_split(const at::Tensor& x, const LayerGroup& group) {
  const std::int64_t length = part_length(x, group);
  std::vector<Tensors> parts(1);
  for (int rank = 0; rank < group.size(); ++rank) {
    parts[0].push_back(owned(x.narrow(1, rank * length, length), sum_dtype(x)));
  }
  Tensors mine{at::empty_like(parts[0][0])};
  wait_for(*posted(kWhat, [&] { return group.group->reduce_scatter(mine, parts); }), kWhat);
  return mine[0].to(x.scalar_type());
}

using Move = at::Tensor (*)(const at::Tensor& x, const LayerGroup& group);

// One move forward and another one backward.
template <Move kForward, Move kBackward>
class Collective : public torch::autograd::Function<Collective<kForward, kBackward>> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const LayerGroup& group) {
    context->saved_data["group"] = group.group;
    return kForward(x, group);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    if (!context->needs_input_grad(0)) {
      return {at::Tensor(), at::Tensor()};
    }
    const LayerGroup group{context->saved_data["group"].toCustomClass<c10d::ProcessGroup>()};
    return {kBackward(gradients[0], group), at::Tensor()};
  }
};

template <Move kForward, Move kBackward>
at::Tensor apply(const at::Tensor& x, const LayerGroup& group) {
  return group.size() == 1 ? x : Collective<kForward, kBackward>::apply(x, group);
}

}  // namespace

at::Tensor copy_to_tensor_ranks(const at::Tensor& x, const LayerGroup& group) { return apply<as_it_is, sum>(x, group); }

at::Tensor sum_over_tensor_ranks(const at::Tensor& x, const LayerGroup& group) {
  return apply<sum, as_it_is>(x, group);
}

at::Tensor gather_sequence(const at::Tensor& x, const LayerGroup& group) {
  return apply<join, sum_and_split>(x, group);
}

at::Tensor sum_and_split_sequence(const at::Tensor& x, const LayerGroup& group) {
  return apply<sum_and_split, join>(x, group);
}

at::Tensor split_sequence(const at::Tensor& x, const LayerGroup& group) { return apply<split, join>(x, group); }

at::Tensor join_sequence(const at::Tensor& x, const LayerGroup& group) { return apply<join, split>(x, group); }

at::Tensor max_over_tensor_ranks(const at::Tensor& x, const LayerGroup& group) {
  return group.size() == 1 ? x.detach() : all_reduce(x, group, c10d::ReduceOp::RedOpType::MAX);
}

at::Tensor enter_tensor_region(const at::Tensor& x, const ModelParallel& parallel) {
  return parallel.sequence_parallel ? gather_sequence(x, parallel.tensor) : copy_to_tensor_ranks(x, parallel.tensor);
}

at::Tensor leave_tensor_region(const at::Tensor& x, const ModelParallel& parallel) {
  return parallel.sequence_parallel ? sum_and_split_sequence(x, parallel.tensor)
                                    : sum_over_tensor_ranks(x, parallel.tensor);
}

}  // namespace pretrain_gpt
