#include "plugin/cli/schedule_options.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "plugin/schedule/error.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"

namespace dualpipe::cli {
namespace {

void require_same(const std::string& command, const std::string& name, const std::optional<int>& asked, int given) {
  if (asked && *asked != given) {
    throw ScheduleError(command,
                        fmt::format("{} must be the file's = {}, got {}; it can be left out", name, given, *asked));
  }
}

Schedule read_file(const std::string& command, const ScheduleOptions& options) {
  Schedule schedule = read_schedule(options.schedule);
  require_same(command, "--pipeline-model-parallel-size", options.ranks, schedule.placement.ranks());
  require_same(command, "--num-microbatches", options.num_microbatches, schedule.num_microbatches);
  return schedule;
}

void check_name(std::vector<std::string> names, const ScheduleOptions& options) {
  if (std::find(names.begin(), names.end(), options.schedule) != names.end()) return;
  names.push_back("auto");
  if (options.takes_all) names.push_back("all");
  const std::string near = nearest_name(options.schedule, names);
  throw ScheduleError("--schedule",
                      fmt::format("must be one of {} or a .csv file, got \"{}\"{}", fmt::join(names, ", "),
                                  options.schedule, near.empty() ? "" : "; did you mean " + near + "?"));
}

}  // namespace

void add_schedule_options(CLI::App& command, ScheduleOptions& options) {
  command.add_option("-s,--schedule", options.schedule,
                     options.takes_all ? "A name (see dualpipe schedules), auto, all or FILE.csv"
                                       : "A name (see dualpipe schedules), auto or FILE.csv");
  command.add_option("-P,--pipeline-model-parallel-size,--pipeline-parallel-size", options.ranks,
                     "Ranks of the pipeline; not needed with a file");
  command.add_option("-M,--num-microbatches", options.num_microbatches,
                     "Micro-batches per step, over both directions; not needed with a file");
  command.add_option("--virtual-pipeline-model-parallel-size", options.chunks, "Chunks per rank of interleaved_1f1b")
      ->capture_default_str();
  command.add_option(
      "--cost", options.cost,
      "forward=1,backward_input=1,backward_weight=1,overlapped=3,latency=0, or a part of it; or a cost file, "
      "as dualpipe profile writes it");
}

ScheduleSpec required_spec(const std::string& command, const ScheduleOptions& options) {
  if (!options.ranks || !options.num_microbatches) {
    throw ScheduleError(
        command, fmt::format("{} is required with --schedule {}, for example {}",
                             options.ranks ? "--num-microbatches" : "--pipeline-model-parallel-size", options.schedule,
                             options.ranks ? "--num-microbatches 16" : "--pipeline-model-parallel-size 4"));
  }
  return {*options.ranks, *options.num_microbatches, options.chunks};
}

Schedule make_schedule(const std::string& command, const ScheduleOptions& options) {
  if (options.schedule.empty()) {
    throw ScheduleError(command, "--schedule is required, for example --schedule dualpipe");
  }
  if (options.is_file()) {
    return read_file(command, options);
  }
  const Registry registry = builtin_registry();
  check_name(registry.names(), options);
  return registry.make(options.schedule, required_spec(command, options));
}

}  // namespace dualpipe::cli
