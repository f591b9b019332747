// Reports of what goes wrong elsewhere where a schedule meets recompute, dropout and auxiliary losses. The number is
// the report's. A rank compares its gradients with those of the whole model in one process.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/libtorch_host/trainer_case.h"

namespace dualpipe {
namespace {

double train_like(const WholeStep& whole, TrainerRank& rank) {
  const double loss = rank.schedule().train_step(rank.reader(0));
  require(std::abs(loss - whole.loss) <= 1e-12 * whole.loss, fmt::format("loss {} instead of {}", loss, whole.loss));
  compare_gradients(rank.schedule().chunks(), *whole.chunk);
  return loss;
}

std::vector<at::Tensor> gradients_of(TrainerRank& rank) {
  std::vector<at::Tensor> gradients;
  for (const pretrain_gpt::GptChunk* chunk : rank.schedule().chunks()) {
    for (const at::Tensor& parameter : chunk->parameters()) gradients.push_back(parameter.grad().clone());
  }
  return gradients;
}

void expect_every_rank_succeeds(int processes, const std::string& body, const std::string& schedule) {
  for (const Outcome& outcome : run_processes(processes, body, {schedule})) {
    EXPECT_EQ(outcome.exit_code, 0) << schedule << ": " << outcome.to_string();
  }
}

pretrain_gpt::Config dropout_config(const std::string& schedule, double p) {
  pretrain_gpt::Config config = small_config(schedule);
  config.hidden_dropout = config.attention_dropout = p;
  return config;
}

// The oracle keeps its activations.
DUALPIPE_PROCESS_BODY(recomputed_dropout) {
  const WholeStep whole = run_whole_step(dropout_config(process.args.at(0), 0.3));
  for (const std::string granularity : {"none", "selective", "full"}) {
    pretrain_gpt::Config config = dropout_config(process.args.at(0), 0.3);
    config.recompute_granularity = granularity;
    TrainerRank rank(process, config, granularity);
    train_like(whole, rank);
  }
}

TEST(FieldReport41, RecomputedDropoutIsThatOfTheLossUnderSplitBackwards) {
  for (const std::string schedule : {"zb1p", "dualpipe"}) expect_every_rank_succeeds(2, "recomputed_dropout", schedule);
}

// Twice with one seed, to the bit.
DUALPIPE_PROCESS_BODY(dropout) {
  const WholeStep whole = run_whole_step(dropout_config(process.args.at(0), 0.1));
  const WholeStep without = run_whole_step(dropout_config(process.args.at(0), 0));
  require(whole.loss != without.loss, "something was dropped");
  TrainerRank first(process, dropout_config(process.args.at(0), 0.1), "first");
  TrainerRank second(process, dropout_config(process.args.at(0), 0.1), "second");
  require(train_like(whole, first) == train_like(whole, second), "both runs have the same loss");
  const std::vector<at::Tensor> gradients = gradients_of(first), again = gradients_of(second);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    require(at::equal(gradients[i], again.at(i)), "both runs have the same gradients");
  }
}

// What is dropped depends on neither the number of partitions nor the schedule.
TEST(FieldReport43, DropoutIsThatOfOneProcessUnderEverySchedule) {
  for (const std::string schedule : {"builtin_1f1b", "1f1b", "interleaved_1f1b", "zb1p", "dualpipe", "dualpipev"}) {
    for (const int processes : {2, 4}) expect_every_rank_succeeds(processes, "dropout", schedule);
  }
}

pretrain_gpt::Config experts_config(const std::string& schedule, double coefficient) {
  pretrain_gpt::Config config = small_config(schedule);
  config.global_batch_size = 4 * config.micro_batch_size;
  config.num_experts = 4;
  config.moe_ffn_hidden_size = 16;
  config.moe_aux_loss_coeff = coefficient;
  return config;
}

// The auxiliary loss enters through a Function of its own on the gate, and is felt there.
DUALPIPE_PROCESS_BODY(auxiliary_loss) {
  const WholeStep whole = run_whole_step(experts_config(process.args.at(0), 0.5));
  const WholeStep without = run_whole_step(experts_config(process.args.at(0), 0));
  const std::string gate = "layers.0.mlp.router.weight";
  const at::Tensor felt = whole.chunk->named_parameters()[gate].grad();
  const at::Tensor plain = without.chunk->named_parameters()[gate].grad();
  require((felt - plain).norm().item<double>() > 0.01 * felt.norm().item<double>(), "the auxiliary loss is felt");
  TrainerRank rank(process, experts_config(process.args.at(0), 0.5), "auxiliary_loss");
  train_like(whole, rank);
}

TEST(FieldReport89, AuxiliaryLossesAreThoseOfOneProcessUnderSplitBackwards) {
  for (const std::string schedule : {"zb1p", "dualpipe", "dualpipev"}) {
    expect_every_rank_succeeds(2, "auxiliary_loss", schedule);
  }
}

}  // namespace
}  // namespace dualpipe
