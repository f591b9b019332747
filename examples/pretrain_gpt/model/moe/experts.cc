#include "examples/pretrain_gpt/model/moe/experts.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "examples/pretrain_gpt/model/initial_weights.h"

namespace pretrain_gpt {

Expert::Expert(const Config& config, const std::string& name, std::int64_t width, const LayerGroup& group) {
  const std::int64_t h = config.hidden_size;
  const WeightPart columns{0, 2, group.rank(), group.size()}, rows{1, 1, group.rank(), group.size()};
  gate_up_ = register_module(
      "gate_up", std::make_shared<Weight>(
                     normal_weight(config, name + ".gate_up.weight", {2 * width, h}, config.init_method_std, columns)));
  down_ = register_module("down", std::make_shared<Weight>(normal_weight(config, name + ".down.weight", {h, width},
                                                                         residual_std(config), rows)));
}

at::Tensor Expert::forward(const at::Tensor& x) {
  const std::vector<at::Tensor> halves = at::linear(x, gate_up_->weight).chunk(2, -1);
  return at::linear(at::silu(halves[0]) * halves[1], down_->weight);
}

Experts::Experts(const Config& config, const ModelParallel& parallel, const std::string& name) {
  const std::int64_t count = config.num_experts / parallel.expert.size(), first = parallel.expert.rank() * count;
  for (std::int64_t index = first; index < first + count; ++index) {
    experts_.push_back(register_module(fmt::format("{}", index),
                                       std::make_shared<Expert>(config, fmt::format("{}.{}", name, index),
                                                                config.moe_ffn_size(), parallel.expert_tensor)));
  }
}

at::Tensor Experts::forward(const ExpertRows& rows) {
  const std::vector<at::Tensor> parts = rows.rows.split_with_sizes(rows.counts);
  std::vector<at::Tensor> outputs;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    outputs.push_back(experts_[i]->forward(parts[i]));
  }
  return at::cat(outputs);
}

}  // namespace pretrain_gpt
