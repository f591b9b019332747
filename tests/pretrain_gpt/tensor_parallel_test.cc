// Tensor-parallel layers on ranks as threads against one process that holds whole weights.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/layer_division.h"
#include "examples/pretrain_gpt/model/gpt_chunk.h"
#include "examples/pretrain_gpt/model/token_loss.h"
#include "examples/pretrain_gpt/parallel/tensor_collectives.h"
#include "tests/pretrain_gpt/rank_threads.h"

namespace pretrain_gpt {
namespace {

Config divided_config(int tensor_ranks, bool sequence_parallel) {
  Config config;
  config.num_layers = 3;
  config.hidden_size = 16;
  config.num_attention_heads = 4;
  config.ffn_hidden_size = 24;
  config.seq_length = 8;
  config.vocab_size = 12;
  config.params_dtype = "float64";
  config.micro_batch_size = 2;
  config.global_batch_size = 2;
  config.tensor_model_parallel_size = tensor_ranks;
  config.sequence_parallel = sequence_parallel;
  return config;
}

void run_tensor_ranks(const Config& config, const std::function<void(const ModelParallel&)>& body) {
  run_rank_threads(config, static_cast<int>(config.tensor_model_parallel_size), [&](const TrainContext& context) {
    body(context.parallel.model_parallel(context.config.sequence_parallel));
  });
}

double relative_distance(const at::Tensor& got, const at::Tensor& wanted) {
  return ((got - wanted).norm() / wanted.norm()).item<double>();
}

at::Tensor part_along(const at::Tensor& whole, std::int64_t dimension, const LayerGroup& group) {
  return whole.chunk(group.size(), dimension).at(static_cast<std::size_t>(group.rank()));
}

// Spelled out by name, matrix by matrix.
at::Tensor part_of_parameter(const std::string& name, const at::Tensor& whole, const LayerGroup& group) {
  if (name.find("norm") != std::string::npos) {
    return whole;
  }
  if (name.ends_with("proj.weight") || name.ends_with("down.weight")) {
    return part_along(whole, 1, group);
  }
  const int matrices = name.ends_with("qkv.weight") ? 3 : name.ends_with("gate_up.weight") ? 2 : 1;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& matrix : whole.chunk(matrices, 0)) {
    parts.push_back(part_along(matrix, 0, group));
  }
  return at::cat(parts);
}

using ByName = std::map<std::string, at::Tensor>;

struct Whole {
  at::Tensor tokens, labels, mask;
  at::Tensor logits, loss;
  ByName parameters, gradients;
};

// Weights far from where the model is linear.
void scale_weights(const GptChunk& chunk) {
  for (const auto& parameter : chunk.named_parameters()) {
    parameter.value().detach().mul_(parameter.key().find("norm") == std::string::npos ? 10.0 : 0.8);
  }
}

Whole run_whole(const Config& config) {
  Whole whole;
  whole.tokens = (at::arange(2 * config.seq_length) * 7 % config.vocab_size).view({2, config.seq_length});
  whole.labels = (whole.tokens * 5 + 2) % config.vocab_size;
  whole.mask = whole.tokens.remainder(3).ne(0).to(at::kFloat);
  GptChunk model(config, whole_model(config));
  scale_weights(model);
  whole.logits = model.forward(whole.tokens);
  whole.loss = token_loss_sum(whole.logits, whole.labels, whole.mask);
  whole.loss.backward();
  for (const auto& parameter : model.named_parameters()) {
    whole.parameters[parameter.key()] = parameter.value().detach();
    const at::Tensor& gradient = parameter.value().grad();
    whole.gradients[parameter.key()] = gradient.defined() ? gradient : at::zeros_like(parameter.value());
  }
  return whole;
}

using Case = std::tuple<int, bool, bool>;  // Tensor ranks, sequence parallel, untied.

class TensorParallelTest : public testing::TestWithParam<Case> {
 protected:
  Config config() const {
    Config config = divided_config(std::get<0>(GetParam()), std::get<1>(GetParam()));
    config.untie_embeddings_and_output_weights = std::get<2>(GetParam());
    return config;
  }
};

TEST_P(TensorParallelTest, EqualsOneProcess) {
  const Whole whole = run_whole(config());
  run_tensor_ranks(config(), [&](const ModelParallel& parallel) {
    const LayerGroup& tensor = parallel.tensor;
    GptChunk model(config(), parallel, whole_model(config()));
    scale_weights(model);
    const at::Tensor logits = model.forward(whole.tokens);
    const at::Tensor loss = token_loss_sum(logits, whole.labels, whole.mask, tensor);
    loss.backward();

    EXPECT_LT(relative_distance(logits, part_along(whole.logits, 2, tensor)), 1e-10);
    EXPECT_NEAR(loss.item<double>(), whole.loss.item<double>(), 1e-10);
    for (const auto& parameter : model.named_parameters()) {
      const std::string& name = parameter.key();
      EXPECT_TRUE(at::equal(parameter.value(), part_of_parameter(name, whole.parameters.at(name), tensor))) << name;
      at::Tensor gradient = parameter.value().grad();
      if (model.layout_of(name).is_sequence_partial) {
        gradient = sum_over_tensor_ranks(gradient, tensor);
      }
      EXPECT_LT(relative_distance(gradient, part_of_parameter(name, whole.gradients.at(name), tensor)), 1e-10) << name;
    }
  });
}

TEST_P(TensorParallelTest, ChunksHandOverTheBoundary) {
  const Whole whole = run_whole(config());
  run_tensor_ranks(config(), [&](const ModelParallel& parallel) {
    at::Tensor hidden = whole.tokens;
    for (const Chunk& part : divide_layers(config(), 3)) {
      GptChunk chunk(config(), parallel, part);
      scale_weights(chunk);
      hidden = chunk.forward(hidden);
      if (!part.has_head) {
        EXPECT_EQ(hidden.sizes().vec(), boundary_sizes(config(), parallel));
      }
    }
    EXPECT_LT(relative_distance(hidden, part_along(whole.logits, 2, parallel.tensor)), 1e-10);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, TensorParallelTest,
                         testing::Combine(testing::Values(2, 4), testing::Bool(), testing::Bool()),
                         [](const auto& info) {
                           return "Tp" + std::to_string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "Sequence" : "") +
                                  (std::get<2>(info.param) ? "Untied" : "Tied");
                         });

struct ExpertCase {
  std::string name;
  int expert, expert_tensor;
  bool sequence_parallel;
  std::string recompute;
};

class TensorParallelExpertsTest : public testing::TestWithParam<ExpertCase> {
 protected:
  static Config config() {
    Config config = divided_config(2, GetParam().sequence_parallel);
    config.num_experts = 4;
    config.moe_layer_freq = 2;
    config.moe_shared_expert_intermediate_size = 8;
    config.expert_model_parallel_size = GetParam().expert;
    config.expert_tensor_parallel_size = GetParam().expert_tensor;
    config.recompute_granularity = GetParam().recompute;
    return config;
  }

  static at::Tensor part_of(const std::string& name, const at::Tensor& whole, const LayerGroup& tensor) {
    const bool is_whole = name.find(".router.") != std::string::npos ||
                          (name.find(".experts.") != std::string::npos && GetParam().expert_tensor == 1);
    return is_whole ? whole : part_of_parameter(name, whole, tensor);
  }
};

TEST_P(TensorParallelExpertsTest, EqualOneProcess) {
  const Whole whole = run_whole(config());
  run_rank_threads(config(), 2, [&](const TrainContext& context) {
    const ModelParallel parallel = context.parallel.model_parallel(GetParam().sequence_parallel);
    GptChunk model(config(), parallel, whole_model(config()));
    scale_weights(model);
    const at::Tensor loss = token_loss_sum(model.forward(whole.tokens), whole.labels, whole.mask, parallel.tensor);
    loss.backward();
    EXPECT_NEAR(loss.item<double>(), whole.loss.item<double>(), 1e-10);
    for (const auto& parameter : model.named_parameters()) {
      const std::string& name = parameter.key();
      at::Tensor gradient = parameter.value().grad();
      gradient = gradient.defined() ? gradient : at::zeros_like(parameter.value());  // No token came.
      gradient = sum_over_tensor_ranks(gradient, {context.parallel.gradient_group(model.layout_of(name))});
      const at::Tensor wanted = part_of(name, whole.gradients.at(name), parallel.tensor);
      EXPECT_LT((gradient - wanted).norm().item<double>(), 1e-10 * std::max(1.0, wanted.norm().item<double>())) << name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, TensorParallelExpertsTest,
                         testing::Values(ExpertCase{"Divided", 1, 2, false, "none"},
                                         ExpertCase{"DividedSequence", 1, 2, true, "full"},
                                         ExpertCase{"WholeSequence", 1, 1, true, "selective"},
                                         ExpertCase{"OnTensorRanks", 2, 1, true, "full"}),
                         [](const auto& info) { return info.param.name; });

TEST(TensorParallel, SaysHowParametersLie) {
  for (const bool sequence_parallel : {false, true}) {
    Config config = divided_config(2, sequence_parallel);
    config.untie_embeddings_and_output_weights = true;
    run_tensor_ranks(config, [&](const ModelParallel& parallel) {
      const GptChunk model(config, parallel, whole_model(config));
      for (const auto& parameter : model.named_parameters()) {
        const bool is_norm = parameter.key().find("norm") != std::string::npos;
        const ParameterLayout layout = model.layout_of(parameter.key());
        EXPECT_FALSE(layout.is_expert) << parameter.key();
        EXPECT_EQ(layout.is_tensor_shard, !is_norm) << parameter.key();
        EXPECT_EQ(layout.is_sequence_partial, is_norm && sequence_parallel) << parameter.key();
      }
    });
    const GptChunk alone(config, whole_model(config));
    for (const auto& parameter : alone.named_parameters()) {
      EXPECT_FALSE(alone.layout_of(parameter.key()).is_tensor_shard) << parameter.key();
      EXPECT_FALSE(alone.layout_of(parameter.key()).is_sequence_partial) << parameter.key();
    }
  }
}

TEST(TensorParallel, WorksInBfloat16) {
  for (const bool sequence_parallel : {false, true}) {
    Config config = divided_config(2, sequence_parallel);
    const Whole whole = run_whole(config);
    config.params_dtype = "bfloat16";
    run_tensor_ranks(config, [&](const ModelParallel& parallel) {
      GptChunk model(config, parallel, whole_model(config));
      scale_weights(model);
      const at::Tensor loss = token_loss_sum(model.forward(whole.tokens), whole.labels, whole.mask, parallel.tensor);
      loss.backward();
      EXPECT_EQ(loss.scalar_type(), at::kFloat);
      EXPECT_NEAR(loss.item<double>() / whole.loss.item<double>(), 1, 0.02);
      for (const auto& parameter : model.named_parameters()) {
        EXPECT_EQ(parameter.value().grad().scalar_type(), at::kBFloat16) << parameter.key();
        EXPECT_TRUE(parameter.value().grad().isfinite().all().item<bool>()) << parameter.key();
      }
    });
  }
}

TEST(TensorParallel, RefusesARestWithTheNumbers) {
  Config config = divided_config(2, false);
  run_tensor_ranks(config, [&](const ModelParallel& parallel) {
    Config odd = config;
    odd.vocab_size = 13;
    try {
      GptChunk(odd, parallel, whole_model(odd));
      ADD_FAILURE() << "13 rows have been divided by 2";
    } catch (const UserError& error) {
      EXPECT_STREQ(error.what(),
                   "[model] a dimension that is divided over ranks must be a multiple of the parts = 2, got 13; for "
                   "example 14");
    }
  });
}

// What a collective makes of x on all ranks, and of gradients on all ranks; written with the tensors of all ranks at
// hand.
struct CollectiveCase {
  const char* name;
  at::Tensor (*apply)(const at::Tensor&, const LayerGroup&);
  at::Tensor (*wanted)(const std::vector<at::Tensor>& of_ranks, const LayerGroup&);
  at::Tensor (*wanted_back)(const std::vector<at::Tensor>& of_ranks, const LayerGroup&);
};

at::Tensor own(const std::vector<at::Tensor>& of_ranks, const LayerGroup& group) {
  return of_ranks.at(static_cast<std::size_t>(group.rank()));
}
at::Tensor added(const std::vector<at::Tensor>& of_ranks, const LayerGroup&) { return at::stack(of_ranks).sum(0); }
at::Tensor joined(const std::vector<at::Tensor>& of_ranks, const LayerGroup&) { return at::cat(of_ranks, 1); }
at::Tensor own_part(const std::vector<at::Tensor>& of_ranks, const LayerGroup& group) {
  return part_along(own(of_ranks, group), 1, group);
}
at::Tensor part_added(const std::vector<at::Tensor>& of_ranks, const LayerGroup& group) {
  return part_along(added(of_ranks, group), 1, group);
}

const CollectiveCase kCollectives[] = {
    {"copy", copy_to_tensor_ranks, own, added},      {"sum", sum_over_tensor_ranks, added, own},
    {"gather", gather_sequence, joined, part_added}, {"sum and split", sum_and_split_sequence, part_added, joined},
    {"split", split_sequence, own_part, joined},     {"join", join_sequence, joined, own_part},
};

// Small integers: exact in every type and order.
std::vector<at::Tensor> on_all_ranks(at::IntArrayRef sizes, int ranks, int salt, at::ScalarType dtype) {
  std::vector<at::Tensor> tensors;
  for (int rank = 0; rank < ranks; ++rank) {
    const at::Tensor values = at::arange(at::empty(sizes).numel()) * (2 * rank + 3) + salt;
    tensors.push_back(values.remainder(11).view(sizes).to(dtype));
  }
  return tensors;
}

TEST(TensorCollectives, MoveValuesAndGradients) {
  constexpr int kRanks = 3;
  Config config = divided_config(kRanks, false);
  config.num_attention_heads = 2 * kRanks;
  config.hidden_size = 12 * kRanks;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    run_tensor_ranks(config, [dtype](const ModelParallel& parallel) {
      const LayerGroup& group = parallel.tensor;
      for (const CollectiveCase& row : kCollectives) {
        const auto inputs = on_all_ranks({2, 6, 4}, kRanks, 1, dtype);
        // Neither contiguous.
        const at::Tensor x = own(inputs, group).transpose(0, 2).contiguous().transpose(0, 2).requires_grad_();
        const at::Tensor y = row.apply(x, group);
        EXPECT_TRUE(at::equal(y, row.wanted(inputs, group))) << row.name << " " << dtype;
        const auto gradients = on_all_ranks(y.sizes(), kRanks, 5, dtype);
        y.backward(own(gradients, group).transpose(0, 1).contiguous().transpose(0, 1));
        EXPECT_TRUE(at::equal(x.grad(), row.wanted_back(gradients, group))) << row.name << " " << dtype;
        EXPECT_TRUE(at::equal(x, own(inputs, group))) << row.name << " writes to its argument";
        EXPECT_FALSE(row.apply(x.detach(), group).requires_grad()) << row.name;
      }
    });
  }
}

TEST(TensorCollectives, AreNothingInAGroupOfOne) {
  const at::Tensor x = at::ones({1, 3, 2}).requires_grad_();
  for (const CollectiveCase& row : kCollectives) {
    EXPECT_TRUE(row.apply(x, {}).is_same(x)) << row.name;
  }
  EXPECT_FALSE(max_over_tensor_ranks(x, {}).requires_grad());
}

TEST(TensorCollectives, RefuseASequenceThatLeavesARest) {
  run_tensor_ranks(divided_config(2, true), [](const ModelParallel& parallel) {
    try {
      sum_and_split_sequence(at::ones({1, 7, 2}), parallel.tensor);
      ADD_FAILURE() << "7 tokens have been divided by 2";
    } catch (const UserError& error) {
      EXPECT_STREQ(error.what(),
                   "[sequence_parallel] tensor_model_parallel_size must divide the length of a sequence = 7, got 2; "
                   "for example 1");
    }
  });
}

struct LossCase {
  const char* name;
  std::vector<std::int64_t> labels;
  std::vector<float> mask;
  double scale;
};

// 12 columns over 3 ranks: 3, 4, 7 and 8 are at the edges of parts.
const LossCase kLosses[] = {
    {"all count", {0, 3, 4, 7, 8, 11}, {1, 1, 1, 1, 1, 1}, 1},
    {"some are masked", {0, 11, 4, 4, 5, 6}, {1, 0, 1, 0, 0, 1}, 1},
    {"none counts", {0, 1, 2, 3, 4, 5}, {0, 0, 0, 0, 0, 0}, 1},
    {"ignored labels", {-100, 3, -100, 8, 9, -100}, {1, 1, 0, 1, 1, 1}, 1},
    {"on one rank alone", {8, 9, 10, 11, 8, 9}, {1, 1, 1, 1, 1, 1}, 1},
    {"far beyond exp()", {0, 3, 4, 7, 8, 11}, {1, 1, 1, 1, 1, 1}, 5000},
};

TEST(VocabularyParallelLoss, EqualsThePlainOne) {
  constexpr int kRanks = 3;
  Config config = divided_config(kRanks, false);
  config.num_attention_heads = 2 * kRanks;
  config.hidden_size = 12 * kRanks;
  run_tensor_ranks(config, [](const ModelParallel& parallel) {
    for (const LossCase& row : kLosses) {
      const at::Tensor logits = ((at::arange(72, at::kDouble) * 2.7).sin() * row.scale).view({2, 3, 12});
      const at::Tensor labels = at::tensor(row.labels).view({2, 3}), mask = at::tensor(row.mask).view({2, 3});
      const at::Tensor whole = logits.clone().requires_grad_();
      const at::Tensor part = part_along(logits, 2, parallel.tensor).clone().requires_grad_();
      const at::Tensor wanted = token_loss_sum(whole, labels, mask);
      const at::Tensor loss = token_loss_sum(part, labels, mask, parallel.tensor);
      wanted.backward();
      loss.backward();
      EXPECT_NEAR(loss.item<double>(), wanted.item<double>(), 1e-12 * std::max(1.0, row.scale)) << row.name;
      EXPECT_TRUE(at::allclose(part.grad(), part_along(whole.grad(), 2, parallel.tensor), 1e-12, 1e-14)) << row.name;
    }
  });
}

TEST(VocabularyParallelLoss, RefusesWhatNoRankHas) {
  run_tensor_ranks(divided_config(2, false), [](const ModelParallel& parallel) {
    const at::Tensor labels = at::full({1, 2}, 12), weight = at::ones({6, 4});
    const auto message_of = [](const std::function<void()>& run) -> std::string {
      try {
        run();
      } catch (const UserError& error) {
        return error.what();
      }
      return "nothing thrown";
    };
    EXPECT_EQ(message_of([&] {
                token_loss_sum(at::ones({1, 2, 6}), labels, at::ones({1, 2}), parallel.tensor);
              }),
              "[model] labels must be from 0 to 11, or -100, got 12; for example 0");
    EXPECT_EQ(message_of([&] {
                GptChunk(divided_config(2, false), parallel, whole_model(divided_config(2, false))).forward(labels);
              }),
              "[model] tokens must be from 0 to 11, got 12; for example 0");
  });
}

}  // namespace
}  // namespace pretrain_gpt
