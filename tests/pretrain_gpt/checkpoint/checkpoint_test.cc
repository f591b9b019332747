// Checkpoints over layouts: what one division of the model saves, every other one loads, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "examples/pretrain_gpt/builtin_1f1b.h"
#include "tests/pretrain_gpt/checkpoint/checkpoint_case.h"

namespace pretrain_gpt {
namespace {

namespace fs = std::filesystem;

// One model with dense and with MoE layers, divided in every dimension.
const std::vector<Sizes>& layouts() {
  static const std::vector<Sizes> layouts{
      {.name = "One", .world = 1, .tensor = 1, .pipeline = 1, .experts = 4},
      {.name = "Dp2Zero", .world = 2, .tensor = 1, .pipeline = 1, .experts = 4, .distributed_optimizer = true},
      {.name = "Pp2", .world = 2, .tensor = 1, .pipeline = 2, .experts = 4},
      {.name = "Pp4", .world = 4, .tensor = 1, .pipeline = 4, .experts = 4},
      {.name = "Tp2", .world = 2, .tensor = 2, .pipeline = 1, .experts = 4, .sequence_parallel = true},
      {.name = "Tp4", .world = 4, .tensor = 4, .pipeline = 1, .experts = 4, .sequence_parallel = true},
      {.name = "Ep2", .world = 2, .tensor = 1, .pipeline = 1, .experts = 4, .expert = 2},
      {.name = "Tp2Dp2Ep2Zero",
       .world = 4,
       .tensor = 2,
       .pipeline = 1,
       .experts = 4,
       .expert = 2,
       .sequence_parallel = true,
       .distributed_optimizer = true},
      {.name = "Pp2Dp3Zero", .world = 6, .tensor = 1, .pipeline = 2, .experts = 4, .distributed_optimizer = true},
      {.name = "Tp2Ep4Etp1Zero",
       .world = 4,
       .tensor = 2,
       .pipeline = 1,
       .experts = 4,
       .expert = 4,
       .expert_tensor = 1,
       .sequence_parallel = true,
       .distributed_optimizer = true},
  };
  return layouts;
}

Config config_for(const Sizes& sizes, const char* dtype) {
  Config config = config_of(sizes);
  config.params_dtype = dtype;
  config.global_batch_size = 48;
  config.moe_router_enable_expert_bias = true;
  return config;
}

// By which the watch tells a rank at work from those that wait for it.
TEST(RankExchange, TellsWhenItWaitsForOtherRanks) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<bool> told;
  RankExchange first(store, 0, 2, std::chrono::seconds(60), [&](bool waits) { told.push_back(waits); });
  RankExchange second(store, 1, 2, std::chrono::seconds(60));
  second.gather("mine");
  EXPECT_EQ(first.gather("own"), (std::vector<std::string>{"own", "mine"}));
  EXPECT_EQ(told, (std::vector<bool>{true, false}));
  EXPECT_EQ(first.broadcast("all"), "all");
  EXPECT_EQ(second.broadcast(""), "all");
  EXPECT_EQ(told.size(), 2U);
}

TEST(SavePatience, IsThatOfDisksOrOfLongerSteps) {
  Config config;
  config.timeout_s = 300;
  EXPECT_EQ(save_patience(config), std::chrono::seconds(1800));
  config.step_timeout = 4000;
  EXPECT_EQ(save_patience(config), std::chrono::seconds(4000));
}

class CheckpointLayouts : public testing::TestWithParam<const char*> {};

TEST_P(CheckpointLayouts, LoadUnderEveryOther) {
  const Folder folder;
  for (const Sizes& from : layouts()) {
    save_planted(config_for(from, GetParam()), from.world, builtin_1f1b(), folder.path() / from.name);
  }
  for (const Sizes& from : layouts()) {
    for (const Sizes& to : layouts()) {
      SCOPED_TRACE(std::string(from.name) + " to " + to.name);
      expect_loads_planted(config_for(to, GetParam()), to.world, builtin_1f1b(), folder.path() / from.name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CheckpointLayouts, testing::Values("float32", "bfloat16"));

// Mirrors and data-parallel ranks hold much more than once what is written once.
TEST(Checkpoint, HoldsEveryElementOnceAndDividesTheWork) {
  const Folder folder;
  const auto files_of = [&](const Sizes& sizes) {
    const fs::path save = folder.path() / sizes.name;
    save_planted(config_for(sizes, "float32"), sizes.world, builtin_1f1b(), save);
    return read_manifest(checkpoint_path(save, kPlantedPosition.iteration)).manifest;
  };
  const Manifest one = files_of({.name = "One", .world = 1, .tensor = 1, .pipeline = 1, .experts = 4});
  const Manifest four = files_of({.name = "Dp4", .world = 4, .tensor = 1, .pipeline = 1, .experts = 4});
  ASSERT_EQ(one.files.size(), 1);
  ASSERT_EQ(four.files.size(), 4);
  std::uint64_t sum = 0;
  for (const ManifestFile& file : four.files) {
    EXPECT_NEAR(static_cast<double>(file.bytes), static_cast<double>(one.files[0].bytes) / 4,
                static_cast<double>(one.files[0].bytes) * 0.03);
    sum += file.bytes;
  }
  EXPECT_LT(static_cast<double>(sum), 1.05 * static_cast<double>(one.files[0].bytes));
  EXPECT_EQ(four.iteration, 30);
  EXPECT_EQ(four.consumed_samples, 480);
  EXPECT_EQ(four.seed, 1234);
  EXPECT_EQ(four.layout.at("data_parallel_size"), "4");
  for (const auto& [name, tensor] : four.tensors) {
    EXPECT_EQ(tensor.pieces.size(), 1) << name;  // Copies are written whole.
  }
}

TEST(Checkpoint, OfBfloat16HasMastersAndOfOthersNone) {
  const Folder folder;
  for (const char* dtype : {"float32", "bfloat16"}) {
    const Sizes& sizes = layouts()[1];
    save_planted(config_for(sizes, dtype), sizes.world, builtin_1f1b(), folder.path() / dtype);
    const Manifest manifest = read_manifest(checkpoint_path(folder.path() / dtype, 30)).manifest;
    const std::string name = "layers.1.mlp.down.weight", state = "optimizer.state.";
    EXPECT_EQ(manifest.tensors.at(name).dtype, std::string(dtype) == "float32" ? "F32" : "BF16");
    EXPECT_EQ(manifest.tensors.at(state + "exp_avg." + name).dtype, "F32");
    EXPECT_EQ(manifest.tensors.at(state + "step." + name).dtype, "I64");
    EXPECT_EQ(manifest.tensors.count(state + "fp32_param." + name), std::string(dtype) == "float32" ? 0 : 1);
    EXPECT_EQ(manifest.tensors.count("layers.0.mlp.router.expert_bias"), 1);
  }
}

TEST(Checkpoint, FinetuningTakesTheWeightsAlone) {
  const Folder folder;
  for (const char* dtype : {"float32", "bfloat16"}) {
    save_planted(config_for(layouts()[2], dtype), 2, builtin_1f1b(), folder.path() / dtype);
    Config config = config_for(layouts()[1], dtype);
    config.load = folder.path() / dtype;
    config.finetune = true;
    config.split = "9,1";
    run_checkpoint_ranks(config, 2, builtin_1f1b(), [](CheckpointRank& rank, const TrainContext&) {
      EXPECT_EQ(rank.checkpoints.load(), TrainingPosition{});
      EXPECT_EQ(rank.lines.size(), 1);
      rank.planted.expect_planted(*rank.optimizer, /*weights_alone=*/true);
    });
  }
}

TEST(Checkpoint, OfAnotherModelIsRefusedOnAllRanks) {
  const Folder folder;
  const Sizes &pp2 = layouts()[2], &tp2 = layouts()[4];
  save_planted(config_for(pp2, "float32"), 2, builtin_1f1b(), folder.path());
  const std::string manifest = (checkpoint_path(folder.path(), 30) / "manifest.json").string();
  const struct {
    std::function<void(Config&)> change;
    std::string message;
  } rows[] = {
      {[](Config& c) { c.num_layers = 6; },
       "num_layers must be what this run has = 6, got 4; for example num_layers: 4"},
      {[](Config& c) { c.vocab_size = 24; },
       "vocab_size must be what this run has = 24, got 12; for example vocab_size: 12"},
      {[](Config& c) { c.num_attention_heads = 2; },
       "num_attention_heads must be what this run has = 2, got 4; for example num_attention_heads: 4"},
      {[](Config& c) { c.params_dtype = "float64"; },
       "params_dtype must be what this run has = float64, got float32; for example params_dtype: float32"},
      {[](Config& c) { c.moe_router_enable_expert_bias = false; },
       "moe_router_enable_expert_bias must be what this run has = false, got true; for example "
       "moe_router_enable_expert_bias: true"},
      {[](Config& c) { c.seed = 7; },
       "seed must be what this run has = 7, got 1234; for example seed: 1234, or finetune: true, which begins with the "
       "data anew"},
      {[](Config& c) { c.split = "9,1"; },
       "split must be what this run has = 9,1, got 99,1; for example finetune: true, which begins with the data anew"},
  };
  for (const auto& row : rows) {
    Config config = config_for(tp2, "float32");
    row.change(config);
    EXPECT_EQ(load_refusal(config, 2, builtin_1f1b(), folder.path()), "[" + manifest + "] " + row.message);
  }
}

// A manifest that says one thing and files that hold another, all hashes right.
TEST(Checkpoint, WhoseFilesAreNotThoseOfItsManifestIsRefused) {
  const Folder folder;
  const Sizes& sizes = layouts()[0];
  const Config config = config_for(sizes, "float32");
  save_planted(config, 1, builtin_1f1b(), folder.path());
  const fs::path one = checkpoint_path(folder.path(), 30);
  const Manifest good = read_manifest(one).manifest;
  const auto refused_with = [&](const std::function<void(Manifest&)>& change) {
    Manifest bad = good;
    change(bad);
    write_file(one / kManifestName, print_manifest(bad));
    write_file(one / kManifestHashName, manifest_hash_line(print_manifest(bad)));
    return load_refusal(config, 1, builtin_1f1b(), folder.path());
  };
  const std::string manifest = "[" + (one / kManifestName).string() + "] ";
  const std::string file = "[" + (one / "rank_00000.safetensors").string() + "] ";
  const std::string under = " in a checkpoint of builtin_1f1b with tensor 1, pipeline 1, data 1, expert 1";
  EXPECT_EQ(refused_with([](Manifest& m) { m.tensors.erase("final_norm.weight"); }),
            manifest + "final_norm.weight must be there as F32 [16], got no such tensor" + under);
  EXPECT_EQ(refused_with([](Manifest& m) {
              m.tensors["more"] = {"F32", {}, {{0, {}}}};
            }),
            manifest + "must have no tensor but those of this model, got more as F32 []" + under);
  EXPECT_EQ(refused_with([](Manifest& m) {
              m.tensors["final_norm.weight"] = {"F32", {8}, {{0, whole_box({8})}}};
            }),
            manifest + "final_norm.weight must be F32 [16], got F32 [8]" + under);
  EXPECT_EQ(refused_with([](Manifest& m) {
              m.tensors["final_norm.weight"].pieces = {{0, {{0}, {8}}}, {0, {{8}, {8}}}};
            }),
            file + "must have final_norm.weight[0:8], got no such tensor");
  EXPECT_EQ(refused_with([](Manifest&) {}), "nothing was refused");
}

TEST(Checkpoint, ThatIsDamagedIsPassedOver) {
  const Folder folder;
  Config config = config_for(layouts()[2], "float32");
  config.save = config.load = folder.path();
  run_checkpoint_ranks(config, 2, builtin_1f1b(), [](CheckpointRank& rank, const TrainContext& context) {
    EXPECT_EQ(rank.checkpoints.load(), TrainingPosition{});
    for (const std::int64_t iteration : {10, 20, 30}) {
      rank.planted.plant(*rank.optimizer);
      rank.checkpoints.save({iteration, iteration * 16});
    }
    rank.checkpoints.finish();
    EXPECT_EQ(rank.lines.size(), 4);
    EXPECT_EQ(rank.lines.front(), "no checkpoint in " + context.config.load + ": training begins anew");
  });
  EXPECT_EQ(list_checkpoints(folder.path()), (std::vector<std::int64_t>{30, 20}));
  const fs::path newest = checkpoint_path(folder.path(), 30), file = newest / "rank_00001.safetensors";
  std::string bytes = dualpipe::read_text(file);
  bytes.back() ^= 1;
  write_file(file, bytes);
  run_checkpoint_ranks(config, 2, builtin_1f1b(), [&](CheckpointRank& rank, const TrainContext& context) {
    EXPECT_EQ(rank.checkpoints.load(), (TrainingPosition{20, 320}));
    rank.planted.expect_planted(*rank.optimizer);
    ASSERT_EQ(rank.lines.size(), context.rank == 0 ? 3 : 2);
    EXPECT_TRUE(rank.lines[0].starts_with("passed over " + newest.string() + ": [" + file.string() +
                                          "] must have the sha256 of the manifest = "))
        << rank.lines[0];
    EXPECT_EQ(rank.lines[1],
              "loaded " + checkpoint_path(folder.path(), 20).string() + ": iteration 20, 320 consumed samples");
  });
  EXPECT_EQ(list_checkpoints(folder.path()), (std::vector<std::int64_t>{20}));
  EXPECT_TRUE(fs::exists(newest.string() + ".damaged"));
  fs::remove(checkpoint_path(folder.path(), 20) / "manifest.json");
  const std::string message = load_refusal(config, 2, builtin_1f1b(), folder.path());
  EXPECT_TRUE(message.starts_with("[" + folder.path().string() +
                                  "] must have a complete checkpoint, got none: passed "
                                  "over "))
      << message;
}

// Of every file below a folder its path and its bytes.
std::map<std::string, std::string> contents_of(const fs::path& folder) {
  std::map<std::string, std::string> contents;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    contents[entry.path().string()] = entry.is_regular_file() ? dualpipe::read_text(entry.path()) : "";
  }
  return contents;
}

// Two machines that do not share `load`, or one of them with a disk that does not answer: nobody knows that anything is
// damaged, so all end, and everything stays where it is.
TEST(Checkpoint, ThatRanksSeeDifferentlyIsNotPassedOver) {
  const Folder folder;
  const Config config = config_for(layouts()[2], "float32");
  const fs::path first = folder.path() / "first", second = folder.path() / "second";
  save_planted(config, 2, builtin_1f1b(), first);
  const std::string one = checkpoint_path(first, 30), other = checkpoint_path(second, 30);
  const std::string hash = dualpipe::read_text(one + "/manifest.json.sha256").substr(0, 64);
  const auto refused_with = [&](const std::function<void()>& change) {
    fs::remove_all(second);
    fs::copy(first, second, fs::copy_options::recursive);
    change();
    const auto before = contents_of(folder.path());
    const std::string message = load_refusal(config, builtin_1f1b(), {first, second});
    EXPECT_EQ(contents_of(folder.path()), before);
    return message;
  };
  const std::string differs = "[" + one + "] must be the same on every rank, got a whole one with manifest " + hash +
                              " on rank 0 and [" + other;
  const std::string shared = " on rank 1; load must be a folder that all ranks share and nobody else saves into";
  EXPECT_EQ(refused_with([&] { fs::remove_all(other); }),
            differs + "/manifest.json] must be a readable file, got: No such file or directory" + shared);
  EXPECT_EQ(refused_with([&] { fs::remove(other + "/rank_00000.safetensors"); }),
            differs + "/rank_00000.safetensors] must be a readable file, got: No such file or directory" + shared);
  const std::string bytes = std::to_string(fs::file_size(one + "/rank_00001.safetensors"));
  EXPECT_EQ(refused_with([&] { fs::resize_file(other + "/rank_00001.safetensors", 100); }),
            differs + "/rank_00001.safetensors] must have the " + bytes + " bytes of the manifest, got 100" + shared);
  EXPECT_EQ(refused_with([&] {
              fs::remove_all(second);
              write_file(second, "");
            }),
            "[" + other + "/manifest.json] must be a readable file, got: Not a directory on rank 1");
}

// One of a version to come, say.
TEST(Checkpoint, WhoseManifestIsNotUnderstoodIsNotPassedOver) {
  const Folder folder;
  Config config = config_for(layouts()[0], "float32");
  save_planted(config, 1, builtin_1f1b(), folder.path());
  const fs::path manifest = checkpoint_path(folder.path(), 30) / kManifestName;
  std::string text = dualpipe::read_text(manifest);
  const std::string version = "\"version\": 1";
  text.replace(text.find(version), version.size(), "\"version\": 2");
  write_file(manifest, text);
  write_file(manifest.string() + ".sha256", manifest_hash_line(text));
  config.save = folder.path();
  EXPECT_EQ(load_refusal(config, 1, builtin_1f1b(), folder.path()),
            "[" + manifest.string() + "] the manifest version must be 1, got 2 on rank 0");
  EXPECT_EQ(dualpipe::read_text(manifest), text);
}

TEST(Checkpoint, OfAnIterationThatIsAskedFor) {
  const Folder folder;
  Config config = config_for(layouts()[0], "float32");
  config.save = folder.path();
  config.checkpoints_to_keep = 3;
  run_checkpoint_ranks(config, 1, builtin_1f1b(), [](CheckpointRank& rank, const TrainContext&) {
    rank.checkpoints.load();
    for (const std::int64_t iteration : {10, 20, 30}) {
      rank.checkpoints.save({iteration, iteration});
    }
  });
  EXPECT_EQ(load_refusal(config, 1, builtin_1f1b(), folder.path() / "none"),
            "[save] must be a folder without checkpoints behind iteration 0, where this run begins, got " +
                checkpoint_path(folder.path(), 30).string() + "; for example load: " + folder.path().string() +
                ", or another folder");
  config.save.clear();
  config.load = folder.path();
  config.ckpt_step = 20;
  run_checkpoint_ranks(config, 1, builtin_1f1b(), [](CheckpointRank& rank, const TrainContext&) {
    EXPECT_EQ(rank.checkpoints.load(), (TrainingPosition{20, 20}));
  });
  config.ckpt_step = 25;
  EXPECT_TRUE(load_refusal(config, 1, builtin_1f1b(), folder.path())
                  .starts_with("[" + folder.path().string() + "] must have a complete checkpoint, got none"));
  config.ckpt_step.reset();
  config.exit_on_missing_checkpoint = true;
  EXPECT_EQ(load_refusal(config, 1, builtin_1f1b(), folder.path() / "none"),
            "[load] must be a folder with a checkpoint, got none in " + (folder.path() / "none").string() +
                "; for example exit_on_missing_checkpoint: false, which begins anew");
}

// One rank cannot write: all of them say so, and the older checkpoint is as it was.
TEST(Checkpoint, ThatOneRankCannotWriteFailsOnAll) {
  const Folder folder;
  for (const bool is_async : {false, true}) {
    Config config = config_for(layouts()[2], "float32");
    config.save = folder.path() / (is_async ? "async" : "sync");
    config.async_save = is_async;
    std::mutex mutex;
    std::vector<std::string> messages;
    run_checkpoint_ranks(config, 2, builtin_1f1b(), [&](CheckpointRank& rank, const TrainContext& context) {
      rank.checkpoints.load();
      rank.planted.plant(*rank.optimizer);
      rank.checkpoints.save(kPlantedPosition);
      rank.checkpoints.finish();
      context.group->barrier()->wait();
      if (context.rank == 0) {  // The next one's name is taken.
        fs::create_directory(checkpoint_path(context.config.save, 40));
      }
      context.group->barrier()->wait();
      const std::string message = refusal([&] {
        rank.checkpoints.save({40, 640});
        rank.checkpoints.finish();
      });
      const std::lock_guard lock(mutex);
      messages.push_back(message);
    });
    EXPECT_EQ(messages[0], "[" + checkpoint_path(config.save, 40).string() +
                               "] must be written, got: something of this name is there; free some space, or choose "
                               "another folder, for example save: output/checkpoints");
    EXPECT_EQ(messages[0], messages[1]);
    fs::remove(checkpoint_path(config.save, 40));
    expect_loads_planted(config_for(layouts()[0], "float32"), 1, builtin_1f1b(), config.save);
  }
}

// What is saved are the values at the time of the save, though training goes on meanwhile.
TEST(Checkpoint, IsWrittenBesideTraining) {
  const Folder folder;
  Config config = config_for(layouts()[8], "float32");
  config.save = folder.path();
  config.async_save = true;
  run_checkpoint_ranks(config, 6, builtin_1f1b(), [](CheckpointRank& rank, const TrainContext&) {
    rank.checkpoints.load();
    rank.planted.plant(*rank.optimizer);
    rank.checkpoints.save(kPlantedPosition);
    const at::NoGradGuard no_grad;
    for (GptChunk* chunk : rank.schedule->chunks()) {
      for (const at::Tensor& parameter : chunk->parameters()) {
        parameter.zero_();
      }
    }
    for (const ParameterState& state : parameter_states(*rank.optimizer)) {
      state.exp_avg.zero_();
      state.adamw->step(1);
    }
    rank.checkpoints.finish();
    ASSERT_EQ(rank.lines.size(), 1);
    EXPECT_TRUE(rank.lines[0].starts_with("checkpoint of iteration 30: ")) << rank.lines[0];
    EXPECT_NE(rank.lines[0].find("; training waited "), std::string::npos) << rank.lines[0];
  });
  expect_loads_planted(config_for(layouts()[0], "float32"), 1, builtin_1f1b(), folder.path());
}

}  // namespace
}  // namespace pretrain_gpt
