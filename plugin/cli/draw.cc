#include <fmt/core.h>

#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "plugin/analysis/picture.h"
#include "plugin/cli/auto_options.h"
#include "plugin/cli/commands.h"
#include "plugin/cli/output.h"
#include "plugin/cli/schedule_options.h"
#include "plugin/cli/summary.h"
#include "plugin/cli/verify.h"

namespace dualpipe::cli {
namespace {

struct DrawOptions {
  ScheduleOptions source;
  AutoOptions search;
  std::string output;
  int width = 0;
};

PictureOptions picture_options(const DrawOptions& options, const Schedule& schedule, const CostModel& cost,
                               const std::string& unit) {
  return {.title = fmt::format("{}, {} ranks, {} micro-batches", schedule.name, schedule.placement.ranks(),
                               schedule.num_microbatches),
          .caption = describe(cost),
          .unit = unit,
          .placement = schedule.placement,
          .width = options.width};
}

int run_draw(const DrawOptions& options) {
  const CostSource costs = options.source.costs();
  refuse_auto_options("draw", options.source, options.search);
  const std::optional<AutoChoice> choice =
      is_auto(options.source) ? std::optional(choose("draw", options.source, costs, options.search)) : std::nullopt;
  const Schedule schedule = choice ? choice->schedule : make_schedule("draw", options.source);
  if (const std::optional<std::string> violation = find_violation(schedule, Depth::kSchedule, false)) {
    fmt::print(stderr, "{}", *violation);
    return kExitViolation;
  }
  const CostModel cost = choice ? choice->cost : costs.for_stages(schedule.placement.stages()).cost;
  const std::string picture = to_svg(simulate(schedule, cost), picture_options(options, schedule, cost, costs.unit()));
  write_output(options.output, [&](std::ostream& out) { out << picture; });
  return kExitOk;
}

}  // namespace

void add_draw(CLI::App& app, int& status) {
  auto options = std::make_shared<DrawOptions>();
  CLI::App* command = app.add_subcommand("draw", "Draw a schedule to time scale as an SVG picture.");
  add_schedule_options(*command, options->source);
  add_auto_options(*command, options->search);
  command->add_option("-o,--output", options->output, "File to write, e.g. plan.svg, instead of standard output");
  command
      ->add_option(
          "--width", options->width,
          "Pixels; by default what the numbers in the cells need, up to 1800, or 4800 for more than 32 ranks; 2400 "
          "where lanes are too low for numbers")
      ->check(CLI::Range(kLeastPictureWidth, 100000));
  command->callback([options, &status] { status = run_draw(*options); });
}

}  // namespace dualpipe::cli
