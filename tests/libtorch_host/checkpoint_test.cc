// Checkpoints over schedules: what one schedule saves on 1, 2 or 4 ranks, every other one loads, to the bit; and the
// field reports about checkpoints of several chunks per rank.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/builtin_1f1b.h"
#include "examples/pretrain_gpt/extensions.h"
#include "tests/pretrain_gpt/checkpoint/checkpoint_case.h"

namespace dualpipe {
namespace {

using namespace pretrain_gpt;

ScheduleEntry entry_of(const std::string& schedule) {
  ScheduleRegistry registry;
  registry.add(builtin_1f1b());
  register_extensions(registry);
  return registry.find(schedule);
}

struct Case {
  const char* schedule;
  int pipeline;
  int data = 1;
  bool zero = false;

  std::string name() const { return fmt::format("{}_pp{}_dp{}{}", schedule, pipeline, data, zero ? "_zero" : ""); }
  int world() const { return pipeline * data; }
};

// 8 layers, so that dualpipev has its 8 stages on 4 ranks.
Config config_of_case(const Case& one) {
  Config config = config_of({.name = "", .world = one.world(), .tensor = 1, .pipeline = one.pipeline, .experts = 2});
  config.num_layers = 8;
  config.params_dtype = "float32";
  config.global_batch_size = 32;
  config.moe_router_enable_expert_bias = true;
  config.use_distributed_optimizer = one.zero;
  config.pipeline_schedule = one.schedule;
  return config;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> cases{{"builtin_1f1b", 1},
                                       {"builtin_1f1b", 2},
                                       {"builtin_1f1b", 4},
                                       {"zb1p", 1},
                                       {"zb1p", 2},
                                       {"zb1p", 4},
                                       {"dualpipe", 2},
                                       {"dualpipe", 4},
                                       {"dualpipe", 2, 2, true},
                                       {"dualpipev", 1},
                                       {"dualpipev", 2},
                                       {"dualpipev", 4},
                                       {"dualpipev", 2, 2, true},
                                       {"interleaved_1f1b", 2},
                                       {"interleaved_1f1b", 4}};
  return cases;
}

TEST(Checkpoints, LoadUnderEveryOtherSchedule) {
  const Folder folder;
  for (const Case& from : cases()) {
    save_planted(config_of_case(from), from.world(), entry_of(from.schedule), folder.path() / from.name());
  }
  for (const Case& from : cases()) {
    for (const Case& to : cases()) {
      SCOPED_TRACE(fmt::format("{} to {}", from.name(), to.name()));
      expect_loads_planted(config_of_case(to), to.world(), entry_of(to.schedule), folder.path() / from.name());
    }
  }
}

// pytorch/torchtitan#474: of the chunks of a rank only one ended up in the checkpoint.
TEST(FieldReport44, EveryChunkOfARankIsInTheCheckpointOnce) {
  const Folder folder;
  const Case two_chunks{"dualpipev", 2};
  save_planted(config_of_case(two_chunks), 2, entry_of("dualpipev"), folder.path());
  const Manifest manifest = read_manifest(checkpoint_path(folder.path(), kPlantedPosition.iteration)).manifest;
  const Config config = config_of_case({"builtin_1f1b", 1});
  const GptChunk whole(config, whole_model(config));
  std::vector<std::string> wanted, got;
  for (const auto& item : whole.named_parameters()) {
    wanted.push_back(item.key());
  }
  for (const auto& item : whole.named_buffers()) {
    wanted.push_back(item.key());
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    if (!name.starts_with("optimizer.state.")) {
      got.push_back(name);
      ASSERT_EQ(tensor.pieces.size(), 1) << name;
      EXPECT_EQ(tensor.pieces[0].box, whole_box(tensor.shape)) << name;
    }
  }
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(got, wanted);
  EXPECT_EQ(std::count_if(got.begin(), got.end(), [](const std::string& name) { return name.ends_with("qkv.weight"); }),
            8);
  expect_loads_planted(config, 1, builtin_1f1b(), folder.path());
}

// Every parameter of layer i is i + 1, those of no layer 100.
double constant_of(const std::string& name) {
  return name.starts_with("layers.") ? 1 + std::stod(name.substr(7, name.find('.', 7) - 7)) : 100;
}

// NVIDIA/Megatron-LM#7452: layers were numbered by stage, so that another pipeline size took the first stage's.
TEST(FieldReport46, EveryLayerGetsItsOwnValuesAtAnotherPipelineSize) {
  const Folder folder;
  Config saving = config_of_case({"dualpipev", 4});
  saving.save = folder.path();
  run_checkpoint_ranks(saving, 4, entry_of("dualpipev"), [](CheckpointRank& rank, const TrainContext&) {
    rank.checkpoints.load();
    const at::NoGradGuard no_grad;
    for (GptChunk* chunk : rank.schedule->chunks()) {
      for (const auto& item : chunk->named_parameters()) {
        item.value().fill_(constant_of(item.key()));
      }
    }
    rank.checkpoints.save(kPlantedPosition);
    rank.checkpoints.finish();
  });
  for (const Case& to : {Case{"dualpipev", 2}, Case{"builtin_1f1b", 2}, Case{"builtin_1f1b", 1}}) {
    Config loading = config_of_case(to);
    loading.load = folder.path();
    run_checkpoint_ranks(loading, to.world(), entry_of(to.schedule), [](CheckpointRank& rank, const TrainContext&) {
      rank.checkpoints.load();
      for (GptChunk* chunk : rank.schedule->chunks()) {
        for (const auto& item : chunk->named_parameters()) {
          EXPECT_TRUE(at::equal(item.value(), at::full_like(item.value(), constant_of(item.key())))) << item.key();
        }
      }
    });
  }
  Config deeper = config_of_case({"builtin_1f1b", 2});
  deeper.num_layers = 16;
  EXPECT_EQ(
      load_refusal(deeper, 2, builtin_1f1b(), folder.path()),
      fmt::format("[{}/manifest.json] num_layers must be what this run has = 16, got 8; for example num_layers: 8",
                  checkpoint_path(folder.path(), kPlantedPosition.iteration).string()));
}

}  // namespace
}  // namespace dualpipe
