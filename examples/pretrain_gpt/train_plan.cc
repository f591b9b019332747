#include "examples/pretrain_gpt/train_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "examples/pretrain_gpt/agreement.h"
#include "examples/pretrain_gpt/checkpoint/checkpoint_folder.h"
#include "examples/pretrain_gpt/checkpoint/durable_file.h"
#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/run_variables.h"
#include "examples/pretrain_gpt/start.h"

namespace pretrain_gpt {
namespace {

void take_schedule(TrainPlan& plan, ScheduleEntry schedule) {
  plan.schedule = std::move(schedule);
  plan.schedule.validate(plan.config, static_cast<int>(plan.config.pipeline_size()));
  plan.layout = RankLayout(parallel_sizes(plan.config, plan.schedule.mirrors(plan.config)));
}

// "" without any.
std::string print_layer_times(const std::optional<LayerTimes>& times) {
  return times ? fmt::format("{}, {}, {}", times->embedding, fmt::join(times->layers, ", "), times->head) : "";
}

std::string checkpoint_seen(const Config& config) {
  return config.load.empty() ? "" : describe_checkpoint(config.load, config.ckpt_step);
}

}  // namespace

TrainPlan make_plan(const TrainOptions& options, const ScheduleRegistry& registry, const Environment& environment) {
  TrainPlan plan{load_config(options.config, options.overrides, process_variable), {}, RankLayout({}), {}, {}};
  resolve(plan.config, environment.world_size);
  take_schedule(plan, registry.find(plan.config.pipeline_schedule, origin_of_schedule(process_variable)));
  plan.data = open_training_data(plan.config, plan.layout.data_rank(environment.rank));
  std::error_code error;
  make_folders_durably(plan.config.output_dir, error);
  if (error) {
    throw UserError(origin_of_output(process_variable),
                    fmt::format("must be a folder that can be made, got {}: {}; for example output",
                                plan.config.output_dir, error.message()));
  }
  return plan;
}

// Every rank has every key, whatever it was told.
void compare_with_other_ranks(const TrainPlan& plan, const Environment& environment, c10d::Store& store) {
  KeyValues pairs = run_variable_values(process_variable);
  const KeyValues keys = key_values(plan.config);
  pairs.insert(pairs.end(), keys.begin(), keys.end());
  pairs.emplace_back("the number of processes", std::to_string(environment.world_size));
  pairs.emplace_back("the number of tokens in data_path", std::to_string(plan.data.num_tokens));
  pairs.emplace_back("the layers in cost_file", print_layer_times(plan.config.layer_times));
  pairs.emplace_back("the file in pipeline_schedule", plan.schedule.fingerprint);
  pairs.emplace_back(kCheckpointSeen, checkpoint_seen(plan.config));
  compare(with_versions(std::move(pairs)), environment, store);
}

void settle_schedule(TrainPlan& plan, const Environment& environment, c10d::Store& store) {
  if (!plan.schedule.choose) {
    return;
  }
  plan.choice = choose_on_first_rank(plan.schedule, plan.config, store, environment.rank);
  take_schedule(plan, plan.schedule.chosen(plan.choice->rows));
}

}  // namespace pretrain_gpt
