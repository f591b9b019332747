// One training under several schedules: runs, table, report.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "plugin/analysis/cost_file.h"
#include "plugin/analysis/trace.h"
#include "plugin/cli/commands.h"
#include "plugin/cli/host.h"
#include "plugin/cli/output.h"
#include "plugin/cli/run_rounds.h"
#include "plugin/cli/validators.h"
#include "plugin/compare/comparison.h"
#include "plugin/compare/comparison_json.h"
#include "plugin/compare/comparison_table.h"
#include "plugin/compare/comparison_trace.h"
#include "plugin/compare/html_report.h"
#include "plugin/schedule/error.h"

namespace dualpipe::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOrigin = "ab";
constexpr const char* kMark = ".dualpipe_ab";  // In runs.
constexpr const char* kResults[] = {"runs", "comparison.json", "report.html", "trace.json"};

struct AbOptions {
  Host host{.trainer = {}, .command = {}, .iterations = 20};
  std::vector<std::string> schedules = {"builtin_1f1b", "interleaved_1f1b", "dualpipe", "dualpipev"};
  int rounds = 3;
  int timeout = 1800;
  std::optional<std::string> cost;
  std::string output = "output/ab";
  bool force = false;
  ComparisonOptions compared;
};

void require(bool holds, const std::string& rule) {
  if (!holds) throw ScheduleError(kOrigin, rule);
}

void check_host(const CLI::App& command, const AbOptions& options) {
  const bool has_config = command.count("--config") > 0;
  const bool has_command = command.count("--command") > 0;
  require(has_config || has_command,
          "--config FILE or --command 'PROGRAM ...' must say what to train, for example --config "
          "configs/gpt_moe_tiny.yaml, got neither");
  require(!(has_config && has_command),
          "--config, which starts pretrain_gpt, and --command, which starts any other host, must not stand together");
  require(!has_command || !options.host.command.empty(), "--command must be a command line, got an empty one");
  refuse_trainer_options(kOrigin, command);
}

void check_schedules(AbOptions& options) {
  std::vector<std::string> sorted = options.schedules;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  require(twice == sorted.end(), "--schedules must name each schedule once, got " +
                                     (twice == sorted.end() ? std::string() : *twice) + " twice");
  require(sorted.front().find_first_not_of(' ') != std::string::npos,
          "--schedules must be names with commas, as in builtin_1f1b,dualpipe, got an empty one");
  std::string& baseline = options.compared.baseline;
  if (baseline.empty()) baseline = options.schedules.front();
  require(
      std::binary_search(sorted.begin(), sorted.end(), baseline),
      fmt::format("--baseline must be one of --schedules, {}, got {}", fmt::join(options.schedules, ","), baseline));
}

void check_options(const CLI::App& command, AbOptions& options) {
  check_host(command, options);
  check_schedules(options);
  require(!options.host.has_trainer() || options.host.iterations > options.compared.warmup,
          fmt::format("--iterations must be above --warmup = {}, got {}", options.compared.warmup,
                      options.host.iterations));
  if (options.cost) options.compared.cost = read_cost_file(*options.cost);
  if (options.host.has_trainer()) options.host.trainer.program = find_trainer(options.host.trainer.program);
}

bool is_comparison(const fs::path& file) {
  std::ifstream in(file);
  const auto json = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.value("format", nlohmann::json()) == "dualpipe-comparison";
}

// An interrupted comparison has the mark alone.
bool holds_comparison(const fs::path& folder) {
  return fs::exists(folder / "runs" / kMark) || is_comparison(folder / "comparison.json");
}

// Only what an earlier comparison wrote is removed.
void remove_results(const fs::path& folder) {
  if (!holds_comparison(folder)) {
    for (const char* result : kResults)
      require(!fs::exists(folder / result),
              fmt::format("--force replaces a comparison, got '{}' with a '{}' of something else in it; choose another "
                          "folder with -o",
                          folder.string(), result));
  }
  for (const char* result : kResults) fs::remove_all(folder / result);
}

void make_folder(const AbOptions& options) {
  const fs::path folder = options.output;
  require(!options.output.empty(), "-o must be a folder, got ''; for example -o output/ab");
  try {
    require(!fs::exists(folder) || fs::is_directory(folder),
            fmt::format("-o must be a folder, got the file '{}'; for example -o output/ab", options.output));
    require(options.force || !fs::exists(folder) || fs::is_empty(folder),
            fmt::format("-o must be a new or an empty folder, got '{}' with files in it; --force replaces the "
                        "comparison that is there",
                        options.output));
    remove_results(folder);
    fs::create_directories(folder / "runs");
    write_output((folder / "runs" / kMark).string(), [](std::ostream& out) {
      out << "Runs of a comparison: dualpipe ab --force may remove this folder.\n";
    });
  } catch (const fs::filesystem_error& error) {
    throw ScheduleError(kOrigin, fmt::format("-o must be a folder that can be written, got '{}': {}; for example -o "
                                             "output/ab",
                                             options.output, error.code().message()));
  }
}

