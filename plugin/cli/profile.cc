// What the stages of a training cost: a few steps, and a cost file.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "plugin/cli/commands.h"
#include "plugin/cli/host.h"
#include "plugin/cli/output.h"
#include "plugin/cli/profile_table.h"
#include "plugin/cli/run_output.h"
#include "plugin/cli/validators.h"
#include "plugin/schedule/error.h"

namespace dualpipe::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOrigin = "profile";
constexpr std::size_t kLogLines = 15;
constexpr const char* kMarker = ".dualpipe_profile";  // In a folder of runs, which are replaced.

struct ProfileOptions {
  Host host{.trainer = {}, .command = {}, .iterations = 10};
  // The first shows everything at the finest division; the others need fewer layers or micro-batches.
  std::vector<std::string> schedules = {"dualpipev", "dualpipe", "zb1p"};
  int timeout = 1800;
  std::string output = "output/profile/cost.json";

  fs::path runs() const { return fs::path(output).replace_extension("runs"); }
};

// A run's folder is named after its schedule, and emptied before the run.
void check_schedules(const ProfileOptions& options) {
  for (const std::string& schedule : options.schedules) {
    const fs::path name = fs::path(schedule).filename();
    if (name.empty() || name == "." || name == "..") {
      throw ScheduleError(kOrigin, fmt::format("--schedules must be names or .csv files, got '{}'; for example "
                                               "--schedules dualpipev,zb1p",
                                               schedule));
    }
  }
}

void check_options(const CLI::App& command, ProfileOptions& options) {
  const bool has_config = command.count("--config") > 0, has_command = command.count("--command") > 0;
  if (has_config == has_command || (has_command && options.host.command.empty())) {
    throw ScheduleError(kOrigin,
                        fmt::format("either --config FILE or --command 'PROGRAM ...' must say what to run, got "
                                    "{}; for example --config configs/gpt_moe_tiny.yaml",
                                    has_config    ? "both"
                                    : has_command ? "an empty command"
                                                  : "neither"));
  }
  refuse_trainer_options(kOrigin, command);
  check_schedules(options);
  if (options.host.has_trainer()) {
    options.host.trainer.program = find_trainer(options.host.trainer.program);
  }
}

// What is in it is deleted before the runs, so nobody else may have made it. Throws std::filesystem::filesystem_error.
void claim_runs_folder(const fs::path& runs) {
  if (fs::exists(runs) && !fs::is_empty(runs) && !fs::exists(runs / kMarker)) {
    throw ScheduleError(kOrigin,
                        fmt::format("'{}' must be empty, or made by profile, which replaces the runs in it, got "
                                    "a folder with other files; choose another file with -o",
                                    runs.string()));
  }
  fs::create_directories(runs);
  std::ofstream(runs / kMarker) << "dualpipe profile replaces what is here.\n";
}

// Before any run: a result that cannot be written is told at once.
void prepare_folder(const ProfileOptions& options) {
  std::error_code error;
  if (fs::is_directory(options.output, error)) {
    throw ScheduleError(
        kOrigin, fmt::format("-o must be a file, got the folder '{0}'; for example -o {0}/cost.json", options.output));
  }
  if (fs::path(options.output).filename().empty() || options.runs() == options.output) {
    throw ScheduleError(kOrigin, fmt::format("-o must be a file that does not end in / or .runs, got '{}'; for example "
                                             "-o output/profile/cost.json",
                                             options.output));
  }
  const fs::path parent = fs::path(options.output).parent_path();
  try {
    if (!parent.empty()) fs::create_directories(parent);
    claim_runs_folder(options.runs());
  } catch (const fs::filesystem_error& error) {
    throw ScheduleError(kOrigin, fmt::format("cannot write to '{}': {}; choose another file with -o",
                                             parent.empty() ? "." : parent.string(), error.code().message()));
  }
}

