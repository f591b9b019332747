// A chunk in phases, recomputed and with dropout, against the same chunk as one function.
#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "examples/pretrain_gpt/layer_division.h"
#include "examples/pretrain_gpt/model/gpt_chunk.h"
#include "examples/pretrain_gpt/model/token_loss.h"
#include "tests/pretrain_gpt/rank_threads.h"

namespace pretrain_gpt {
namespace {

Config layered_config(const std::string& recompute, int moe_layer_freq = 0) {
  Config config;
  config.num_layers = 3;
  config.hidden_size = 16;
  config.num_attention_heads = 2;
  config.ffn_hidden_size = 24;
  config.seq_length = 6;
  config.vocab_size = 11;
  config.params_dtype = "float64";
  config.micro_batch_size = 2;
  config.global_batch_size = 2;
  config.recompute_granularity = recompute;
  if (moe_layer_freq > 0) {
    config.num_experts = 4;
    config.moe_layer_freq = moe_layer_freq;
  }
  return config;
}

at::Tensor some_tokens(const Config& config, int salt = 0) {
  return (at::arange(2 * config.seq_length) * (7 + salt) % config.vocab_size).view({2, config.seq_length});
}

using Gradients = std::map<std::string, at::Tensor>;

// And clears them. Undefined ones are left out.
Gradients take_gradients(const GptChunk& chunk) {
  Gradients gradients;
  for (const auto& parameter : chunk.named_parameters()) {
    at::Tensor& gradient = parameter.value().mutable_grad();
    if (gradient.defined()) {
      gradients[parameter.key()] = gradient;
    }
    gradient = at::Tensor();
  }
  return gradients;
}

void expect_equal(const Gradients& got, const Gradients& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, gradient] : wanted) {
    EXPECT_TRUE(at::equal(got.at(name), gradient)) << name;
  }
}

struct Result {
  at::Tensor output;
  Gradients gradients;
};

// A gradient that tells elements apart.
at::Tensor gradient_like(const at::Tensor& output) {
  return (at::arange(output.numel(), at::kDouble) * 0.7).sin().view(output.sizes()).to(output.scalar_type());
}

Result run_forward(GptChunk& chunk, const at::Tensor& input, std::int64_t micro_batch = 0) {
  const at::Tensor output = chunk.forward(input, micro_batch);
  output.backward(gradient_like(output));
  return {output.detach(), take_gradients(chunk)};
}

Tensors cut(const Tensors& tensors) {
  Tensors leaves;
  for (const at::Tensor& tensor : tensors) {
    leaves.push_back(tensor.detach().requires_grad_(tensor.requires_grad()));
  }
  return leaves;
}

void expect_declared(const std::optional<std::vector<TensorForm>>& declared, const Tensors& tensors,
                     const std::string& phase) {
  if (!declared) {
    return;
  }
  ASSERT_EQ(tensors.size(), declared->size()) << phase;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorForm& form = declared->at(i);
    EXPECT_EQ(tensors[i].scalar_type(), form.dtype.value_or(tensors[i].scalar_type())) << phase;
    ASSERT_EQ(tensors[i].dim(), static_cast<std::int64_t>(form.sizes.value().size())) << phase;
    for (std::int64_t d = 0; d < tensors[i].dim(); ++d) {
      EXPECT_EQ(tensors[i].size(d), form.sizes->at(d).value_or(tensors[i].size(d))) << phase;
    }
  }
}

// What a runtime does with phases: graphs are cut between them, backward runs them in reverse. They take and give what
// they declare.
class CutPhases {
 public:
  explicit CutPhases(std::vector<ModelPhase> phases) : phases_(std::move(phases)) {}

  Tensors forward(Tensors values) {
    for (const ModelPhase& phase : phases_) {
      Step step{cut(values), {}, {0, {}}};
      step.outputs =
          phase.compute ? phase.compute(step.inputs, step.state) : phase.exchange(step.inputs, step.state)->wait();
      if (!phase.compute && !phase.exchange_back) {
        std::copy(step.inputs.begin(), step.inputs.end(), step.outputs.begin());
      }
      expect_declared(phase.takes, step.inputs, phase.name);
      expect_declared(phase.gives, step.outputs, phase.name);
      values = step.outputs;
      steps_.push_back(std::move(step));
    }
    return cut(values);
  }

  void backward(Tensors gradients) {
    for (std::size_t i = phases_.size(); i-- > 0;) {
      Step& step = steps_[i];
      gradients = phases_[i].compute         ? back_through(step, gradients)
                  : phases_[i].exchange_back ? phases_[i].exchange_back(gradients, step.state)->wait()
                                             : Tensors(gradients.begin(), gradients.begin() + step.inputs.size());
    }
  }

