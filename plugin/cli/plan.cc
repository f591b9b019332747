#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "plugin/analysis/grid.h"
#include "plugin/analysis/report.h"
#include "plugin/analysis/trace.h"
#include "plugin/cli/commands.h"
#include "plugin/cli/output.h"
#include "plugin/cli/summary.h"
#include "plugin/cli/terminal.h"
#include "plugin/cli/verify.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/lower.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"

namespace dualpipe::cli {
namespace {

constexpr int kMostBands = 12;

struct PlanOptions {
  std::string schedule;
  std::optional<int> ranks;
  std::optional<int> num_microbatches;
  int chunks = 2;
  std::optional<std::string> cost;
  std::string format = "grid";
  std::string output;
  std::string colour = "auto";
  std::optional<int> width;
  bool lowered = false;
  bool for_torch = false;
};

[[noreturn]] void refuse(const std::string& rule) { throw ScheduleError("plan", rule); }

void require_same(const std::string& name, const std::optional<int>& asked, int given) {
  if (asked && *asked != given) {
    refuse(fmt::format("{} must be the file's = {}, got {}; it can be left out", name, given, *asked));
  }
}

bool is_file(const PlanOptions& options) { return options.schedule.ends_with(".csv"); }

Schedule read_file(const PlanOptions& options) {
  Schedule schedule = read_schedule(options.schedule);
  require_same("--pipeline-model-parallel-size", options.ranks, schedule.placement.ranks());
  require_same("--num-microbatches", options.num_microbatches, schedule.num_microbatches);
  return schedule;
}

Schedule make_schedule(const PlanOptions& options) {
  if (is_file(options)) {
    return read_file(options);
  }
  const Registry registry = builtin_registry();
  ScheduleSpec spec;
  spec.virtual_pipeline_model_parallel_size = options.chunks;
  if (!options.ranks || !options.num_microbatches) {
    if (const std::vector<std::string> names = registry.names();
        std::find(names.begin(), names.end(), options.schedule) == names.end()) {
      return registry.make(options.schedule, spec);  // Throws, with the nearest name.
    }
    refuse(fmt::format("{} is required with --schedule {}, for example {}",
                       options.ranks ? "--num-microbatches" : "--pipeline-model-parallel-size", options.schedule,
                       options.ranks ? "--num-microbatches 16" : "--pipeline-model-parallel-size 4"));
  }
  spec.pipeline_model_parallel_size = *options.ranks;
  spec.num_microbatches = *options.num_microbatches;
  return registry.make(options.schedule, spec);
}

void write_csv(std::ostream& out, const Schedule& schedule, const PlanOptions& options) {
  if (options.for_torch) {
    print_for_torch(out, lower(schedule, {.slots = slots_for(schedule)}));
  } else if (options.lowered) {
    print_rows(out, lower(schedule, {.slots = slots_for(schedule)}).rows);
  } else {
    print_rows(out, schedule.rows);
  }
}

GridOptions grid_options(const PlanOptions& options) {
  const bool to_terminal = options.output.empty() && is_terminal();
  GridOptions grid;
  grid.colour = options.output.empty() ? wants_colour(options.colour) : options.colour == "always";
  grid.max_width = options.width.value_or(to_terminal ? terminal_width() : 0);
  grid.max_bands = to_terminal && !options.width ? kMostBands : 0;
  return grid;
}

void write_plan(std::ostream& out, const Schedule& schedule, const PlanOptions& options) {
  if (options.format == "csv") {
    write_csv(out, schedule, options);
    return;
  }
  const CostModel cost = options.cost ? parse_cost(*options.cost) : CostModel{};
  const Timeline timeline = simulate(schedule, cost);
  const PlanReport plan = report(schedule, cost, timeline);
  if (options.format == "json") {
    out << to_json(plan) << "\n";
  } else if (options.format == "trace") {
    out << to_trace(timeline) << "\n";
  } else {
    out << to_grid(timeline, grid_options(options)) << "\n" << summarize(schedule, cost, plan);
  }
}

int run_plan(const PlanOptions& options) {
  if ((options.lowered || options.for_torch) && options.format != "csv") {
    refuse(fmt::format("{} needs --format csv, got --format {}", options.lowered ? "--lowered" : "--for-torch",
                       options.format));
  }
  if (options.cost) {
    parse_cost(*options.cost);  // A mistake is told before the work is done.
  }
  const Schedule schedule = make_schedule(options);
  const bool writes_program = options.lowered || options.for_torch;
  const Depth depth = is_file(options) || writes_program ? Depth::kProgram : Depth::kSchedule;
  if (const std::optional<std::string> violation = find_violation(schedule, depth, wants_colour(options.colour))) {
    fmt::print(stderr, "{}", *violation);
    return kExitViolation;
  }
  write_output(options.output, [&](std::ostream& out) { write_plan(out, schedule, options); });
  return kExitOk;
}

}  // namespace

void add_plan(CLI::App& app, int& status) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "Draw a schedule, or write it or its numbers to a file.");
  command->add_option("-s,--schedule", options->schedule, "A name (see dualpipe schedules) or FILE.csv")->required();
  command->add_option("-P,--pipeline-model-parallel-size,--pipeline-parallel-size", options->ranks,
                      "Ranks of the pipeline; not needed with a file");
  command->add_option("-M,--num-microbatches", options->num_microbatches,
                      "Micro-batches per step, over both directions; not needed with a file");
  command->add_option("--virtual-pipeline-model-parallel-size", options->chunks, "Chunks per rank of interleaved_1f1b")
      ->capture_default_str();
  command->add_option("--cost", options->cost,
                      "forward=1,backward_input=1,backward_weight=1,overlapped=3,latency=0, or a part of it");
  command->add_option("--format", options->format, "grid, csv, json or trace (Chrome and Perfetto)")
      ->check(CLI::IsMember({"grid", "csv", "json", "trace"}))
      ->capture_default_str();
  command->add_option("-o,--output", options->output, "File to write instead of standard output");
  command->add_flag("--lowered", options->lowered, "With --format csv: sends, receives and reductions as well");
  command->add_flag("--for-torch", options->for_torch,
                    "With --format csv: the form that torch.distributed.pipelining loads as compute_comms");
  command->add_option("--width", options->width, "Columns of the grid before it continues below; 0 for one line")
      ->check(CLI::NonNegativeNumber);
  add_colour_option(*command, options->colour);
  command->callback([options, &status] { status = run_plan(*options); });
}

}  // namespace dualpipe::cli
