// examples/pretrain_gpt/main.cc
//
// The program `pretrain_gpt`: train, prepare-data, schedules, groups.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <exception>

#include "examples/pretrain_gpt/builtin_1f1b.h"
#include "examples/pretrain_gpt/data/prepare_data.h"
#include "examples/pretrain_gpt/extensions.h"
#include "examples/pretrain_gpt/failures/exit_code.h"
#include "examples/pretrain_gpt/parallel/rank_layout.h"
#include "examples/pretrain_gpt/run_variables.h"
#include "examples/pretrain_gpt/train.h"

namespace {

using namespace pretrain_gpt;

ScheduleRegistry all_schedules() {
  ScheduleRegistry registry;
  registry.add(builtin_1f1b());
  register_extensions(registry);
  return registry;
}

void add_prepare_data(CLI::App& app, PrepareOptions& options) {
  CLI::App* command = app.add_subcommand("prepare-data", "Make an indexed data set of byte tokens from text files");
  command->add_option("--input", options.inputs, "Files, and folders that are searched")->required();
  command->add_option("--output", options.output, "Prefix of the .bin and .idx files")->required();
  command->add_option("--extensions", options.extensions, "Which files of a folder are taken, for example .py");
  command->add_option("--max-bytes", options.max_bytes, "Stop before the file that would exceed it");
}

void run_prepare_data(const PrepareOptions& options) {
  const PreparedData data = prepare_data(options);
  fmt::print("{} documents, {} tokens: {}.bin, {}.idx\n", data.documents, data.tokens, options.output, options.output);
}

void list_schedules(const ScheduleRegistry& registry) {
  for (const ScheduleEntry& entry : registry.entries()) {
    fmt::print("{:<20} {}\n", entry.name, entry.summary);
  }
}

struct GroupsOptions {
  TrainOptions train;
  int world_size = 1;
};

void add_config(CLI::App& command, TrainOptions& options) {
  command.add_option("--config", options.config, "YAML file, for example configs/gpt_tiny.yaml")->required();
  command.add_option("--set", options.overrides, "key=value, over the file; may be given again")
      ->allow_extra_args(false);
}

void add_train(CLI::App& app, TrainOptions& options) {
  add_config(*app.add_subcommand("train", "Train a GPT; start it once per rank, with torchrun, srun or mpirun"),
             options);
}

void add_groups(CLI::App& app, GroupsOptions& options) {
  CLI::App* command = app.add_subcommand("groups", "Print which ranks form a group, in every dimension of parallelism");
  add_config(*command, options.train);
  command->add_option("--world-size", options.world_size, "Number of processes")
      ->required()
      ->check(CLI::PositiveNumber);
}

void list_groups(const GroupsOptions& options, const ScheduleRegistry& registry) {
  Config config = load_config(options.train.config, options.train.overrides, process_variable);
  resolve(config, options.world_size);
  ScheduleEntry schedule = registry.find(config.pipeline_schedule, origin_of_schedule(process_variable));
  if (schedule.choose) {
    schedule = schedule.chosen(schedule.choose(config, static_cast<int>(config.pipeline_size())).rows);
  }
  fmt::print("{}", print_groups(RankLayout(parallel_sizes(config, schedule.mirrors(config)))));
}

int run(int argc, char** argv) {
  CLI::App app{"Trains a GPT over a pipeline of processes"};
  app.require_subcommand(1);
  TrainOptions train;
  GroupsOptions groups;
  PrepareOptions prepare;
  add_train(app, train);
  add_groups(app, groups);
  add_prepare_data(app, prepare);
  app.add_subcommand("schedules", "List the values of pipeline_schedule");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::kConfiguration);
  }

  if (app.got_subcommand("train")) {
    run_train(train, all_schedules());
  } else if (app.got_subcommand("groups")) {
    list_groups(groups, all_schedules());
  } else if (app.got_subcommand("prepare-data")) {
    run_prepare_data(prepare);
  } else {
    list_schedules(all_schedules());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // A peer that has gone is an error of the call that talks to it, not the end of this process.
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return static_cast<int>(exit_code_of(error));
  }
}