 private:
  struct Step {
    Tensors inputs, outputs;
    PhaseState state;
  };

  static Tensors back_through(const Step& step, const Tensors& gradients) {
    Tensors roots, root_gradients, input_gradients;
    for (std::size_t i = 0; i < step.outputs.size(); ++i) {
      if (gradients[i].defined() && step.outputs[i].requires_grad()) {
        roots.push_back(step.outputs[i]);
        root_gradients.push_back(gradients[i]);
      }
    }
    torch::autograd::backward(roots, root_gradients);
    for (const at::Tensor& input : step.inputs) {
      input_gradients.push_back(input.grad());
    }
    return input_gradients;
  }

  std::vector<ModelPhase> phases_;
  std::vector<Step> steps_;
};

std::vector<std::string> names_of(const std::vector<ModelPhase>& phases) {
  std::vector<std::string> names;
  for (const ModelPhase& phase : phases) {
    names.push_back(phase.name);
  }
  return names;
}

class PhasesTest : public testing::TestWithParam<int> {};  // moe_layer_freq, 0: dense.

TEST_P(PhasesTest, EqualForwardToTheBit) {
  const Config config = layered_config("none", GetParam());
  GptChunk chunk(config, whole_model(config));
  const Result wanted = run_forward(chunk, some_tokens(config));
  CutPhases phases(chunk.phases());
  const at::Tensor output = phases.forward({some_tokens(config)}).at(0);
  phases.backward({gradient_like(output)});
  EXPECT_TRUE(at::equal(output.detach(), wanted.output));
  expect_equal(take_gradients(chunk), wanted.gradients);
}

TEST_P(PhasesTest, RecomputeChangesNothing) {
  const Config config = layered_config("none", GetParam());
  GptChunk kept(config, whole_model(config));
  const Result wanted = run_forward(kept, some_tokens(config));
  for (const std::string granularity : {"selective", "full"}) {
    const Config again = layered_config(granularity, GetParam());
    GptChunk chunk(again, whole_model(again));
    const Result got = run_forward(chunk, some_tokens(again));
    EXPECT_TRUE(at::equal(got.output, wanted.output));
    expect_equal(got.gradients, wanted.gradients);
  }
}

TEST_P(PhasesTest, ChunksEndInOneTensor) {
  const Config config = layered_config("none", GetParam());
  GptChunk whole(config, whole_model(config));
  at::Tensor hidden = some_tokens(config);
  const at::Tensor logits = whole.forward(hidden);
  for (const Chunk& part : divide_layers(config, 3)) {
    GptChunk chunk(config, part);
    CutPhases phases(chunk.phases());
    const Tensors outputs = phases.forward({hidden});
    ASSERT_EQ(outputs.size(), 1U);
    hidden = outputs[0];
  }
  EXPECT_TRUE(at::equal(hidden, logits));
}

INSTANTIATE_TEST_SUITE_P(Layers, PhasesTest, testing::Values(0, 1, 2), [](const auto& info) {
  return info.param == 0 ? std::string("Dense") : "MoeEvery" + std::to_string(info.param);
});

TEST(Phases, AreNamedAndMarked) {
  for (const std::string granularity : {"none", "selective", "full"}) {
    const Config config = layered_config(granularity, 2);
    GptChunk chunk(config, whole_model(config));
    const std::vector<ModelPhase> phases = chunk.phases();
    EXPECT_EQ(names_of(phases),
              (std::vector<std::string>{"embedding", "0.attention", "0.counts", "0.dispatch", "0.experts", "0.combine",
                                        "1.attention", "1.mlp", "2.attention", "2.counts", "2.dispatch", "2.experts",
                                        "2.combine", "head"}));
    for (const ModelPhase& phase : phases) {
      const bool attention = phase.name.ends_with("attention");
      const bool feed_forward = phase.name.ends_with("mlp") || phase.name.ends_with("experts");
      EXPECT_EQ(phase.recompute, granularity == "full"        ? attention || feed_forward
                                 : granularity == "selective" ? attention
                                                              : false)
          << phase.name;
    }
  }
}

