#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "examples/pretrain_gpt/agreement.h"
#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/config_fields.h"
#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/run_variables.h"

namespace pretrain_gpt {
namespace {

using testing::ElementsAre;

using Variables = std::map<std::string, std::string>;

GetVariable variables(Variables values) {
  return [values = std::move(values)](const std::string& name) {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

std::string refusal(const std::string& yaml, const Overrides& overrides = {}, const Variables& given = {}) {
  try {
    parse_config(yaml, "gpt.yaml", overrides, variables(given));
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

struct Refused {
  const char* name;
  const char* yaml;
  const char* message;
};

class RefusedConfig : public testing::TestWithParam<Refused> {};

TEST_P(RefusedConfig, NamesPlaceRuleAndAWorkingValue) {
  EXPECT_EQ(refusal(GetParam().yaml), GetParam().message) << GetParam().yaml;
}

std::string test_name(const testing::TestParamInfo<Refused>& info) { return info.param.name; }

// Keys that are not there, or not where they belong (field report 70).
INSTANTIATE_TEST_SUITE_P(
    FieldReport70, RefusedConfig,
    testing::Values(
        Refused{"UnknownKey", "seed: 1\nnum_layer: 8\n",
                "[gpt.yaml:2] unknown key 'num_layer'; did you mean 'num_layers'?"},
        Refused{"UnknownKeyWithoutNeighbour", "zzz: 8\n", "[gpt.yaml:1] unknown key 'zzz'"},
        Refused{"RightKeyInASection", "model:\n  num_layers: 8\n",
                "[gpt.yaml:2] num_layers must stand at the top level, got it in section 'model'; for example "
                "`num_layers: 8` without indentation"},
        Refused{"MisspelledKeyInASection", "training:\n  lr_warmup_iter: 8\n",
                "[gpt.yaml:2] unknown key 'lr_warmup_iter' in section 'training'; did you mean 'lr_warmup_iters'?"},
        Refused{"DuplicateKey", "num_layers: 8\nseed: 1\nnum_layers: 4\n",
                "[gpt.yaml:3] num_layers must be given once, got it on line 1 too; remove one"},
        Refused{"WrongType", "seed: 1\nnum_layers: 8x\n",
                "[gpt.yaml:2] num_layers must be an integer from 1 to 65536, got '8x'; for example 8"},
        Refused{"QuotedNumber", "num_layers: \"8\"\n",
                "[gpt.yaml:1] num_layers must be an integer from 1 to 65536, got '8'; for example 8"},
        Refused{"SectionForAValue", "lr:\n  max: 1\n",
                "[gpt.yaml:1] lr must be a number of at least 0, got a section; for example 0.003"},
        Refused{"NoValue", "lr:\n", "[gpt.yaml:1] lr must be a number of at least 0, got nothing; for example 0.003"},
        Refused{"Fraction", "num_layers: 8.5\n",
                "[gpt.yaml:1] num_layers must be an integer from 1 to 65536, got '8.5'; for example 8"},
        Refused{"NotABoolean", "record_actions: yes\n",
                "[gpt.yaml:1] record_actions must be true or false, got 'yes'; for example true"},
        Refused{"NotAList", "pipeline_layer_counts: 2\n",
                "[gpt.yaml:1] pipeline_layer_counts must be a list of integers from 1 to 65536, got '2'; for example "
                "[2, 2, 2, 2]"},
        Refused{"UnknownDtype", "params_dtype: float16\n",
                "[gpt.yaml:1] params_dtype must be float32, float64 or bfloat16, got 'float16'; for example float32"},
        Refused{"NotYaml", "num_layers: [8\n",
                "[gpt.yaml:2] must be YAML, one `key: value` a line; end of sequence flow not found"},
        Refused{"TwoDocuments", "num_layers: 8\n---\nseed: 1\n",
                "[gpt.yaml:3] must be in the one document of the file, got 2 documents; remove the `---` between"},
        Refused{"NoMapping", "num_layers\n",
                "[gpt.yaml:1] must be `key: value` lines, got something else; for example num_layers: 8"}),
    test_name);

// Zeros and negative numbers where there is no use for them (field report 71).
INSTANTIATE_TEST_SUITE_P(
    FieldReport71, RefusedConfig,
    testing::Values(
        Refused{"NoTimeout", "timeout_s: 0\n",
                "[gpt.yaml:1] timeout_s must be an integer from 1 to 1000000, got '0'; for example 300"},
        Refused{"NoMicroBatch", "micro_batch_size: 0\n",
                "[gpt.yaml:1] micro_batch_size must be an integer from 1 to 1048576, got '0'; for example 1"},
        Refused{"NoBatch", "global_batch_size: 0\n",
                "[gpt.yaml:1] global_batch_size must be an integer from 1 to 2147483647, got '0'; for example 16"},
        Refused{"NoPipeline", "pipeline_model_parallel_size: 0\n",
                "[gpt.yaml:1] pipeline_model_parallel_size must be an integer from 1 to 2147483647, got '0'; for "
                "example 4"},
        Refused{"NegativeClip", "clip_grad: -1\n",
                "[gpt.yaml:1] clip_grad must be a number of at least 0, got '-1'; for example 1"},
        Refused{"NegativeSeed", "seed: -1\n",
                "[gpt.yaml:1] seed must be an integer from 0 to 2147483647, got '-1'; for example 1234"},
        Refused{"BetaOfOne", "adam_beta2: 1\n",
                "[gpt.yaml:1] adam_beta2 must be a number of at least 0 and below 1, got '1'; for example 0.95"},
        Refused{"Infinity", "lr: .inf\n",
                "[gpt.yaml:1] lr must be a number of at least 0, got '.inf'; for example 0.003"}),
    test_name);

// Numbers that would not fit where they are used.
INSTANTIATE_TEST_SUITE_P(
    TooLarge, RefusedConfig,
    testing::Values(
        Refused{"Batch", "global_batch_size: 4294967312\n",  // 2^32 + 16: 16 if cut to 32 bits.
                "[gpt.yaml:1] global_batch_size must be an integer from 1 to 2147483647, got '4294967312'; for example "
                "16"},
        Refused{"MicroBatches", "global_batch_size: 16777217\n",
                "[config] global_batch_size must be at most 16777216 micro-batches, got global_batch_size = 16777217 "
                "(gpt.yaml:1), with micro_batch_size = 1 (default); for example 8"},
        Refused{"Chunks", "virtual_pipeline_model_parallel_size: 4294967298\n",
                "[gpt.yaml:1] virtual_pipeline_model_parallel_size must be an integer from 1 to 65536, got "
                "'4294967298'; for example 2"},
        Refused{"MoreThan64Bits", "seed: 18446744073709551617\n",
                "[gpt.yaml:1] seed must be an integer from 0 to 2147483647, got '18446744073709551617'; for example "
                "1234"},
        Refused{"LayerCounts", "pipeline_layer_counts: [4294967297, 1]\n",
                "[gpt.yaml:1] pipeline_layer_counts must be a list of integers from 1 to 65536, got a list; for "
                "example [2, 2, 2, 2]"}),
    test_name);

TEST(Config, TakesTheMostMicroBatches) {
  EXPECT_EQ(parse_config("global_batch_size: 33554432\nmicro_batch_size: 2\n", "gpt.yaml").num_microbatches(),
            16777216);
}

TEST(Config, MayMarkItsOneDocument) { EXPECT_EQ(parse_config("---\nnum_layers: 3\n...\n", "gpt.yaml").num_layers, 3); }

// Rules between keys say where each of the two came from.
INSTANTIATE_TEST_SUITE_P(
    BetweenKeys, RefusedConfig,
    testing::Values(
        Refused{
            "Heads", "hidden_size: 64\nnum_attention_heads: 3\n",
            "[config] hidden_size must be a multiple of num_attention_heads, got hidden_size = 64 (gpt.yaml:1), with "
            "num_attention_heads = 3 (gpt.yaml:2); for example 48"},
        Refused{
            "OddHeadSize", "hidden_size: 12\n",
            "[config] hidden_size must be an even multiple of num_attention_heads, got hidden_size = 12 (gpt.yaml:1), "
            "with num_attention_heads = 4 (default); for example 64"},
        Refused{"Batches", "micro_batch_size: 3\nglobal_batch_size: 16\n",
                "[config] global_batch_size must be a multiple of micro_batch_size, got global_batch_size = 16 "
                "(gpt.yaml:2), with micro_batch_size = 3 (gpt.yaml:1); for example 24"},
        Refused{"SaveInterval", "save_interval: 5\n",
                "[config] save_interval must be 0 without a save folder, got save_interval = 5 (gpt.yaml:1); for "
                "example save: output/checkpoints"},
        Refused{"AsyncSave", "async_save: true\n",
                "[config] async_save must be false without a save folder, got async_save = true (gpt.yaml:1); for "
                "example save: output/checkpoints"},
        Refused{"CheckpointStep", "ckpt_step: 20\n",
                "[config] ckpt_step must be left out without a load folder, got ckpt_step = 20 (gpt.yaml:1); for "
                "example load: output/checkpoints"},
        Refused{"Finetune", "finetune: true\n",
                "[config] finetune must be false without a load folder, got finetune = true (gpt.yaml:1); for example "
                "load: output/checkpoints"},
        Refused{"Kept", "checkpoints_to_keep: 1\n",
                "[gpt.yaml:1] checkpoints_to_keep must be an integer from 2 to 2147483647, got '1'; for example 2"},
        Refused{"LeastRate", "lr: 0.001\nmin_lr: 0.01\n",
                "[config] min_lr must be at most lr, got min_lr = 0.01 (gpt.yaml:2), with lr = 0.001 (gpt.yaml:1); for "
                "example 0.0001"},
        Refused{"WarmUp", "lr_warmup_iters: 200\n",
                "[config] lr_warmup_iters must be below train_iters, got lr_warmup_iters = 200 (gpt.yaml:1), with "
                "train_iters = 200 (default); for example 20"},
        Refused{
            "Split", "split: 1;2\n",
            "[gpt.yaml:1] split must be one to three numbers of at least 0, the first above 0, got '1;2'; for example "
            "99,1"}),
    test_name);

// Sizes of the parallel layout that do not fit the model.
INSTANTIATE_TEST_SUITE_P(
    ParallelLayout, RefusedConfig,
    testing::Values(
        Refused{"TensorRanksAndHeads", "tensor_model_parallel_size: 3\n",
                "[config] tensor_model_parallel_size must be a divisor of num_attention_heads = 4, got "
                "tensor_model_parallel_size = 3 (gpt.yaml:1); for example 1"},
        Refused{"TensorRanksAndMlp", "tensor_model_parallel_size: 4\nffn_hidden_size: 90\n",
                "[config] tensor_model_parallel_size must be a divisor of ffn_hidden_size = 90, got "
                "tensor_model_parallel_size = 4 (gpt.yaml:1); for example 2"},
        Refused{"TensorRanksAndVocabulary", "tensor_model_parallel_size: 4\nvocab_size: 258\n",
                "[config] tensor_model_parallel_size must be a divisor of vocab_size = 258, got "
                "tensor_model_parallel_size = 4 (gpt.yaml:1); for example 2"},
        Refused{"SequenceParallelAlone", "sequence_parallel: true\n",
                "[config] sequence_parallel must be false with one tensor rank, got sequence_parallel = true "
                "(gpt.yaml:1), with tensor_model_parallel_size = 1 (default); for example false"},
        Refused{"SequenceParts", "sequence_parallel: true\ntensor_model_parallel_size: 4\nseq_length: 62\n",
                "[config] tensor_model_parallel_size must be a divisor of seq_length = 62, got "
                "tensor_model_parallel_size = 4 (gpt.yaml:2); for example 2"},
        Refused{"ExpertsWithoutExperts", "expert_model_parallel_size: 2\n",
                "[config] expert_model_parallel_size must be 1 without experts, got expert_model_parallel_size = 2 "
                "(gpt.yaml:1), with num_experts = 0 (default); for example 1"},
        Refused{"ExpertRanksAndExperts", "num_experts: 6\nexpert_model_parallel_size: 4\n",
                "[config] expert_model_parallel_size must be a divisor of num_experts = 6, got "
                "expert_model_parallel_size = 4 (gpt.yaml:2); for example 2"},
        Refused{"TopK", "num_experts: 4\nmoe_router_topk: 5\n",
                "[config] moe_router_topk must be at most num_experts, got moe_router_topk = 5 (gpt.yaml:2), with "
                "num_experts = 4 (gpt.yaml:1); for example 2"},
        Refused{"ExpertTensorSize", "num_experts: 4\ntensor_model_parallel_size: 4\nexpert_tensor_parallel_size: 2\n",
                "[config] expert_tensor_parallel_size must be 1 or tensor_model_parallel_size, got "
                "expert_tensor_parallel_size = 2 (gpt.yaml:3), with tensor_model_parallel_size = 4 (gpt.yaml:2); for "
                "example 1"},
        Refused{"WholeExpertsNeedSequenceParallel",
                "num_experts: 4\ntensor_model_parallel_size: 2\nexpert_tensor_parallel_size: 1\n",
                "[config] sequence_parallel must be true where tensor_model_parallel_size is above "
                "expert_tensor_parallel_size = 1, so that tensor ranks hold different tokens, got sequence_parallel = "
                "false (default), with tensor_model_parallel_size = 2 (gpt.yaml:2); for example true"},
        Refused{"WidthOfExperts", "num_experts: 4\ntensor_model_parallel_size: 4\nmoe_ffn_hidden_size: 6\n",
                "[config] tensor_model_parallel_size must be a divisor of moe_ffn_hidden_size = 6, got "
                "tensor_model_parallel_size = 4 (gpt.yaml:2); for example 2"},
        Refused{"RecomputeMode", "recompute_granularity: some\n",
                "[gpt.yaml:1] recompute_granularity must be none, selective or full, got 'some'; for example none"},
        Refused{"LoadBalancing", "moe_router_load_balancing_type: sinkhorn\n",
                "[gpt.yaml:1] moe_router_load_balancing_type must be aux_loss or none, got 'sinkhorn'; for example "
                "aux_loss"},
        Refused{"LayerFrequency", "moe_layer_freq: 0\n",
                "[gpt.yaml:1] moe_layer_freq must be an integer from 1 to 65536, got '0'; for example 1"},
        Refused{"TimelineSteps", "record_timeline: -1\n",
                "[gpt.yaml:1] record_timeline must be an integer from 0 to 2147483647, got '-1'; for example 5"},
        Refused{"MemoryLimit", "memory_limit_gb: -1\n",
                "[gpt.yaml:1] memory_limit_gb must be a number of at least 0, got '-1'; for example 80"},
        Refused{"SearchTime", "schedule_search_s: 0\n",
                "[gpt.yaml:1] schedule_search_s must be a number above 0, got '0'; for example 10"},
        Refused{"LastBatch", "last_batch: keep\n",
                "[gpt.yaml:1] last_batch must be continue, pad or drop, got 'keep'; for example continue"},
        Refused{"Float32SumsOfFloat64", "params_dtype: float64\naccumulate_allreduce_grads_in_fp32: true\n",
                "[config] accumulate_allreduce_grads_in_fp32 must be false for float64, got "
                "accumulate_allreduce_grads_in_fp32 = true (gpt.yaml:2), with params_dtype = float64 (gpt.yaml:1); for "
                "example false"}),
    test_name);

TEST(FieldReport71, LegalZerosAreHonoured) {
  const Config config =
      parse_config("clip_grad: 0\nseed: 0\nlr_warmup_iters: 0\nlr: 0\nweight_decay: 0\neval_interval: 0\n", "gpt.yaml");
  EXPECT_EQ(config.clip_grad, 0);
  EXPECT_EQ(config.seed, 0);
  EXPECT_EQ(config.lr_warmup_iters, 0);
  EXPECT_EQ(config.lr, 0);
  EXPECT_EQ(config.weight_decay, 0);
  EXPECT_EQ(config.eval_interval, 0);
}

TEST(Config, ReadsEveryType) {
  const Config config = parse_config(
      "num_layers: 3  # a comment\nlr: 1e-4\nrecord_actions: true\ndata_path: a b\npipeline_layer_counts: [1, 2]\n"
      "ffn_hidden_size: 96\n",
      "gpt.yaml");
  EXPECT_EQ(config.num_layers, 3);
  EXPECT_EQ(config.lr, 1e-4);
  EXPECT_TRUE(config.record_actions);
  EXPECT_EQ(config.data_path, "a b");
  EXPECT_THAT(config.pipeline_layer_counts, ElementsAre(1, 2));
  EXPECT_EQ(config.ffn_size(), 96);
}

TEST(Config, HasDefaults) {
  const Config config = parse_config("", "gpt.yaml");
  EXPECT_EQ(config.num_microbatches(), 8);
  EXPECT_EQ(config.ffn_size(), 192);
  EXPECT_EQ(config.pipeline_schedule, "builtin_1f1b");
}

TEST(Overrides, WinOverTheFileAndOverEarlierOnes) {
  const Config config =
      parse_config("lr: 0.1\n", "gpt.yaml", {"lr=0.2", "lr=0.3", "data_path=a: [b", "pipeline_layer_counts=[4, 4]"});
  EXPECT_EQ(config.lr, 0.3);
  EXPECT_EQ(config.data_path, "a: [b");
  EXPECT_THAT(config.pipeline_layer_counts, ElementsAre(4, 4));
}

TEST(Overrides, AreCheckedAsTheFileIs) {
  EXPECT_EQ(refusal("", {"lr=x"}), "[--set lr=x] lr must be a number of at least 0, got 'x'; for example 0.003");
  EXPECT_EQ(refusal("", {"lrr=1"}), "[--set lrr=1] unknown key 'lrr'; did you mean 'lr'?");
  EXPECT_EQ(refusal("", {"lr"}), "[--set lr] must be key=value; for example --set lr=0.001");
  EXPECT_EQ(refusal("", {"lr="}), "[--set lr=] lr must be a number of at least 0, got nothing; for example 0.003");
  EXPECT_EQ(refusal("micro_batch_size: 3\n", {"global_batch_size=4"}),
            "[config] global_batch_size must be a multiple of micro_batch_size, got global_batch_size = 4 (--set "
            "global_batch_size=4), with micro_batch_size = 3 (gpt.yaml:1); for example 24");
}

TEST(RunVariables, WinOverTheFileAndOverrides) {
  const std::string yaml = "pipeline_schedule: dualpipe\noutput_dir: a\n";
  const Config config = parse_config(yaml, "gpt.yaml", {"output_dir=b"},
                                     variables({{"DUALPIPE_SCHEDULE", "mine: [1].csv"}, {"DUALPIPE_OUTPUT", "c d"}}));
  EXPECT_EQ(config.pipeline_schedule, "mine: [1].csv");
  EXPECT_EQ(config.output_dir, "c d");
  EXPECT_EQ(parse_config(yaml, "gpt.yaml", {}, variables({})).output_dir, "a");
}

TEST(RunVariables, RecordTheTimelineUnlessItIsGiven) {
  const Variables output{{"DUALPIPE_OUTPUT", "out"}};
  EXPECT_EQ(parse_config("", "gpt.yaml", {}, variables({})).record_timeline, 0);
  EXPECT_EQ(parse_config("", "gpt.yaml", {}, variables({{"DUALPIPE_SCHEDULE", "1f1b"}})).record_timeline, 0);
  EXPECT_EQ(parse_config("", "gpt.yaml", {}, variables(output)).record_timeline, 5);
  EXPECT_EQ(parse_config("record_timeline: 0\n", "gpt.yaml", {}, variables(output)).record_timeline, 0);
  EXPECT_EQ(parse_config("", "gpt.yaml", {"record_timeline=9"}, variables(output)).record_timeline, 9);
}

// A comparison starts a configuration that saves and loads many times over.
TEST(RunVariables, LeaveCheckpointsAlone) {
  const std::string yaml =
      "save: a\nsave_interval: 2\nasync_save: true\nload: a\nckpt_step: 2\nexit_on_missing_checkpoint: true\n"
      "finetune: true\n";
  const Config plain = parse_config(yaml, "gpt.yaml", {}, variables({{"DUALPIPE_SCHEDULE", "1f1b"}}));
  EXPECT_EQ(plain.save, "a");
  EXPECT_EQ(plain.load, "a");
  const Config compared = parse_config(yaml, "gpt.yaml", {"save=b"}, variables({{"DUALPIPE_OUTPUT", "out"}}));
  EXPECT_EQ(compared.save, "");
  EXPECT_EQ(compared.save_interval, 0);
  EXPECT_FALSE(compared.async_save);
  EXPECT_EQ(compared.load, "");
  EXPECT_FALSE(compared.ckpt_step);
  EXPECT_FALSE(compared.finetune);
  EXPECT_FALSE(compared.exit_on_missing_checkpoint);
  EXPECT_EQ(refusal("save_interval: 2\n", {}, {{"DUALPIPE_OUTPUT", "out"}}), refusal("save_interval: 2\n"));
}

TEST(RunVariables, AreCheckedAsWhatTheyReplace) {
  EXPECT_EQ(refusal("", {}, {{"DUALPIPE_SCHEDULE", ""}}),
            "[DUALPIPE_SCHEDULE] pipeline_schedule must be text, got ''; for example builtin_1f1b");
  EXPECT_EQ(refusal("", {}, {{"DUALPIPE_OUTPUT", ""}}),
            "[DUALPIPE_OUTPUT] output_dir must be text, got ''; for example output");
  EXPECT_EQ(origin_of_schedule(variables({{"DUALPIPE_SCHEDULE", "x"}})), "DUALPIPE_SCHEDULE");
  EXPECT_EQ(origin_of_schedule(variables({})), "pipeline_schedule");
  EXPECT_EQ(origin_of_output(variables({{"DUALPIPE_OUTPUT", "x"}})), "DUALPIPE_OUTPUT");
  EXPECT_EQ(origin_of_output(variables({})), "output_dir");
}

TEST(Config, RefusesAFileThatIsNotThere) {
  try {
    load_config("no/such.yaml");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "[no/such.yaml] --config must name a readable YAML file; for example configs/gpt_tiny.yaml");
  }
}

TEST(Config, TakesThePipelineSizeFromTheWorld) {
  Config config;
  resolve(config, 4);
  EXPECT_EQ(config.pipeline_size(), 4);
  EXPECT_EQ(config.data_parallel_size, 1);
}

TEST(Config, DataParallelRanksAreWhatIsLeft) {
  Config config = parse_config("tensor_model_parallel_size: 2\npipeline_model_parallel_size: 2\n", "gpt.yaml");
  resolve(config, 8);
  EXPECT_EQ(config.data_parallel_size, 2);
  EXPECT_EQ(config.num_microbatches(), 4);
  config = parse_config("num_experts: 4\nexpert_model_parallel_size: 2\n", "gpt.yaml");
  resolve(config, 8);
  EXPECT_EQ(config.pipeline_size(), 4);
  EXPECT_EQ(config.data_parallel_size, 2);
}

TEST(Config, WidthsOfExpertsAndLayersThatHaveThem) {
  const Config config = parse_config("num_experts: 4\nmoe_layer_freq: 2\nffn_hidden_size: 96\n", "gpt.yaml");
  EXPECT_EQ(config.moe_ffn_size(), 96);
  EXPECT_TRUE(config.is_moe_layer(0));
  EXPECT_FALSE(config.is_moe_layer(1));
  EXPECT_FALSE(Config().is_moe_layer(0));
}

TEST(Config, SumsOfBfloat16AreFloat32ByDefault) {
  EXPECT_TRUE(parse_config("params_dtype: bfloat16\n", "gpt.yaml").accumulates_in_float32());
  EXPECT_FALSE(parse_config("", "gpt.yaml").accumulates_in_float32());
}

struct RefusedWorld {
  const char* name;
  const char* yaml;
  int world_size;
  const char* message;
};

class FieldReport64 : public testing::TestWithParam<RefusedWorld> {};

TEST_P(FieldReport64, RefusesSizesThatDoNotMultiplyToTheWorld) {
  Config config = parse_config(GetParam().yaml, "gpt.yaml");
  try {
    resolve(config, GetParam().world_size);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), GetParam().message);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, FieldReport64,
    testing::Values(
        RefusedWorld{"Pipeline", "pipeline_model_parallel_size: 2\n", 3,
                     "[WORLD_SIZE] the number of processes must be a multiple of tensor_model_parallel_size x "
                     "pipeline_model_parallel_size = 1 x 2 = 2, got 3; for example start 4 processes"},
        RefusedWorld{"TensorAndPipeline", "tensor_model_parallel_size: 2\npipeline_model_parallel_size: 2\n", 6,
                     "[WORLD_SIZE] the number of processes must be a multiple of tensor_model_parallel_size x "
                     "pipeline_model_parallel_size = 2 x 2 = 4, got 6; for example start 8 processes"},
        RefusedWorld{
            "ExpertsAlone", "num_experts: 4\nexpert_model_parallel_size: 4\n", 2,
            "[WORLD_SIZE] the number of processes must be a multiple of the processes of a pipeline stage, the "
            "least common multiple of tensor and expert ranks = lcm(1, 1 x 4) = 4, got 2; for example start 4 "
            "processes"},
        RefusedWorld{"ExpertsInAStage",
                     "num_experts: 4\nexpert_model_parallel_size: 4\npipeline_model_parallel_size: 2\n", 4,
                     "[expert_model_parallel_size] times expert_tensor_parallel_size must divide the 2 processes of a "
                     "pipeline stage, got 4 x 1 = 4; for example expert_model_parallel_size: 2, or start 8 processes"},
        RefusedWorld{"Batch", "pipeline_model_parallel_size: 1\nmicro_batch_size: 2\nglobal_batch_size: 8\n", 3,
                     "[global_batch_size] must be a multiple of micro_batch_size x data-parallel size = 2 x 3 = 6, got "
                     "8; for example 12"}),
    [](const testing::TestParamInfo<RefusedWorld>& info) { return info.param.name; });

TEST(Config, EveryExampleFileNamesOnlyKnownKeys) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    if (entry.path().extension() == ".yaml") {
      EXPECT_NO_THROW(load_config(entry.path())) << entry.path();
      ++files;
    }
  }
  EXPECT_GE(files, 1);
}

// A few lines must not grow without bound, and nothing may be read into a value that is not in it.
TEST(Config, TakesPlainYamlAlone) {
  const auto refused = [](const std::string& yaml) {
    try {
      parse_config(yaml, "gpt.yaml");
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused("seed: 1\nlr: &rate 0.1\nmin_lr: *rate\n"),
            "[gpt.yaml:2] lr must be written without an anchor (&name); remove it");
  EXPECT_EQ(refused("seed: 1\nnum_layers: !!int 8\n"),
            "[gpt.yaml:2] num_layers must be written without a tag, got tag:yaml.org,2002:int; remove it");
  EXPECT_EQ(refused("seed: 1\npipeline_layer_counts: [[[[[[[[[[1]]]]]]]]]]\n"),
            "[gpt.yaml:2] pipeline_layer_counts must not be nested deeper than 8 levels");
  const std::string deep(100000, '[');
  EXPECT_EQ(refused("lr: " + deep), "[gpt.yaml:1] lr must not be nested deeper than 8 levels");
  EXPECT_EQ(refused("lr: 1e999\n"), "[gpt.yaml:1] lr must be a number of at least 0, got '1e999'; for example 0.003");
  EXPECT_EQ(refused(std::string((1 << 20) + 1, '#')),
            "[gpt.yaml:1] the file must be at most 1048576 bytes long, got 1048577");
  EXPECT_EQ(refused("step_timout: 3\n"), "[gpt.yaml:1] unknown key 'step_timout'; did you mean 'step_timeout'?");
}

TEST(Config, AnOverrideIsPlainYamlToo) {
  try {
    parse_config("", "gpt.yaml", {"pipeline_layer_counts=[[[[[[[[[1]]]]]]]]]"});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "[--set pipeline_layer_counts=[[[[[[[[[1]]]]]]]]]] the file must not be nested deeper than "
                 "8 levels");
  }
}

TEST(Agreement, TellsWhichRanksHoldWhichValue) {
  const KeyValues one{{"seed", "1"}}, other{{"seed", "2"}};
  try {
    check_agreement({one, other, one, other});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "[config] seed must be the same on every rank, got 1 on ranks 0, 2 and 2 on ranks 1, 3; "
                 "start all ranks with one configuration");
  }
}

TEST(Agreement, RoundTripsThroughText) {
  const KeyValues pairs = key_values(parse_config("data_path: \"a\\nb\\\"c\"\n", "gpt.yaml"));
  EXPECT_EQ(pairs.size(), config_keys().size());
  EXPECT_EQ(from_text(to_text(pairs)), pairs);
}

TEST(Agreement, NamesTheKeyAndBothValuesWithTheirRanks) {
  const KeyValues first{{"seed", "1"}, {"lr", "0.1"}};
  EXPECT_NO_THROW(check_agreement({first, first}));
  try {
    check_agreement({first, first, {{"seed", "1"}, {"lr", "0.2"}}});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(
        error.what(),
        "[config] lr must be the same on every rank, got 0.1 on ranks 0, 1 and 0.2 on rank 2; start all ranks with "
        "one configuration");
  }
}

}  // namespace
}  // namespace pretrain_gpt
