// What the trainer refuses under the plugin's schedules, and how it ends when a rank throws or dies.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>

#include "adapters/libtorch_host/plugin_schedule.h"
#include "examples/pretrain_gpt/extensions.h"
#include "tests/support/gloo_group.h"
#include "tests/support/run_processes.h"

namespace dualpipe {
namespace {

using testing::HasSubstr;

pretrain_gpt::Config small() {
  pretrain_gpt::Config config;
  config.num_layers = 8;
  config.hidden_size = 16;
  config.num_attention_heads = 2;
  config.seq_length = 8;
  config.vocab_size = 32;
  config.micro_batch_size = 1;
  config.global_batch_size = 16;
  return config;
}

std::string refusal(const std::string& schedule, int world_size, const pretrain_gpt::Config& config) {
  pretrain_gpt::ScheduleRegistry registry;
  pretrain_gpt::register_extensions(registry);
  try {
    registry.find(schedule).validate(config, world_size);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "accepted";
}

TEST(TrainerRefusals, SayTheRuleBeforeAnythingIsSent) {
  pretrain_gpt::Config config = small();
  EXPECT_EQ(refusal("dualpipe", 4, config), "accepted");
  EXPECT_THAT(refusal("dualpip", 4, config), HasSubstr("did you mean 'dualpipe'?"));
  EXPECT_THAT(refusal("dualpipe", 3, config), HasSubstr("pipeline_model_parallel_size must be even, got 3"));
  config.global_batch_size = 6;
  EXPECT_THAT(refusal("dualpipe", 4, config), HasSubstr("num_microbatches must be at least 2 x ranks = 8, got 6"));
  config.global_batch_size = 9;
  EXPECT_THAT(refusal("dualpipe", 4, config), HasSubstr("num_microbatches must be even, got 9"));
  config = small();
  config.num_layers = 3;
  EXPECT_THAT(refusal("dualpipev", 2, config), HasSubstr("3"));
}

TEST(FieldReport83, LayersThatDoNotFitTheStagesAreRefusedWithTheirCounts) {
  pretrain_gpt::Config config = small();
  config.num_layers = 24;
  config.pipeline_layer_counts = {11, 1, 1, 11};
  EXPECT_EQ(refusal("dualpipev", 2, config), "accepted");
  config.pipeline_layer_counts = {11, 11};
  EXPECT_THAT(refusal("dualpipev", 2, config), HasSubstr("pipeline_layer_counts"));
  config.pipeline_layer_counts = {};
  config.num_layers = 7;
  EXPECT_EQ(refusal("1f1b", 4, config), "accepted");
  config.num_layers = 3;
  EXPECT_THAT(refusal("dualpipev", 2, config), HasSubstr("4"));
}

TEST(TrainerRefusals, AFileThatCannotRunIsExplained) {
  const std::string path = testing::TempDir() + "/waits_for_itself.csv";
  std::ofstream(path) << "0F0,0F1,0B0,0B1\n1B0,1F0,1F1,1B1\n";
  EXPECT_THAT(refusal(path, 2, small()), HasSubstr("num_microbatches must be 2"));
  pretrain_gpt::Config config = small();
  config.global_batch_size = 2;
  EXPECT_THAT(refusal(path, 2, config), HasSubstr("1B0"));
}

// Stages 0 and 3 on ranks 0 and 1: the group of the embedding's copies would not have both.
TEST(TrainerRefusals, ATiedEmbeddingInTheMiddleOfDividedPipelines) {
  const std::string path = testing::TempDir() + "/ends_in_the_middle.csv";
  std::ofstream(path) << "0F0,,,,,,,0B0\n,,,3F0,3B0\n,1F0,,,,,1B0\n,,2F0,,,2B0\n";
  pretrain_gpt::Config config = small();
  config.global_batch_size = 1;
  EXPECT_EQ(refusal(path, 4, config), "accepted");
  config.tensor_model_parallel_size = 2;
  EXPECT_THAT(refusal(path, 4, config), HasSubstr("must be on ranks 0 and 3"));
  EXPECT_THAT(refusal(path, 4, config), HasSubstr("got ranks 0 and 1"));
  config.untie_embeddings_and_output_weights = true;
  EXPECT_EQ(refusal(path, 4, config), "accepted");
}

// Every rank makes the schedule and steps; rank 3 throws or dies in the middle of the second step.
DUALPIPE_PROCESS_BODY(breaks) {
  const auto store = process.connect();
  pretrain_gpt::Config config = small();
  config.pipeline_schedule = "dualpipe";
  config.timeout_s = 60;
  pretrain_gpt::resolve(config, process.size);
  pretrain_gpt::Environment environment;
  environment.rank = process.rank;
  environment.world_size = environment.local_world_size = process.size;
  const pretrain_gpt::RankLayout layout(pretrain_gpt::parallel_sizes(config, /*mirrored=*/true));
  const pretrain_gpt::ProcessGroups groups(layout, environment, store, std::chrono::seconds(60));
  const pretrain_gpt::TrainContext context{config, groups, store, process.directory};
  libtorch_host::PluginSchedule schedule("dualpipe", context);
  int reads = 0;
  const auto read = pretrain_gpt::read_by([&](int) {
    if (process.rank == 3 && ++reads == 20) {
      if (process.args.at(0) == "dies") std::raise(SIGKILL);
      throw std::runtime_error("the disk is gone");
    }
    const at::Tensor tokens = at::zeros({config.micro_batch_size, config.seq_length}, at::kLong);
    return pretrain_gpt::MicroBatch{tokens, tokens, at::ones_like(tokens, at::kFloat)};
  });
  for (int step = 0; step < 3; ++step) schedule.train_step(read);
}

class TrainerFailure : public testing::TestWithParam<std::string> {};

TEST_P(TrainerFailure, EndsEveryRank) {
  const auto outcomes = run_processes(4, "breaks", {GetParam()}, {.bound = std::chrono::seconds(40)});
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_FALSE(outcomes[rank].late) << outcomes[rank].to_string();
    EXPECT_NE(outcomes[rank].exit_code, 0) << outcomes[rank].to_string();
  }
  if (GetParam() == "throws") {
    EXPECT_THAT(outcomes[3].err, HasSubstr("the disk is gone"));
  }
}

INSTANTIATE_TEST_SUITE_P(How, TrainerFailure, testing::Values("throws", "dies"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace dualpipe