// What travels between a router and the end of its layer is the dispatcher's own.
TEST(Phases, DeclareHiddenStatesWhereTheseAreAllThatTheyHandOver) {
  const Config config = layered_config("none", 2);
  GptChunk chunk(config, whole_model(config));
  std::vector<std::string> taking, giving;
  for (const ModelPhase& phase : chunk.phases()) {
    if (phase.takes) {
      taking.push_back(phase.name);
    }
    if (phase.gives) {
      giving.push_back(phase.name);
      EXPECT_EQ(phase.gives->at(0).dtype, at::kDouble);
      EXPECT_EQ(phase.gives->at(0).sizes,
                (std::vector<std::optional<std::int64_t>>{std::nullopt, std::nullopt, config.hidden_size}));
    }
  }
  EXPECT_EQ(taking, (std::vector<std::string>{"embedding", "0.attention", "1.mlp", "2.attention"}));
  EXPECT_EQ(giving, (std::vector<std::string>{"embedding", "1.attention", "1.mlp"}));
}

TEST(Phases, OfAMiddleChunkWithExpertsEndByAddingTheirOutput) {
  const Config config = layered_config("none", 1);
  GptChunk chunk(config, divide_layers(config, 3)[1]);
  EXPECT_EQ(names_of(chunk.phases()),
            (std::vector<std::string>{"1.attention", "1.counts", "1.dispatch", "1.experts", "1.combine", "output"}));
  EXPECT_TRUE(chunk.phases().back().gives);
}

TEST(Phases, CostWhatTheirProductsCost) {
  const Config config = layered_config("none");
  GptChunk chunk(config, whole_model(config));
  const auto phases = chunk.phases();
  const double attention = 4.0 * 16 * 16 + 6 * 16;
  EXPECT_DOUBLE_EQ(phases[1].forward, 1);
  EXPECT_DOUBLE_EQ(phases[1].backward_input, (4.0 * 16 * 16 + 2 * 6 * 16) / attention);
  EXPECT_DOUBLE_EQ(phases[1].backward_weight, 4.0 * 16 * 16 / attention);
  EXPECT_DOUBLE_EQ(phases[2].forward, 3.0 * 16 * 24 / attention);
  EXPECT_DOUBLE_EQ(phases.back().forward, 11.0 * 16 / attention);
}

Config dropout_config(const std::string& recompute) {
  Config config = layered_config(recompute);
  config.hidden_dropout = 0.1;
  config.attention_dropout = 0.3;
  return config;
}

TEST(FieldReport41, RecomputedDropoutIsThatOfTheLoss) {
  const Config config = dropout_config("none");
  GptChunk kept(config, whole_model(config));
  kept.set_step(7);
  const Result wanted = run_forward(kept, some_tokens(config), 3);
  for (const std::string granularity : {"selective", "full"}) {
    const Config again = dropout_config(granularity);
    GptChunk chunk(again, whole_model(again));
    chunk.set_step(7);
    // Another micro-batch between a forward and its backward.
    const at::Tensor output = chunk.forward(some_tokens(again), 3);
    chunk.forward(some_tokens(again, 1), 4);
    output.backward(gradient_like(output));
    EXPECT_TRUE(at::equal(output.detach(), wanted.output));
    expect_equal(take_gradients(chunk), wanted.gradients);
  }
}

TEST(FieldReport43, DropoutDependsOnNeitherOrderNorDivision) {
  const Config config = dropout_config("none");
  GptChunk whole(config, whole_model(config));
  whole.set_step(2);
  const at::Tensor first = whole.forward(some_tokens(config), 0), second = whole.forward(some_tokens(config), 1);
  for (const int stages : {2, 3}) {
    std::vector<std::unique_ptr<GptChunk>> chunks;
    for (const Chunk& part : divide_layers(config, stages)) {
      chunks.push_back(std::make_unique<GptChunk>(config, part));
      chunks.back()->set_step(2);
    }
    at::Tensor hidden_second = some_tokens(config), hidden_first = some_tokens(config);
    for (const auto& chunk : chunks) {
      hidden_second = chunk->forward(hidden_second, 1);
      hidden_first = chunk->forward(hidden_first, 0);
    }
    EXPECT_TRUE(at::equal(hidden_first, first));
    EXPECT_TRUE(at::equal(hidden_second, second));
  }
  EXPECT_FALSE(at::equal(first, second));
}

