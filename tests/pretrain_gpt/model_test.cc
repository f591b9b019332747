// The model against an independent, slow formulation, and against itself under every division.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/layer_division.h"
#include "examples/pretrain_gpt/model/gpt_chunk.h"
#include "examples/pretrain_gpt/model/token_loss.h"
#include "examples/pretrain_gpt/optimizer.h"

namespace pretrain_gpt {
namespace {

using Parameters = std::map<std::string, at::Tensor>;

Config small_config(bool untied) {
  Config config;
  config.num_layers = 3;
  config.hidden_size = 16;
  config.num_attention_heads = 2;
  config.ffn_hidden_size = 24;
  config.seq_length = 6;
  config.vocab_size = 11;
  config.params_dtype = "float64";
  config.untie_embeddings_and_output_weights = untied;
  return config;
}

Parameters parameters_of(const GptChunk& chunk) {
  Parameters parameters;
  for (const auto& item : chunk.named_parameters()) {
    parameters.emplace(item.key(), item.value());
  }
  return parameters;
}

at::Tensor some_tokens(const Config& config, std::int64_t rows) {
  return (at::arange(rows * config.seq_length) * 7 % config.vocab_size).view({rows, config.seq_length});
}

// One token at a time, one head at a time, straight from the definitions.
class SlowModel {
 public:
  SlowModel(const Config& config, Parameters parameters) : config_(config), parameters_(std::move(parameters)) {}

  at::Tensor loss_sum(const at::Tensor& tokens, const at::Tensor& labels) const {
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (std::int64_t row = 0; row < tokens.size(0); ++row) {
      const at::Tensor logits = row_logits(tokens[row]);
      for (std::int64_t t = 0; t < tokens.size(1); ++t) {
        sum = sum + logits[t].exp().sum().log() - logits[t][labels[row][t].item<std::int64_t>()];
      }
    }
    return sum;
  }

 private:
  const at::Tensor& weight(const std::string& name) const { return parameters_.at(name + ".weight"); }

  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    return x / (x.square().mean(-1, true) + config_.norm_epsilon).sqrt() * weight(name);
  }

  at::Tensor row_logits(const at::Tensor& tokens) const {
    at::Tensor x = weight("embedding").index({tokens});
    for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
      const std::string name = "layers." + std::to_string(layer);
      x = x + attention(norm(x, name + ".attention_norm"), name + ".attention");
      const at::Tensor both = norm(x, name + ".mlp_norm").matmul(weight(name + ".mlp.gate_up").t());
      const at::Tensor gate = both.narrow(1, 0, config_.ffn_size());
      const at::Tensor up = both.narrow(1, config_.ffn_size(), config_.ffn_size());
      x = x + (gate * gate.sigmoid() * up).matmul(weight(name + ".mlp.down").t());
    }
    const std::string head = config_.untie_embeddings_and_output_weights ? "output" : "embedding";
    return norm(x, "final_norm").matmul(weight(head).t());
  }

  // The pair (x_i, x_{i + d/2}) as a complex number, times e^{i angle}.
  at::Tensor rotated(const at::Tensor& x, std::int64_t position) const {
    const std::int64_t half = x.size(0) / 2;
    std::vector<at::Tensor> first, second;
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) *
                           std::pow(config_.rotary_base, -2.0 * static_cast<double>(i) / static_cast<double>(2 * half));
      first.push_back(x[i] * std::cos(angle) - x[i + half] * std::sin(angle));
      second.push_back(x[i] * std::sin(angle) + x[i + half] * std::cos(angle));
    }
    return at::cat({at::stack(first), at::stack(second)});
  }

  at::Tensor attention(const at::Tensor& x, const std::string& name) const {
    const std::int64_t h = config_.hidden_size, d = h / config_.num_attention_heads, length = x.size(0);
    const at::Tensor qkv = x.matmul(weight(name + ".qkv").t());
    std::vector<at::Tensor> rows;
    for (std::int64_t t = 0; t < length; ++t) {
      std::vector<at::Tensor> heads;
      for (std::int64_t head = 0; head < config_.num_attention_heads; ++head) {
        const at::Tensor query = rotated(qkv[t].narrow(0, head * d, d), t);
        std::vector<at::Tensor> scores, values;
        for (std::int64_t s = 0; s <= t; ++s) {
          scores.push_back(query.dot(rotated(qkv[s].narrow(0, h + head * d, d), s)) /
                           std::sqrt(static_cast<double>(d)));
          values.push_back(qkv[s].narrow(0, 2 * h + head * d, d));
        }
        const at::Tensor powers = at::stack(scores).exp();
        heads.push_back((powers / powers.sum()).matmul(at::stack(values)));
      }
      rows.push_back(at::cat(heads));
    }
    return at::stack(rows).matmul(weight(name + ".proj").t());
  }

  Config config_;
  Parameters parameters_;
};

double relative_distance(const at::Tensor& got, const at::Tensor& wanted) {
  return ((got - wanted).norm() / wanted.norm()).item<double>();
}

class ModelTest : public testing::TestWithParam<bool> {};

