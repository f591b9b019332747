// tests/pretrain_gpt/checkpoint/checkpoint_case.h
//
// Saves and loads of a small model by ranks that are threads, under any schedule and layout.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/checkpoint/checkpoint_folder.h"
#include "examples/pretrain_gpt/checkpoint/checkpoints.h"
#include "examples/pretrain_gpt/schedule_registry.h"
#include "tests/pretrain_gpt/checkpoint/planted_state.h"
#include "tests/pretrain_gpt/checkpoint/refusal.h"

namespace pretrain_gpt {

inline constexpr TrainingPosition kPlantedPosition{30, 480};
inline constexpr std::int64_t kTokens = 1000;

// One rank's trainer, without its steps.
struct CheckpointRank {
  CheckpointRank(const TrainContext& context, const ScheduleEntry& entry)
      : schedule(entry.make(context)),
        planted(context.config, schedule->chunks(), context.parallel),
        optimizer(make_optimizer(context.config, schedule->chunks(), schedule->main_gradients(), &context.parallel)),
        checkpoints({context, schedule->chunks(), *optimizer, kTokens, context.store,
                     [this](const std::string& line) { lines.push_back(line); }}) {}

  std::vector<std::string> lines;
  std::unique_ptr<ForwardBackward> schedule;
  PlantedState planted;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  Checkpoints checkpoints;
};

// All ranks of a run.
inline void run_checkpoint_ranks(const Config& config, int world_size, const ScheduleEntry& entry,
                                 const std::function<void(CheckpointRank&, const TrainContext&)>& body) {
  Config resolved = config;
  resolve(resolved, world_size);
  run_rank_threads(
      config, world_size,
      [&](const TrainContext& context) {
        CheckpointRank rank(context, entry);
        body(rank, context);
      },
      entry.mirrors(resolved));
}

inline void save_planted(Config config, int world_size, const ScheduleEntry& entry, const std::filesystem::path& save) {
  config.save = save;
  config.load.clear();
  run_checkpoint_ranks(config, world_size, entry, [](CheckpointRank& rank, const TrainContext&) {
    EXPECT_EQ(rank.checkpoints.load(), TrainingPosition{});
    rank.planted.plant(*rank.optimizer);
    rank.checkpoints.save(kPlantedPosition);
    rank.checkpoints.finish();
  });
}

inline void expect_loads_planted(Config config, int world_size, const ScheduleEntry& entry,
                                 const std::filesystem::path& load) {
  config.load = load;
  config.save.clear();
  run_checkpoint_ranks(config, world_size, entry, [](CheckpointRank& rank, const TrainContext&) {
    EXPECT_EQ(rank.checkpoints.load(), kPlantedPosition);
    rank.planted.expect_planted(*rank.optimizer);
  });
}

// What load() says on ranks that run as threads; it has to be one message.
class LoadRefusals {
 public:
  void collect(Checkpoints& checkpoints) {
    const std::string message = refusal([&] { checkpoints.load(); });
    const std::lock_guard lock(mutex_);
    messages_.push_back(message);
  }
  std::string only() const {
    for (const std::string& message : messages_) {
      EXPECT_EQ(message, messages_.front());
    }
    return messages_.front();
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> messages_;
};

// Where each rank has its own folder, as `load` would be on machines that do not share it. What rank 0 has is its
// `save` too.
inline std::string load_refusal(const Config& config, const ScheduleEntry& entry,
                                const std::vector<std::filesystem::path>& loads) {
  LoadRefusals refusals;
  run_rank_threads(config, static_cast<int>(loads.size()), [&](const TrainContext& context) {
    Config own = context.config;
    own.load = loads[static_cast<std::size_t>(context.parallel.rank())];
    own.save = loads.front();
    const TrainContext mine{own, context.parallel, context.store, context.output_dir};
    CheckpointRank rank(mine, entry);
    refusals.collect(rank.checkpoints);
  });
  return refusals.only();
}

inline std::string load_refusal(Config config, int world_size, const ScheduleEntry& entry,
                                const std::filesystem::path& load) {
  config.load = load;
  LoadRefusals refusals;
  run_checkpoint_ranks(config, world_size, entry,
                       [&](CheckpointRank& rank, const TrainContext&) { refusals.collect(rank.checkpoints); });
  return refusals.only();
}

}  // namespace pretrain_gpt