TEST(DropoutTest, DiffersByStepSeedAndLayerAndIsOffInEvaluation) {
  Config config = dropout_config("none");
  const at::Tensor tokens = some_tokens(config);
  const auto output = [&tokens](const Config& with, std::int64_t step, bool is_training) {
    GptChunk chunk(with, whole_model(with));
    chunk.set_step(step);
    chunk.train(is_training);
    return chunk.forward(tokens).detach();
  };
  const at::Tensor plain = output(layered_config("none"), 0, true);
  EXPECT_TRUE(at::equal(output(config, 0, false), plain));
  EXPECT_TRUE(at::equal(output(config, 0, true), output(config, 0, true)));
  EXPECT_FALSE(at::equal(output(config, 0, true), output(config, 1, true)));
  EXPECT_FALSE(at::equal(output(config, 0, true), plain));

  const at::Tensor x = at::ones({100, 100});
  const ForwardPass pass{.step = 1, .micro_batch = 2};
  const at::Tensor mask = Dropout(config, 0).apply(x, 0.25, pass, "mlp", 0);
  EXPECT_NEAR(mask.mean().item<double>(), 1, 0.03);
  EXPECT_TRUE(mask.eq(0).logical_or((mask - 1 / 0.75).abs().lt(1e-6)).all().item<bool>());
  EXPECT_TRUE(at::equal(mask, Dropout(config, 0).apply(x, 0.25, pass, "mlp", 0)));
  EXPECT_FALSE(at::equal(mask, Dropout(config, 1).apply(x, 0.25, pass, "mlp", 0)));
  EXPECT_FALSE(at::equal(mask, Dropout(config, 0).apply(x, 0.25, pass, "attention", 0)));
  EXPECT_FALSE(at::equal(mask, Dropout(config, 0).apply(x, 0.25, pass, "mlp", 1)));
  config.seed += 1;
  EXPECT_FALSE(at::equal(mask, Dropout(config, 0).apply(x, 0.25, pass, "mlp", 0)));
}

// So little dropout that nothing is dropped: the attention that is written out against the library's.
TEST(DropoutTest, LeavesTheRestOfAttentionAsItIs) {
  Config config = layered_config("none");
  GptChunk plain(config, whole_model(config));
  const Result wanted = run_forward(plain, some_tokens(config));
  config.attention_dropout = 1e-15;
  GptChunk chunk(config, whole_model(config));
  const Result got = run_forward(chunk, some_tokens(config));
  EXPECT_TRUE(at::allclose(got.output, wanted.output, 1e-12, 1e-12));
  for (const auto& [name, gradient] : wanted.gradients) {
    EXPECT_LT(((got.gradients.at(name) - gradient).norm() / gradient.norm()).item<double>(), 1e-10) << name;
  }
}

TEST(DropoutTest, TensorRanksHoldTheSameBetweenRegionsAndDropDifferentProbabilities) {
  Config config = dropout_config("full");
  config.vocab_size = 12;
  config.tensor_model_parallel_size = 2;
  for (const bool sequence_parallel : {false, true}) {
    config.sequence_parallel = sequence_parallel;
    std::vector<at::Tensor> hidden(2);
    std::vector<Gradients> kept(2), recomputed(2);
    run_rank_threads(config, 2, [&](const TrainContext& context) {
      const ModelParallel parallel = context.parallel.model_parallel(sequence_parallel);
      const auto rank = static_cast<std::size_t>(parallel.tensor.rank());
      const auto run = [&](const std::string& granularity) {
        Config with = config;
        with.recompute_granularity = granularity;
        GptChunk chunk(with, parallel, divide_layers(with, 2)[0]);
        const Result result = run_forward(chunk, some_tokens(config));
        hidden[rank] = result.output;
        return result.gradients;
      };
      kept[rank] = run("none");
      recomputed[rank] = run("full");
    });
    EXPECT_EQ(at::equal(hidden[0], hidden[1]), !sequence_parallel);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      expect_equal(recomputed[rank], kept[rank]);
    }
  }
}

// Bytes of CPU tensors that this thread has made and not freed.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override { bytes_ += size; }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_ = 0;
};

std::int64_t bytes_kept(const std::string& granularity) {
  Config config = layered_config(granularity);
  config.hidden_size = 64;
  config.ffn_hidden_size = 192;
  config.seq_length = 64;
  GptChunk chunk(config, divide_layers(config, 3)[1]);
  const at::Tensor input = at::ones({2, 64, 64}, at::kDouble).requires_grad_();
  const auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
  const at::Tensor output = chunk.forward(input);
  return live->bytes() - static_cast<std::int64_t>(output.nbytes());
}

TEST(Recompute, KeepsLess) {
  const std::int64_t none = bytes_kept("none"), selective = bytes_kept("selective"), full = bytes_kept("full");
  const std::int64_t hidden = 2 * 64 * 64 * 8;
  EXPECT_LT(selective, none);
  EXPECT_LT(full, selective);
  EXPECT_LE(full, 3 * hidden / 2);  // What attention hands to the MLP; the input is the caller's.
}

}  // namespace
}  // namespace pretrain_gpt
