#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>

#include "plugin/analysis/grid.h"
#include "plugin/analysis/report.h"
#include "plugin/analysis/validate.h"
#include "plugin/cli/commands.h"
#include "plugin/cli/summary.h"
#include "plugin/cli/terminal.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"

namespace dualpipe::cli {
namespace {

constexpr int kPipedWidth = 120;
constexpr int kTableRanks = 8;
constexpr int kTableMicrobatches = 32;

Schedule make(const std::string& name, int ranks, int num_microbatches) {
  return builtin_registry().make(name, {.pipeline_model_parallel_size = ranks, .num_microbatches = num_microbatches});
}

void headline(const std::string& text, bool colour) {
  fmt::print("{}{}{}\n\n", colour ? "\033[1m" : "== ", text, colour ? "\033[0m" : " ==");
}

void show_grid(const std::string& title, const Schedule& schedule, bool colour) {
  headline(title, colour);
  const CostModel cost;
  const Timeline timeline = simulate(schedule, cost);
  const int width = terminal_width();
  const GridOptions options{.colour = colour, .max_width = width > 0 ? width : kPipedWidth};
  fmt::print("{}\n{}\n\n", to_grid(timeline, options),
             summarize(schedule, {.cost = cost}, report(schedule, cost, timeline)));
}

// The same model cut into stages / kTableRanks times as many stages makes each stage shorter.
CostModel shared_cost(const Schedule& schedule, double overlapped) {
  const double share = static_cast<double>(kTableRanks) / schedule.placement.stages();
  CostModel cost;
  cost.uniform = {share, share, share, overlapped * share};
  return cost;
}

void show_row(const std::string& name, double overlapped) {
  const Schedule schedule = make(name, kTableRanks, kTableMicrobatches);
  const CostModel cost = shared_cost(schedule, overlapped);
  const PlanReport plan = report(schedule, cost);
  const double share = static_cast<double>(kTableRanks) / schedule.placement.stages();
  const double idle = *std::max_element(plan.idle.begin(), plan.idle.end());
  const int peak = *std::max_element(plan.peak_activations.begin(), plan.peak_activations.end());
  fmt::print("{:<18}{:>8}{:>10}{:>8}{:>8.1f}%{:>14}{:>12}{:>13}\n", name, schedule.placement.stages(),
             number(plan.makespan), number(idle), 100 * idle / plan.makespan,
             plan.bubble_closed_form ? number(*plan.bubble_closed_form) : "-", number(peak * share),
             name == "dualpipe" ? "2x" : "1x");
}

void show_table(double overlapped) {
  fmt::print("F = I = W = 1 (so B = 2), F&B = {}:\n", number(overlapped));
  fmt::print("{:<18}{:>8}{:>10}{:>8}{:>9}{:>14}{:>12}{:>13}\n", "schedule", "stages", "makespan", "idle", "bubble",
             "closed form", "activations", "parameters");
  for (const char* name : {"1f1b", "interleaved_1f1b", "zb1p", "dualpipe", "dualpipev"}) {
    show_row(name, overlapped);
  }
  fmt::print("\n");
}

void show_tables(bool colour) {
  headline(fmt::format("Bubble and memory of one model, {} ranks, {} micro-batches, simulated", kTableRanks,
                       kTableMicrobatches),
           colour);
  show_table(3);
  show_table(2.25);
  fmt::print(
      "Times are per 1/{} of the model: a stage of interleaved_1f1b and dualpipev is half of one and takes half the\n"
      "time and memory. idle: the worst rank's. activations: the most that a rank holds, in micro-batches of such a\n"
      "part. parameters: copies of the model per {} ranks.\n\n\n",
      kTableRanks, kTableRanks);
}

// 1B1 is moved to right before 1F1, which it needs.
Schedule broken_schedule() {
  std::ostringstream csv;
  print_rows(csv, make("1f1b", 4, 6).rows);
  std::string text = csv.str();
  const std::string cell = ",1B1";
  const std::size_t from = text.find(cell);
  check(from != std::string::npos, "the demo's schedule has a cell 1B1");
  text.erase(from, cell.size());
  text.insert(text.find(",1F1"), cell);
  return parse_schedule(text, "broken.csv");
}

void show_broken(bool colour) {
  headline("A schedule that cannot run, as `dualpipe check broken.csv` explains it", colour);
  const Schedule schedule = broken_schedule();
  const std::vector<Violation> violations = validate(schedule);
  check(!violations.empty(), "the demo's broken schedule breaks a rule");
  fmt::print("{}", explain(schedule, violations.front(), colour));
}

void run_demo(const std::string& choice) {
  const bool colour = wants_colour(choice);
  show_grid("DualPipe: 20 micro-batches enter 8 ranks from both ends", make("dualpipe", 8, 20), colour);
  show_grid("DualPipeV: the same order folded in half, 10 micro-batches on 4 ranks", make("dualpipev", 4, 10), colour);
  show_tables(colour);
  show_broken(colour);
}

}  // namespace

void add_demo(CLI::App& app, int&) {
  auto colour = std::make_shared<std::string>(std::getenv("NO_COLOR") == nullptr ? "always" : "auto");
  CLI::App* command = app.add_subcommand("demo", "Show both schedules, their bubbles and memory, and a mistake.");
  add_colour_option(*command, *colour);
  command->callback([colour] { run_demo(*colour); });
}

}  // namespace dualpipe::cli
