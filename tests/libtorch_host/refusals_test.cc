// What the trainer refuses under the plugin's schedules, and how it ends when a rank throws or dies.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>

#include "adapters/libtorch_host/auto_schedule.h"
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

// --- auto

TEST(TrainerRefusals, AutoSaysWhatItNeeds) {
  pretrain_gpt::Config config = small();
  EXPECT_EQ(refusal("auto", 4, config), "accepted");
  config.memory_limit_gb = 1;
  EXPECT_EQ(refusal("auto", 4, config),
            "[memory_limit_gb] must come with a cost_file whose stages have parameter_bytes and activation_bytes under "
            "pipeline_schedule: auto, got no cost_file; for example cost_file: output/profile/cost.json, which "
            "`dualpipe profile` writes");
  config.cost_file = testing::TempDir() + "/without_bytes.json";
  std::ofstream(config.cost_file) << R"({"format": "dualpipe-cost", "version": 1, "unit": "ms",)"
                                  << R"("stages": [{"forward": 1, "backward_input": 1, "backward_weight": 1}]})";
  EXPECT_THAT(refusal("auto", 4, config),
              HasSubstr("got no stages[0].parameter_bytes in " + config.cost_file + "; for example"));
  config.memory_limit_gb = 0;
  EXPECT_EQ(refusal("auto", 4, config), "accepted");
  config.cost_file = "/no/such/cost.json";
  EXPECT_THAT(refusal("auto", 4, config), HasSubstr("/no/such/cost.json"));
  config = small();
  config.num_layers = 3;
  EXPECT_EQ(refusal("auto", 4, config),
            "[num_layers] must be at least the number of stages = 4, got 3: 1 stages would hold no layer; for example "
            "4");
  config.pipeline_layer_counts = {1, 2};
  EXPECT_THAT(refusal("auto", 4, config), HasSubstr("[pipeline_layer_counts] must list 4 stages"));
  config = small();
  config.pipeline_layer_counts = {1, 1, 1, 1, 1, 1, 1, 2};
  EXPECT_THAT(refusal("auto", 4, config), HasSubstr("add up to num_layers = 8, got [1, 1, 1, 1, 1, 1, 1, 2]: 9"));
}

TEST(AutoRequest, HasPlacementsThatTheLayersAndTheBatchAllow) {
  using enum PlacementKind;
  pretrain_gpt::Config config = small();
  EXPECT_THAT(libtorch_host::auto_request(config, 4).placements, testing::ElementsAre(kLoop, kBidirectional, kVee));
  EXPECT_EQ(libtorch_host::auto_request(config, 4).virtual_pipeline_model_parallel_size, 2);
  config.global_batch_size = 15;
  EXPECT_THAT(libtorch_host::auto_request(config, 4).placements, testing::ElementsAre(kLoop, kVee));
  config.num_layers = 7;
  EXPECT_THAT(libtorch_host::auto_request(config, 4).placements, testing::ElementsAre(kLoop));
  EXPECT_EQ(libtorch_host::auto_request(config, 4).virtual_pipeline_model_parallel_size, 1);
  config = small();
  config.pipeline_layer_counts = {1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_THAT(libtorch_host::auto_request(config, 4).placements, testing::ElementsAre(kVee));
  config.pipeline_layer_counts = {1, 2, 2, 3};
  const AutoRequest request = libtorch_host::auto_request(config, 4);
  EXPECT_THAT(request.placements, testing::ElementsAre(kLoop, kBidirectional));
  ASSERT_EQ(request.cost.per_stage.size(), 4u);
  EXPECT_EQ(request.cost.per_stage[3], (StageCost{3, 3, 3, 9}));
}

TEST(AutoRequest, TakesTheStagesOfTheFileAsTheyAre) {
  pretrain_gpt::Config config = small();
  config.cost_file = testing::TempDir() + "/uneven.json";
  std::ofstream(config.cost_file)
      << R"({"format": "dualpipe-cost", "version": 1, "unit": "ms", "latency": 0.5, "stages": [)"
      << R"({"forward": 1, "backward_input": 2, "backward_weight": 1, "overlapped": 3},)"
      << R"({"forward": 3, "backward_input": 4, "backward_weight": 3, "overlapped": 7}]})";
  const AutoRequest request = libtorch_host::auto_request(config, 2);
  EXPECT_EQ(request.cost.latency, 0.5);
  EXPECT_THAT(request.cost.per_stage, testing::ElementsAre(StageCost{1, 2, 1, 3}, StageCost{3, 4, 3, 7}));
  EXPECT_TRUE(request.bytes.empty());
  config.balance = "measured";
  config.layer_times = pretrain_gpt::LayerTimes{1, std::vector<double>(8, 1), 2};
  EXPECT_EQ(
      refusal("auto", 2, config),
      "[balance] must be even with pipeline_schedule: auto, which chooses by the stages that cost_file was measured "
      "with, got measured; for example balance: even, or balance: measured with pipeline_schedule: dualpipev");
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
