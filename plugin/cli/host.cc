#include "plugin/cli/host.h"

#include <fmt/core.h>

#include "plugin/cli/validators.h"
#include "plugin/schedule/error.h"

namespace dualpipe::cli {

void add_host_options(CLI::App& command, Host& host, const std::string& iterations_help) {
  TrainerRun& trainer = host.trainer;
  command.add_option("--config", trainer.config, "YAML file of pretrain_gpt, the C++ trainer")
      ->check(file_that_is_there("configs/gpt_moe_tiny.yaml"));
  command.add_option("--command", host.command,
                     "Command line of any other host, which takes DUALPIPE_SCHEDULE and DUALPIPE_OUTPUT from its "
                     "environment (docs/run_files.md)");
  command.add_option("--nproc", trainer.nproc, "With --config: processes")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command.add_option("--iterations", host.iterations, iterations_help)
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command.add_option("--set", trainer.overrides, "With --config: key=value, over the file; may be given again")
      ->allow_extra_args(false);
  command.add_option("--program", trainer.program, "With --config: pretrain_gpt, if not beside this program");
}

void refuse_trainer_options(const std::string& origin, const CLI::App& command) {
  if (command.count("--command") == 0) return;
  for (const char* option : {"--iterations", "--nproc", "--program", "--set"}) {
    if (command.count(option) == 0) continue;
    throw ScheduleError(
        origin,
        fmt::format("{} belongs to --config; what --command starts must have it in its own command line", option));
  }
}

Job host_job(const Host& host, const std::string& schedule, const std::filesystem::path& output,
             const std::vector<std::string>& before, const std::vector<std::string>& behind) {
  if (!host.has_trainer()) return command_job(host.command, schedule, output);
  TrainerRun run = host.trainer;
  run.overrides = {fmt::format("train_iters={}", host.iterations), "lr_decay_iters=1000000000", "eval_interval=0"};
  for (const auto& settings : {before, host.trainer.overrides, behind})
    run.overrides.insert(run.overrides.end(), settings.begin(), settings.end());
  return trainer_job(run, schedule, output);
}

}  // namespace dualpipe::cli
