// tests/pretrain_gpt/moe_reference.h
//
// A mixture of experts one token and one expert at a time, straight from the definitions, and what tests of the real
// one share: a configuration, ranks as threads, gradients by name.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/distributed.h"
#include "examples/pretrain_gpt/parallel/model_parallel.h"
#include "tests/pretrain_gpt/rank_threads.h"

namespace pretrain_gpt {

using NamedValues = std::map<std::string, at::Tensor>;

inline Config moe_config() {
  Config config;
  config.num_layers = 2;
  config.hidden_size = 12;
  config.num_attention_heads = 2;
  config.seq_length = 6;
  config.num_experts = 8;
  config.moe_router_topk = 2;
  config.moe_ffn_hidden_size = 10;
  config.moe_shared_expert_intermediate_size = 6;
  config.moe_aux_loss_coeff = 0.3;
  config.moe_router_enable_expert_bias = true;
  config.params_dtype = "float64";
  return config;
}

// Values with no pattern, the same everywhere.
inline at::Tensor some_values(at::IntArrayRef shape, double phase) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    count *= size;
  }
  return (at::arange(count, at::kDouble) * (1.7 + phase) + phase).sin().mul(3.1).cos().view(shape).contiguous();
}

inline double relative_distance(const at::Tensor& got, const at::Tensor& wanted) {
  const double norm = wanted.norm().item<double>();
  return (got - wanted).norm().item<double>() / (norm == 0 ? 1 : norm);
}

inline NamedValues values_of(const torch::nn::Module& module) {
  NamedValues values;
  for (const auto& item : module.named_parameters()) {
    values.emplace(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    values.emplace(item.key(), item.value());
  }
  return values;
}

// Far from linear, and with clear choices.
inline void sharpen(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    item.value().detach().mul_(item.key().starts_with("router") ? 40.0 : 25.0);
  }
}

inline NamedValues copies_of(const NamedValues& values) {
  NamedValues copies;
  for (const auto& [name, value] : values) {
    copies.emplace(name, value.detach().clone().requires_grad_(value.requires_grad()));
  }
  return copies;
}

class SlowMoe {
 public:
  SlowMoe(const Config& config, NamedValues values) : config_(config), values_(std::move(values)) {}

  struct Result {
    at::Tensor output;
    at::Tensor auxiliary_loss;  // Without coefficient.
    std::vector<std::int64_t> load;
  };

  // x: [batch, sequence, hidden]
  Result forward(const at::Tensor& x) const {
    const at::Tensor tokens = x.reshape({-1, x.size(2)});
    std::vector<std::int64_t> load(static_cast<std::size_t>(config_.num_experts));
    std::vector<at::Tensor> outputs;
    at::Tensor score_sum = at::zeros(config_.num_experts, at::kDouble);
    for (std::int64_t t = 0; t < tokens.size(0); ++t) {
      const at::Tensor powers = values_.at("router.weight").mv(tokens[t]).exp();
      const at::Tensor scores = powers / powers.sum();
      score_sum = score_sum + scores;
      outputs.push_back(token_output(tokens[t], scores, load));
    }
    at::Tensor auxiliary = at::zeros({}, at::kDouble);
    const double count = static_cast<double>(tokens.size(0)),
                 choices = count * static_cast<double>(config_.moe_router_topk);
    for (std::size_t e = 0; e < load.size(); ++e) {
      auxiliary = auxiliary + static_cast<double>(load[e]) / choices * score_sum[static_cast<std::int64_t>(e)] / count;
    }
    return {at::stack(outputs).view(x.sizes()), auxiliary * static_cast<double>(config_.num_experts), load};
  }

  NamedValues& values() { return values_; }

 private:
  std::vector<std::int64_t> choices(const at::Tensor& scores) const {
    const at::Tensor ranked = scores.detach() + values_.at("router.expert_bias");
    std::vector<std::int64_t> all;
    for (std::int64_t e = 0; e < config_.num_experts; ++e) {
      all.push_back(e);
    }
    std::stable_sort(all.begin(), all.end(), [&](std::int64_t a, std::int64_t b) {
      return ranked[a].item<double>() > ranked[b].item<double>();
    });
    all.resize(static_cast<std::size_t>(config_.moe_router_topk));
    return all;
  }

  at::Tensor token_output(const at::Tensor& token, const at::Tensor& scores, std::vector<std::int64_t>& load) const {
    at::Tensor sum = at::zeros({}, at::kDouble), output = at::zeros_like(token);
    for (const std::int64_t e : choices(scores)) {
      ++load[static_cast<std::size_t>(e)];
      sum = sum + scores[e];
      output = output + scores[e] * network(token, "experts." + std::to_string(e));
    }
    output = config_.moe_router_topk == 1 ? output : output / sum;
    return config_.moe_shared_expert_intermediate_size > 0 ? output + network(token, "shared_expert") : output;
  }

  at::Tensor network(const at::Tensor& token, const std::string& name) const {
    const at::Tensor both = values_.at(name + ".gate_up.weight").mv(token);
    const std::int64_t width = both.size(0) / 2;
    const at::Tensor gate = both.narrow(0, 0, width), up = both.narrow(0, width, width);
    return values_.at(name + ".down.weight").mv(gate * gate.sigmoid() * up);
  }

  Config config_;
  NamedValues values_;
};

// A rank of a test: its number and the means to make groups.
struct TestRank {
  int rank;
  int world_size;
  const GroupMaker& groups;

  // Those that `color` gives the same value, in order.
  LayerGroup group_by(const std::string& name, const std::function<int(int rank)>& color) const {
    std::vector<int> members;
    for (int other = 0; other < world_size; ++other) {
      if (color(other) == color(rank)) {
        members.push_back(other);
      }
    }
    const std::string own_name = name + std::to_string(color(rank));
    return members.size() == 1 ? LayerGroup() : LayerGroup{groups.make(own_name, members)};
  }
};

// Calls body once per rank; rethrows the first exception by rank.
inline void run_test_ranks(int world_size, const std::function<void(const TestRank&)>& body) {
  run_threads(world_size, [&](const Environment& environment, const c10::intrusive_ptr<c10d::Store>& store) {
    body({environment.rank, world_size, GroupMaker(store, environment, std::chrono::seconds(30))});
  });
}

}  // namespace pretrain_gpt
