// plugin/cli/host.h
//
// What `ab` and `profile` train: pretrain_gpt with a configuration, or any other host by its command line.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "plugin/cli/launch.h"

namespace dualpipe::cli {

struct Host {
  TrainerRun trainer;
  std::string command;  // Empty: the trainer.
  int iterations = 1;   // Of the trainer.

  bool has_trainer() const { return command.empty(); }
  std::string name() const { return has_trainer() ? trainer.config : command; }
};

// What --help says of a run with --config, a sentence.
inline constexpr const char* kTrainerRunHelp =
    "A run of --config holds the learning rate flat behind its warm-up (lr_decay_iters=1000000000, unless --set gives "
    "another), evaluates nothing, and neither loads a checkpoint nor saves one, whatever the file says.";

// --config, --command, --nproc, --iterations, --set, --program.
void add_host_options(CLI::App& command, Host& host, const std::string& iterations_help);

// Throws ScheduleError from `origin` where options of the trainer stand beside --command.
void refuse_trainer_options(const std::string& origin, const CLI::App& command);

// A short run under `schedule`: the rate warms up as the file says and then stays, since there is no time to decay, nor
// for a warm-up as long as the run, and nothing is evaluated; DUALPIPE_OUTPUT keeps it from checkpoints. For the
// trainer `before` stands before what the user set, `behind` behind it; another host knows neither.
Job host_job(const Host& host, const std::string& schedule, const std::filesystem::path& output,
             const std::vector<std::string>& before = {}, const std::vector<std::string>& behind = {});

}  // namespace dualpipe::cli
