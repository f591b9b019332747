#include <fmt/core.h>

#include <memory>
#include <string>

#include "plugin/cli/commands.h"
#include "plugin/cli/terminal.h"
#include "plugin/cli/verify.h"
#include "plugin/schedule/lower.h"
#include "plugin/schedule/text.h"

namespace dualpipe::cli {
namespace {

struct CheckOptions {
  std::string path;
  std::string colour = "auto";
};

// "" where the file has none.
std::string describe_communication(const std::string& path) {
  const std::size_t cells = count_communication_cells(path);
  return cells == 0 ? ""
                    : fmt::format("  {} communication cell{} ignored and lowered anew; columns count compute actions\n",
                                  cells, cells == 1 ? "" : "s");
}

int run_check(const CheckOptions& options) {
  const Schedule schedule = read_schedule(options.path);
  const std::string communication = describe_communication(options.path);
  if (const std::optional<std::string> violation =
          find_violation(schedule, Depth::kProgram, wants_colour(options.colour))) {
    fmt::print("{}: {}{}", options.path, *violation, communication);
    return kExitViolation;
  }
  const int slots = least_slots(schedule);
  fmt::print(
      "{}: ok\n"
      "  {} ranks, {} stages{}, {} micro-batches\n"
      "{}"
      "  every F, B, I and W stands once, on its rank, in an order that can run\n"
      "  lowered: no deadlock under tagged rendezvous, nor under in-order channels with {} slots per directed edge\n"
      "  least slots per directed edge: {}\n",
      options.path, schedule.placement.ranks(), schedule.placement.stages(),
      schedule.placement.is_bidirectional() ? " on two ranks each" : "", schedule.num_microbatches, communication,
      slots_for(schedule), slots);
  return kExitOk;
}

}  // namespace

void add_check(CLI::App& app, int& status) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* command = app.add_subcommand("check", "Say whether a schedule file can run, or what is wrong with it.");
  command->add_option("file", options->path, "A schedule in the text form, a line per rank")->required();
  add_colour_option(*command, options->colour);
  command->footer(
      "Only compute cells are checked: cells of communication (SEND_F, REDUCE_GRAD, ...) are ignored and lowered "
      "anew.\n"
      "Exit code: 0 if it can run, 1 if not, 2 if the file cannot be read.");
  command->callback([options, &status] { status = run_check(*options); });
}

}  // namespace dualpipe::cli