TEST_P(ModelTest, MatchesTheSlowFormulation) {
  const Config config = small_config(GetParam());
  GptChunk model(config, whole_model(config));
  Parameters copies;
  for (auto& [name, parameter] : parameters_of(model)) {
    parameter.detach().mul_(name.find("norm") == std::string::npos ? 10.0 : 0.8);  // Far from linear.
    copies.emplace(name, parameter.detach().clone().requires_grad_());
  }
  const at::Tensor tokens = some_tokens(config, 2), labels = (tokens * 3 + 1) % config.vocab_size;

  const at::Tensor loss = token_loss_sum(model.forward(tokens), labels, at::ones(tokens.sizes()));
  const at::Tensor slow = SlowModel(config, copies).loss_sum(tokens, labels);
  loss.backward();
  slow.backward();

  EXPECT_LT(relative_distance(loss.detach(), slow.detach()), 1e-12);
  for (const auto& [name, parameter] : parameters_of(model)) {
    EXPECT_LT(relative_distance(parameter.grad(), copies.at(name).grad()), 1e-10) << name;
  }
}

TEST_P(ModelTest, IsTheSameUnderEveryDivision) {
  const Config config = small_config(GetParam());
  GptChunk whole(config, whole_model(config));
  const Parameters wanted = parameters_of(whole);
  at::Tensor hidden = some_tokens(config, 2);
  const at::Tensor logits = whole.forward(hidden);
  std::size_t found = 0;
  for (const Chunk& part : divide_layers(config, 3)) {
    GptChunk chunk(config, part);
    hidden = chunk.forward(hidden);
    for (const auto& [name, parameter] : parameters_of(chunk)) {
      EXPECT_TRUE(at::equal(parameter, wanted.at(name))) << name;
      ++found;
    }
  }
  EXPECT_TRUE(at::equal(hidden, logits));
  EXPECT_EQ(found, wanted.size() + (GetParam() ? 0 : 1));  // A tied weight is on the first and the last stage.
}

TEST_P(ModelTest, PredictsNothingAtTheStart) {
  Config config = small_config(GetParam());
  config.vocab_size = 256;
  config.params_dtype = "float32";
  GptChunk model(config, whole_model(config));
  const at::Tensor tokens = some_tokens(config, 4), labels = (tokens + 1) % config.vocab_size;
  const at::Tensor loss = token_loss_sum(model.forward(tokens), labels, at::ones(tokens.sizes()));
  EXPECT_NEAR(loss.item<double>() / static_cast<double>(tokens.numel()), std::log(256.0), 0.05);
}

INSTANTIATE_TEST_SUITE_P(Head, ModelTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Untied" : "Tied"; });

TEST(Model, DependsOnTheSeedAndNotOnTheType) {
  Config config = small_config(true);
  const Parameters in_double = parameters_of(GptChunk(config, whole_model(config)));
  config.params_dtype = "float32";
  const Parameters in_float = parameters_of(GptChunk(config, whole_model(config)));
  config.seed = 5;
  const Parameters other_seed = parameters_of(GptChunk(config, whole_model(config)));
  const std::string name = "layers.1.attention.qkv.weight";
  EXPECT_TRUE(at::equal(in_double.at(name).to(at::kFloat), in_float.at(name)));
  EXPECT_FALSE(at::equal(in_float.at(name), other_seed.at(name)));
  EXPECT_FALSE(at::equal(in_float.at(name), in_float.at("layers.2.attention.qkv.weight")));
}

TEST(Model, ASharedWeightIsOneTensor) {
  const Config config = small_config(false);
  const std::vector<Chunk> parts = divide_layers(config, 2);
  GptChunk first(config, parts[0]);
  GptChunk last(config, parts[1], first.embedding_weight());
  EXPECT_TRUE(last.embedding_weight().is_same(first.embedding_weight()));
  const auto optimizer = make_optimizer(config, {&first, &last});
  std::size_t parameters = 0;
  for (const auto& group : optimizer->param_groups()) {
    parameters += group.params().size();
  }
  EXPECT_EQ(parameters, first.parameters().size() + last.parameters().size() - 1);
}

TEST(TokenLoss, LeavesMaskedTokensOut) {
  const at::Tensor logits = at::zeros({1, 3, 4}), labels = at::zeros({1, 3}, at::kLong);
  const at::Tensor mask = at::tensor({1.f, 0.f, 1.f}).view({1, 3});
  EXPECT_NEAR(token_loss_sum(logits, labels, mask).item<double>(), 2 * std::log(4.0), 1e-6);
  EXPECT_EQ(token_loss_weight(mask), 2);
}

TEST(LearningRate, WarmsUpThenDecays) {
  Config config;
  config.train_iters = 100;
  config.lr = 1;
  config.min_lr = 0.1;
  config.lr_warmup_iters = 10;
  EXPECT_DOUBLE_EQ(learning_rate(config, 1), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 10), 1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 55), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(config, 100), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 150), 0.1);
}

TEST(FieldReport71, NoWarmUpStartsAtFullRate) {
  Config config;
  config.train_iters = 1000000;
  config.lr_warmup_iters = 0;
  EXPECT_NEAR(learning_rate(config, 1), config.lr, 1e-9);
}

}  // namespace
}  // namespace pretrain_gpt
