// A mixture of experts against one token and one expert at a time, on one rank and on several.
#include "examples/pretrain_gpt/model/moe/moe_mlp.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "examples/pretrain_gpt/error.h"
#include "tests/pretrain_gpt/moe_case.h"

namespace pretrain_gpt {
namespace {

constexpr double kTolerance = 1e-10;

struct Reference {
  std::vector<at::Tensor> outputs, input_gradients;  // By data-parallel rank.
  NamedValues gradients;                             // Their sums.
};

Reference reference(const MoeCase& test) {
  const Config config = config_of(test);
  SlowMoe slow(config, copies_of(values_of(*make_moe(test))));
  Reference result;
  for (int i = 0; i < test.division.data_size(); ++i) {
    const at::Tensor x = input_of(config, i).requires_grad_();
    const SlowMoe::Result moe = slow.forward(x);
    ((moe.output * probe_of(config, i)).sum() + kAuxiliaryScale * config.moe_aux_loss_coeff * moe.auxiliary_loss)
        .backward();
    result.outputs.push_back(moe.output.detach());
    result.input_gradients.push_back(x.grad());
  }
  for (const auto& [name, value] : slow.values()) {
    if (value.requires_grad()) {
      result.gradients.emplace(name, value.grad().defined() ? value.grad() : at::zeros_like(value));
    }
  }
  return result;
}

// The gradients of all ranks in the places that they have in the whole parameters.
class WholeGradients {
 public:
  explicit WholeGradients(const NamedValues& like) {
    for (const auto& [name, value] : like) {
      sums_.emplace(name, at::zeros_like(value));
    }
  }

  void add(const MoeMlp& moe, const ModelParallel& parallel) {
    const std::lock_guard lock(mutex_);
    for (const auto& item : moe.named_parameters()) {
      if (!item.value().grad().defined()) {
        continue;
      }
      const ParameterLayout layout = moe.layout_of(item.key());
      const LayerGroup& parts = layout.is_expert ? parallel.expert_tensor : parallel.tensor;
      if (layout.is_tensor_shard) {
        place(item.key(), parts).add_(item.value().grad().view_as(place(item.key(), parts)));
      } else {
        const bool is_copy = !layout.is_expert && !layout.is_sequence_partial;
        sums_.at(item.key()).add_(item.value().grad(), is_copy ? 1.0 / parallel.tensor.size() : 1.0);
      }
    }
  }

  const NamedValues& sums() const { return sums_; }

 private:
  // [2, part of the width, hidden] or [hidden, part of the width]
  at::Tensor place(const std::string& name, const LayerGroup& parts) {
    const bool is_down = name.ends_with("down.weight");
    const at::Tensor& whole = sums_.at(name);
    const at::Tensor blocks = is_down ? whole : whole.view({2, whole.size(0) / 2, whole.size(1)});
    return blocks.chunk(parts.size(), 1)[static_cast<std::size_t>(parts.rank())];
  }

