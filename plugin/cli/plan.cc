#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "plugin/analysis/grid.h"
#include "plugin/analysis/report.h"
#include "plugin/analysis/trace.h"
#include "plugin/cli/auto_options.h"
#include "plugin/cli/commands.h"
#include "plugin/cli/output.h"
#include "plugin/cli/plan_table.h"
#include "plugin/cli/schedule_options.h"
#include "plugin/cli/summary.h"
#include "plugin/cli/terminal.h"
#include "plugin/cli/validators.h"
#include "plugin/cli/verify.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/lower.h"
#include "plugin/schedule/rules.h"
#include "plugin/schedule/text.h"

namespace dualpipe::cli {
namespace {

constexpr int kMostBands = 12;

struct PlanOptions {
  ScheduleOptions source{.takes_all = true};
  AutoOptions search;
  std::string format = "grid";
  std::string output;
  std::string colour = "auto";
  std::optional<int> width;
  bool lowered = false;
  bool for_torch = false;
};

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

// A schedule, and where it was chosen by a search, that choice.
struct Planned {
  Schedule schedule;
  std::optional<AutoChoice> choice;
};

Planned make_planned(const CostSource& costs, const PlanOptions& options) {
  if (!is_auto(options.source)) return {make_schedule("plan", options.source), std::nullopt};
  AutoChoice choice = choose("plan", options.source, costs, options.search);
  return {choice.schedule, std::move(choice)};
}

FittedCost fit_costs(const Planned& planned, const CostSource& costs) {
  FittedCost fitted = costs.for_stages(planned.schedule.placement.stages());
  if (planned.choice) fitted.cost = planned.choice->cost;
  return fitted;
}

void write_plan(std::ostream& out, const Planned& planned, const CostSource& costs, const PlanOptions& options) {
  const Schedule& schedule = planned.schedule;
  if (options.format == "csv") {
    write_csv(out, schedule, options);
    return;
  }
  const FittedCost fitted = fit_costs(planned, costs);
  const Timeline timeline = simulate(schedule, fitted.cost);
  const PlanReport plan = costs.file() ? report(schedule, fitted, timeline) : report(schedule, fitted.cost, timeline);
  if (options.format == "json") {
    out << (planned.choice ? add_to_json(to_json(plan), *planned.choice) : to_json(plan)) << "\n";
  } else if (options.format == "trace") {
    out << to_trace(timeline) << "\n";
  } else {
    out << to_grid(timeline, grid_options(options)) << "\n" << summarize(schedule, fitted, plan);
    if (planned.choice) out << fmt::format("{:<18}{}\n", "why", planned.choice->reason);
  }
}

int run_plan_all(const CostSource& costs, PlanOptions options) {
  options.source.schedule = "all";
  if (options.format != "grid" && options.format != "json") {
    throw ScheduleError("plan", fmt::format("--schedule all needs --format grid or json, got --format {}; a file takes "
                                            "one schedule, for example --schedule dualpipe",
                                            options.format));
  }
  const ScheduleSpec spec = required_spec("plan", options.source);
  require_sizes("plan", spec, 1);
  const std::vector<PlanRow> rows = plan_all(spec, costs);
  write_output(options.output, [&](std::ostream& out) {
    out << (options.format == "json" ? to_json(rows, spec) + "\n" : to_table(rows, spec, costs));
  });
  const bool runs = std::any_of(rows.begin(), rows.end(), [](const PlanRow& row) { return !row.refusal; });
  return runs ? kExitOk : kExitUsage;
}

int run_plan(const PlanOptions& options) {
  if ((options.lowered || options.for_torch) && options.format != "csv") {
    throw ScheduleError("plan", fmt::format("{} needs --format csv, got --format {}",
                                            options.lowered ? "--lowered" : "--for-torch", options.format));
  }
  const CostSource costs = options.source.costs();  // A mistake is told before the work is done.
  refuse_auto_options("plan", options.source, options.search);
  if (options.source.schedule == "all" || (options.source.schedule.empty() && costs.file())) {
    return run_plan_all(costs, options);
  }
  const Planned planned = make_planned(costs, options);
  const Schedule& schedule = planned.schedule;
  const bool writes_program = options.lowered || options.for_torch;
  const Depth depth = options.source.is_file() || writes_program ? Depth::kProgram : Depth::kSchedule;
  if (const std::optional<std::string> violation = find_violation(schedule, depth, wants_colour(options.colour))) {
    fmt::print(stderr, "{}", *violation);
    return kExitViolation;
  }
  write_output(options.output, [&](std::ostream& out) { write_plan(out, planned, costs, options); });
  return kExitOk;
}

}  // namespace

void add_plan(CLI::App& app, int& status) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command =
      app.add_subcommand("plan",
                         "Draw a schedule, or write it or its numbers to a file. --schedule all, or a cost "
                         "file alone, lists every schedule.");
  add_schedule_options(*command, options->source);
  add_auto_options(*command, options->search);
  command->add_option("--format", options->format, "grid, csv, json or trace (Chrome and Perfetto)")
      ->check(CLI::IsMember({"grid", "csv", "json", "trace"}))
      ->capture_default_str();
  command->add_option("-o,--output", options->output, "File to write instead of standard output");
  command->add_flag("--lowered", options->lowered, "With --format csv: sends, receives and reductions as well");
  command->add_flag("--for-torch", options->for_torch,
                    "With --format csv: the form that torch.distributed.pipelining loads as compute_comms");
  command->add_option("--width", options->width, "Columns of the grid before it continues below; 0 for one line")
      ->check(number_of_at_least_0("120"));
  add_colour_option(*command, options->colour);
  command->callback([options, &status] { status = run_plan(*options); });
}

}  // namespace dualpipe::cli
