// One step of a model with experts in float64 on 8 processes, in every parallel layout and under every schedule, with
// and without overlap and recompute, beside plain autograd over the whole model in one process: loss, every gradient,
// the norm, and equal copies after steps of the optimizer.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "examples/pretrain_gpt/optimizer.h"
#include "tests/libtorch_host/trainer_case.h"

namespace dualpipe {
namespace {

struct Layout {
  std::string name;
  int tensor = 1, expert = 1, expert_tensor = 1, pipeline = 4;
  bool sequence_parallel = false;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all{
      {"tp2_pp4", 2, 1, 2, 4, false},           {"ep2_pp4", 1, 2, 1, 4, false},
      {"dp2_pp4", 1, 1, 1, 4, false},           {"tp2_dp2_pp2", 2, 1, 2, 2, false},
      {"tp2_ep2_pp2", 2, 2, 2, 2, false},       {"tp2_sp_pp4", 2, 1, 2, 4, true},
      {"tp2_sp_dp2_pp2", 2, 1, 2, 2, true},     {"tp2_sp_ep2_etp1_pp2", 2, 2, 1, 2, true},
      {"tp2_sp_ep2_etp2_pp2", 2, 2, 2, 2, true}};
  return all;
}

struct Variant {
  std::string schedule;
  bool overlap = true;
  std::string recompute = "none";
  std::string name() const {
    return fmt::format("{} overlap={} recompute={}", schedule, overlap ? "true" : "false", recompute);
  }
};

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all{
      {"builtin_1f1b", true, "none"}, {"builtin_1f1b", true, "full"},   {"zb1p", false, "none"},
      {"zb1p", true, "full"},         {"dualpipe", true, "none"},       {"dualpipe", false, "none"},
      {"dualpipe", true, "full"},     {"dualpipe", false, "selective"}, {"dualpipev", true, "none"},
      {"dualpipev", false, "none"},   {"dualpipev", true, "full"},      {"dualpipev", false, "selective"}};
  return all;
}

// Layers with experts and dense ones in turn.
pretrain_gpt::Config config_of(const Layout& layout, const Variant& variant) {
  pretrain_gpt::Config config = small_config(variant.schedule);
  config.num_experts = 4;
  config.moe_layer_freq = 2;
  config.moe_ffn_hidden_size = 16;
  config.moe_shared_expert_intermediate_size = 8;
  config.tensor_model_parallel_size = layout.tensor;
  config.expert_model_parallel_size = layout.expert;
  config.expert_tensor_parallel_size = layout.expert_tensor;
  config.pipeline_model_parallel_size = layout.pipeline;
  config.sequence_parallel = layout.sequence_parallel;
  config.overlap_moe_expert_parallel_comm = variant.overlap;
  config.recompute_granularity = variant.recompute;
  return config;
}

void require_overlap(const TrainerRank& rank, const std::vector<std::string>& notes, const Variant& variant) {
  const bool has_pairs = variant.schedule.starts_with("dualpipe");
  if (!has_pairs) return;
  const std::string text = fmt::format("{}", fmt::join(notes, "; "));
  const bool in_sequence = text.find("in sequence") != std::string::npos;
  const bool by_phases = variant.overlap || variant.recompute != "none";
  const bool tells_waiting = text.find(" ms for exchanges") != std::string::npos;
  require(in_sequence != variant.overlap && tells_waiting == by_phases,
          fmt::format("rank {} notes: {}", rank.context().rank, text));
}

void compare_with_whole(const Process& process, const Layout& layout, const Variant& variant, const WholeStep& whole) {
  TrainerRank rank(process, config_of(layout, variant), variant.name());
  const double loss = rank.schedule().train_step(rank.reader(0));
  require(std::abs(loss - whole.loss) <= 1e-12 * whole.loss, fmt::format("loss {} instead of {}", loss, whole.loss));
  compare_gradients(rank.schedule().chunks(), *whole.chunk);
  require_overlap(rank, rank.schedule().notes(), variant);

  const auto optimizer =
      pretrain_gpt::make_optimizer(rank.config(), rank.schedule().chunks(), {}, &rank.context().parallel);
  const auto outcome = rank.schedule().optimizer_step(*optimizer, 0.5);
  const double norm = whole.grad_norm();
  require(std::abs(outcome.grad_norm - norm) <= 1e-12 * norm,
          fmt::format("norm {} instead of {}", outcome.grad_norm, norm));
  optimizer->zero_grad();
  rank.schedule().train_step(rank.reader(1));
  rank.schedule().optimizer_step(*optimizer, 0.5);
  compare_copies(rank.context(), "copies", rank.schedule().chunks());
}

DUALPIPE_PROCESS_BODY(parallel_gradients) {
  const Layout& layout = layouts().at(std::stoul(process.args.at(0)));
  const WholeStep whole = run_whole_step(config_of(layout, variants().front()));
  for (const Variant& variant : variants()) {
    try {
      compare_with_whole(process, layout, variant, whole);
    } catch (const std::exception& error) {
      throw std::runtime_error(variant.name() + ": " + error.what());
    }
  }
}

class ParallelGradients : public testing::TestWithParam<std::size_t> {};

TEST_P(ParallelGradients, AreThoseOfOneProcess) {
  for (const Outcome& outcome :
       run_processes(8, "parallel_gradients", {std::to_string(GetParam())}, {.bound = std::chrono::seconds(240)})) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.to_string();
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ParallelGradients, testing::Range(std::size_t{0}, layouts().size()),
                         [](const auto& info) { return layouts()[info.param].name; });

}  // namespace
}  // namespace dualpipe