std::string for_shell(const std::string& argument) {
  const bool is_plain = !argument.empty() && argument.find_first_of(" \t\n'\"\\$&|;<>()*?`") == std::string::npos;
  if (is_plain) return argument;
  std::string text = "'";
  for (const char c : argument) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// As this process was called.
std::string command_line() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::string line = "dualpipe";
  std::string argument;
  std::getline(in, argument, '\0');
  while (std::getline(in, argument, '\0')) line += " " + for_shell(argument);
  return line;
}

// Before that there is nothing to compare with.
bool has_reference(const std::vector<ScheduleRuns>& runs, const std::string& baseline) {
  return std::any_of(runs.begin(), runs.end(), [&](const ScheduleRuns& run) {
    return run.schedule == baseline && (run.failure || !run.rounds.empty());
  });
}

RoundsOptions rounds_of(const AbOptions& options) {
  RoundsOptions rounds;
  rounds.schedules = options.schedules;
  rounds.rounds = options.rounds;
  rounds.folder = fs::path(options.output) / "runs";
  if (options.host.has_trainer()) rounds.iterations = options.host.iterations;
  if (options.timeout > 0) rounds.timeout = std::chrono::seconds(options.timeout);
  rounds.job = [&options](const std::string& schedule, const fs::path& output) {
    return host_job(options.host, schedule, output);
  };
  rounds.should_stop = [&options](const std::vector<ScheduleRuns>& runs) {
    return has_reference(runs, options.compared.baseline) && !compare_runs(runs, options.compared).mismatches.empty();
  };
  return rounds;
}

void write_files(const Comparison& comparison, const fs::path& folder) {
  const std::string json = to_json(comparison);
  const auto write = [&](const char* name, const std::string& text) {
    write_output((folder / name).string(), [&](std::ostream& out) { out << text; });
  };
  write("comparison.json", json);
  write("report.html", html_report(json));
  write("trace.json", to_trace(trace_processes(comparison), 1e6));
}

void print_end(const Comparison& comparison, const AbOptions& options) {
  if (!comparison.mismatches.empty())
    fmt::print("The schedules do not train alike{}: what the table says of their times compares different trainings.\n",
               comparison.rounds < options.rounds ? fmt::format(", so it stopped in round {}", comparison.rounds) : "");
  const std::string& folder = options.output;
  fmt::print("\nreport {0}/report.html  figures {0}/comparison.json  Perfetto {0}/trace.json  logs {0}/runs\n", folder);
}

int run_ab(const CLI::App& command, AbOptions& options) {
  check_options(command, options);
  make_folder(options);
  options.compared.title = options.host.name();
  options.compared.command = command_line();
  const Comparison comparison = compare_runs(run_rounds(rounds_of(options)), options.compared);
  fmt::print("{}", to_table(comparison));
  write_files(comparison, options.output);
  print_end(comparison, options);
  return comparison.has_failures() || !comparison.mismatches.empty() ? kExitViolation : kExitOk;
}

void add_comparison_options(CLI::App& command, AbOptions& options) {
  ComparisonOptions& compared = options.compared;
  command.add_option("--baseline", compared.baseline, "Schedule that the others are compared with; default: the first");
  command.add_option(
      "--cost", options.cost,
      "Cost file, as dualpipe profile writes it: predicts every iteration, to stand beside what it took");
  command.add_option("--warmup", compared.warmup, "First iterations of each run that no time is taken from")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  command
      .add_option("--tolerance-first", compared.tolerance_first,
                  "Largest relative difference of the first loss and gradient norm")
      ->check(number_of_at_least_0("1e-5"))
      ->capture_default_str();
  command.add_option("--tolerance-curve", compared.tolerance_curve, "Largest relative difference of any loss")
      ->check(number_of_at_least_0("1e-3"))
      ->capture_default_str();
}

}  // namespace

void add_ab(CLI::App& app, int& status) {
  auto options = std::make_shared<AbOptions>();
  CLI::App* command = app.add_subcommand("ab", "Run a training under several schedules and compare them.");
  command->option_defaults()->take_last();  // `make ab ARGS=...` comes behind what make gives.
  add_host_options(*command, options->host, "With --config: iterations of a run");
  command->add_option("--schedules", options->schedules, "Values of pipeline_schedule, with commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--rounds", options->rounds, "How often each schedule runs, in turns")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--timeout", options->timeout, "Seconds after which a run is ended; 0: never")
      ->check(number_of_at_least_0("1800"))
      ->capture_default_str();
  command->add_option("-o,--output", options->output, "New folder for the report, the figures and the runs")
      ->capture_default_str();
  command->add_flag("--force", options->force, "Replace the comparison that is in the folder");
  add_comparison_options(*command, *options);
  command->footer(fmt::format(
      "{}\nExit code 1: a schedule failed, or losses differ by more than the tolerances (float32).", kTrainerRunHelp));
  command->callback([command, options, &status] { status = run_ab(*command, *options); });
}

}  // namespace dualpipe::cli