// Throws where the run failed or its files lack what a cost file needs.
RunCost measure(const ProfileOptions& options, const std::string& schedule, const fs::path& output,
                const std::vector<std::string>& more) {
  fs::remove_all(output);
  JobOptions job{.log = {}, .timeout = {}, .poll = {}};
  if (options.timeout > 0) {
    job.timeout = std::chrono::seconds(options.timeout);
  }
  // The division of layers under test is the even one: a file that says another is what this makes.
  if (const auto failure = run_in(output, host_job(options.host, schedule, output, {"balance=even"}, more), job)) {
    throw ScheduleError(schedule, *failure);
  }
  RunCost cost = cost_of_run(read_output(output, schedule));
  cost.file.source = fmt::format("{} of {}", schedule, options.host.name());
  return cost;
}

std::optional<RunCost> try_schedule(const ProfileOptions& options, const std::string& schedule) {
  const fs::path output = options.runs() / fs::path(schedule).filename();
  fmt::print("{}: running\n", schedule);
  std::fflush(stdout);
  try {
    return measure(options, schedule, output, {});
  } catch (const ScheduleError& error) {
    fmt::print(stderr, "{}: {}\n--- the last lines of {}\n{}---\n", schedule, error.what(),
               (output / "output.log").string(), tail(output / "output.log", kLogLines));
    return std::nullopt;
  }
}

// A trainer whose stages run whole shows its layers where it is asked to run them phase by phase.
void add_layers(const ProfileOptions& options, const std::string& schedule, RunCost& cost) {
  if (!options.host.has_trainer() || !cost.file.layers.empty()) {
    return;
  }
  fmt::print("{}: running once more, layer by layer\n", schedule);
  std::fflush(stdout);
  const fs::path output = options.runs() / fs::path(schedule + "_layers").filename();
  try {
    cost.file.layers = measure(options, schedule, output, {"record_phases=true"}).file.layers;
  } catch (const ScheduleError& error) {
    cost.notes.push_back(fmt::format("no layers: {}", error.what()));
  }
}

std::string next_step(const ProfileOptions& options, const RunCost& cost) {
  return fmt::format("\nwritten to {0}; next: dualpipe plan --cost {0} -P {1} -M {2}\n", options.output, cost.ranks,
                     cost.num_microbatches);
}

int run_profile(const CLI::App& command, ProfileOptions& options) {
  check_options(command, options);
  prepare_folder(options);
  for (const std::string& schedule : options.schedules) {
    std::optional<RunCost> cost = try_schedule(options, schedule);
    if (!cost) {
      continue;
    }
    add_layers(options, schedule, *cost);
    write_output(options.output, [&](std::ostream& out) { out << to_json(cost->file); });
    fmt::print("\n{}{}", to_table(*cost), next_step(options, *cost));
    return kExitOk;
  }
  fmt::print(stderr, "dualpipe: [{}] one of {} must run, got none; nothing was written\n", kOrigin,
             fmt::join(options.schedules, ", "));
  return kExitViolation;
}

}  // namespace

void add_profile(CLI::App& app, int& status) {
  auto options = std::make_shared<ProfileOptions>();
  CLI::App* command = app.add_subcommand("profile", "Run a few steps and write what the stages cost to a file.");
  add_host_options(*command, options->host, "With --config: steps, of which the last five are measured");
  command->add_option("--schedules", options->schedules, "Tried in this order until one runs, with commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--timeout", options->timeout, "Seconds after which a run is ended; 0: never")
      ->check(number_of_at_least_0("1800"))
      ->capture_default_str();
  command
      ->add_option("-o,--output", options->output, "Cost file to write; what the runs wrote stays beside it, in .runs")
      ->capture_default_str();
  command->footer(fmt::format(
      "dualpipev shows every cost at two stages per rank; it takes 2P layers and 2P micro-batches a step.\n{}",
      kTrainerRunHelp));
  command->callback([command, options, &status] { status = run_profile(*command, *options); });
}

}  // namespace dualpipe::cli
