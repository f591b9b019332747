#include "examples/pretrain_gpt/model/mlp.h"

#include <ATen/ATen.h>

#include "examples/pretrain_gpt/model/initial_weights.h"
#include "examples/pretrain_gpt/parallel/tensor_collectives.h"

namespace pretrain_gpt {

Mlp::Mlp(const Config& config, const ModelParallel& parallel, const std::string& name) : parallel_(parallel) {
  const std::int64_t h = config.hidden_size, f = config.ffn_size();
  const std::int64_t rank = parallel.tensor.rank(), ranks = parallel.tensor.size();
  gate_up_ = register_module("gate_up", std::make_shared<Weight>(normal_weight(
                                            config, name + ".gate_up.weight", {2 * f, h}, config.init_method_std,
                                            {.dimension = 0, .blocks = 2, .index = rank, .count = ranks})));
  down_ = register_module(
      "down", std::make_shared<Weight>(normal_weight(config, name + ".down.weight", {h, f}, residual_std(config),
                                                     {.dimension = 1, .index = rank, .count = ranks})));
}

at::Tensor Mlp::forward(const at::Tensor& x) {
  const std::vector<at::Tensor> halves = at::linear(enter_tensor_region(x, parallel_), gate_up_->weight).chunk(2, -1);
  return leave_tensor_region(at::linear(at::silu(halves[0]) * halves[1], down_->weight), parallel_);
}

}  // namespace pretrain_gpt