  std::mutex mutex_;
  NamedValues sums_;
};

class MoeTest : public testing::TestWithParam<MoeCase> {};

TEST_P(MoeTest, MatchesTheSlowFormulation) {
  const MoeCase& test = GetParam();
  const Config config = config_of(test);
  const Reference wanted = reference(test);
  WholeGradients gradients(wanted.gradients);
  run_test_ranks(test.division.world, [&](const TestRank& rank) {
    const ModelParallel parallel = groups_of(test.division, rank);
    const auto moe = make_moe(test, parallel);
    const auto data = static_cast<std::size_t>(test.division.data_index(rank.rank));
    const int data_index = static_cast<int>(data);
    const at::Tensor x = part_of_sequence(input_of(config, data_index), parallel).clone().requires_grad_();
    const at::Tensor output = moe->forward(x);
    (output * part_of_sequence(probe_of(config, data_index), parallel)).sum().backward();

    EXPECT_LT(relative_distance(output.detach(), part_of_sequence(wanted.outputs[data], parallel)), kTolerance);
    EXPECT_LT(relative_distance(x.grad(), part_of_sequence(wanted.input_gradients[data], parallel)), kTolerance);
    gradients.add(*moe, parallel);
  });
  for (const auto& [name, gradient] : wanted.gradients) {
    EXPECT_LT(relative_distance(gradients.sums().at(name), gradient), kTolerance) << name;
  }
}

std::vector<MoeCase> moe_cases() {
  std::vector<MoeCase> cases;
  for (const Division& division :
       {kAlone, kEp2, kEp4, kEp8, kEp2Edp2, kTp2, kTp2Ep2, kTp2Sequence, kTp2SequenceEp2, kEtp1, kEtp1Ep2, kEtp1Ep4}) {
    cases.push_back({division});
  }
  // Experts, and whole ranks, without tokens.
  for (const Division& division : {kAlone, kEp2, kEp4, kTp2SequenceEp2, kEtp1Ep4}) {
    cases.push_back({division, Choices::kSomeGetNone});
    cases.push_back({division, Choices::kLastHalfGetsNone});
    cases.push_back({division, Choices::kOneGetsAll, 1});
  }
  // Without a shared expert, and more choices.
  for (const Division& division : {kAlone, kEp2, kTp2Ep2, kEtp1Ep2}) {
    cases.push_back({division, Choices::kFree, 3, 0});
    cases.push_back({division, Choices::kFree, 8, 0});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Divisions, MoeTest, testing::ValuesIn(moe_cases()), case_name);

class Arrived : public PendingTensors {
 public:
  explicit Arrived(Tensors tensors) : tensors_(std::move(tensors)) {}
  Tensors wait() override { return tensors_; }

 private:
  Tensors tensors_;
};

// For one rank, and another way to work: a token travels once, and its copies are made where the experts are.
class CopyingDispatcher : public TokenDispatcher {
 public:
  explicit CopyingDispatcher(std::int64_t num_experts) : num_experts_(num_experts) {}

  Tensors prepare(const at::Tensor& tokens, const Routing& routing) override {
    return {tokens, routing.weights, routing.experts};
  }
  std::unique_ptr<PendingTensors> exchange_counts(const Tensors& list) override { return as_they_are(list); }
  std::unique_ptr<PendingTensors> dispatch(const Tensors& list, std::any&) override { return as_they_are(list); }
  std::unique_ptr<PendingTensors> dispatch_back(const Tensors& gradients, const std::any&) override {
    return as_they_are(gradients);
  }
  ExpertRows arrived(const Tensors& list) override {
    ExpertRows result;
    Tensors rows;
    for (std::int64_t e = 0; e < num_experts_; ++e) {
      rows.push_back(list[0].index_select(0, tokens_of(list, e)));
      result.counts.push_back(rows.back().size(0));
    }
    result.rows = at::cat(rows);
    return result;
  }
  Tensors departing(const Tensors& list, const ExpertRows& rows, const at::Tensor& outputs) override {
    const std::vector<at::Tensor> parts = outputs.split_with_sizes(rows.counts);
    at::Tensor sum = at::zeros_like(list[0]);
    for (std::int64_t e = 0; e < num_experts_; ++e) {
      const at::Tensor tokens = tokens_of(list, e);
      const at::Tensor weights = (list[1] * list[2].eq(e)).sum(1).index_select(0, tokens);
      sum = sum.index_add(0, tokens, parts[static_cast<std::size_t>(e)] * weights.unsqueeze(1));
    }
    return {sum};
  }
  std::unique_ptr<PendingTensors> combine(const Tensors& list, std::any&) override { return as_they_are(list); }
  std::unique_ptr<PendingTensors> combine_back(const Tensors& gradients, const std::any&) override {
    return as_they_are(gradients);
  }
  at::Tensor finish(const Tensors& list) override { return list[0]; }

 private:
  static std::unique_ptr<PendingTensors> as_they_are(const Tensors& list) { return std::make_unique<Arrived>(list); }
  static at::Tensor tokens_of(const Tensors& list, std::int64_t expert) {
    return list[2].eq(expert).any(1).nonzero().flatten();
  }

  std::int64_t num_experts_;
};

TEST(Moe, TakesAnotherDispatcher) {
  const Config config = moe_config();
  MoeMlp one(config, {}, "layers.0.mlp");
  MoeMlp other(config, {}, "layers.0.mlp", std::make_unique<CopyingDispatcher>(config.num_experts));
  const at::Tensor x = input_of(config, 0).requires_grad_(), y = x.detach().requires_grad_();
  const at::Tensor wanted = one.forward(x), got = other.forward(y), probe = probe_of(config, 0);
  (wanted * probe).sum().backward();
  (got * probe).sum().backward();
  EXPECT_LT(relative_distance(got.detach(), wanted.detach()), 1e-13);
  EXPECT_LT(relative_distance(y.grad(), x.grad()), 1e-13);
  EXPECT_LT(relative_distance(other.router().parameters()[0].grad(), one.router().parameters()[0].grad()), 1e-12);
}

TEST(Moe, WorksInBfloat16OverGloo) {
  Config config = moe_config();
  const auto in_double = make_moe({kAlone});
  config.params_dtype = "bfloat16";
  run_test_ranks(2, [&](const TestRank& rank) {
    MoeMlp moe(config, groups_of(kEp2, rank), "layers.0.mlp");
    for (const auto& item : moe.named_parameters()) {
      item.value().detach().copy_(in_double->named_parameters()[item.key()].detach());
    }
    const at::Tensor x = input_of(config, rank.rank).to(at::kBFloat16).requires_grad_();
    const at::Tensor output = moe.forward(x);
    output.sum().backward();
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
    const at::Tensor wanted = in_double->forward(x.detach().to(at::kDouble)).detach();
    EXPECT_LT(relative_distance(output.detach().to(at::kDouble), wanted), 0.03);
  });
}

TEST(Moe, NeedsNoGradients) {
  const auto moe = make_moe({kAlone});
  const at::Tensor x = input_of(moe_config(), 0);
  const at::Tensor wanted = moe->forward(x);
  const at::NoGradGuard evaluation;
  const at::Tensor output = moe->forward(x);
  EXPECT_FALSE(output.requires_grad());
  EXPECT_TRUE(at::equal(output, wanted.detach()));
}

TEST(Moe, TheAuxiliaryLossIsAveragedOverTheStepUnlessToldOtherwise) {
  Config config = moe_config();
  config.micro_batch_size = 2;
  config.global_batch_size = 48;
  config.data_parallel_size = 3;
  MoeMlp moe(config, {}, "layers.0.mlp");
  const at::Tensor x = input_of(config, 0);
  moe.forward(x).sum().backward();
  const double by_default = moe.router().counters().auxiliary_loss.item<double>();
  moe.router().reset_counters();
  moe.router().set_auxiliary_loss_scale(1);
  moe.forward(x).sum().backward();
  EXPECT_NEAR(by_default, moe.router().counters().auxiliary_loss.item<double>() / 24, 1e-14);
}

// Six experts have no token; their weights decay like those of the others.
TEST(Moe, ExpertsWithoutTokensHaveZerosAsGradient) {
  const Config config = moe_config();
  MoeMlp moe(config, {}, "layers.0.mlp");
  moe.forward(some_values({1, 1, config.hidden_size}, 0.3)).sum().backward();
  int zeros = 0;
  for (const auto& parameter : moe.named_parameters()) {
    ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
    zeros += parameter.key().ends_with("down.weight") && parameter.value().grad().norm().item<double>() == 0;
  }
  EXPECT_EQ(zeros, 6);
}

TEST(Moe, LayoutsSayWhatARankHolds) {
  run_test_ranks(2, [&](const TestRank& rank) {
    const auto divided = make_moe({kTp2}, groups_of(kTp2, rank));
    EXPECT_TRUE(divided->layout_of("experts.3.down.weight").is_expert);
    EXPECT_TRUE(divided->layout_of("experts.3.down.weight").is_tensor_shard);
    EXPECT_TRUE(divided->layout_of("shared_expert.down.weight").is_tensor_shard);
    EXPECT_FALSE(divided->layout_of("shared_expert.down.weight").is_expert);
    EXPECT_FALSE(divided->layout_of("router.weight").is_sequence_partial);
  });
  run_test_ranks(2, [&](const TestRank& rank) {
    const auto whole = make_moe({kEtp1Ep2}, groups_of(kEtp1Ep2, rank));
    EXPECT_FALSE(whole->layout_of("experts.3.down.weight").is_tensor_shard);
    EXPECT_TRUE(whole->layout_of("router.weight").is_sequence_partial);
  });
}

void expect_refusal(const TestRank& rank, const Division& division, const std::string& message) {
  try {
    MoeMlp(moe_config(), groups_of(division, rank), "layers.3.mlp");
    ADD_FAILURE() << division.name << " was taken";
  } catch (const UserError& error) {
    EXPECT_EQ(error.what(), message);
  }
}

TEST(MoeRefusals, NameTheSizes) {
  run_test_ranks(3, [](const TestRank& rank) {
    expect_refusal(rank, {"Ep3", 1, 1, 3, 3},
                   "[layers.3.mlp] expert_model_parallel_size must divide num_experts = 8, got 3; for example 1");
  });
  run_test_ranks(2, [](const TestRank& rank) {
    expect_refusal(rank, {"NoSequenceParallel", 2, 1, 1, 2},
                   "[layers.3.mlp] sequence_parallel must be true where expert_tensor_parallel_size = 1 and "
                   "tensor_model_parallel_size = 2, got false; for example true");
    ModelParallel parallel;
    parallel.expert_tensor = rank.group_by("all", [](int) { return 0; });
    try {
      MoeMlp(moe_config(), parallel, "layers.3.mlp");
      ADD_FAILURE() << "was taken";
    } catch (const UserError& error) {
      EXPECT_STREQ(error.what(),
                   "[layers.3.mlp] expert_tensor_parallel_size must be 1 or tensor_model_parallel_size = 1, got 2; for "
                   "example 1");
    }
  });
}

}  // namespace
}  // namespace pretrain_gpt
