#include <fmt/core.h>

#include <memory>
#include <string>

#include "plugin/cli/commands.h"
#include "plugin/compare/postmortem.h"

namespace dualpipe::cli {

void add_postmortem(CLI::App& app, int& status) {
  auto folder = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("postmortem", "Say where the ranks of a failed run part, by the logs of their last actions.");
  command->add_option("folder", *folder, "With ring_rank<R>.jsonl files; the output_dir of the run")->required();
  command->footer("Times of ranks on several machines are by their own clocks.\nExit code: 0, or 2 if a log is wrong.");
  command->callback([folder, &status] {
    fmt::print("{}", print_postmortem(read_rings(*folder)));
    status = kExitOk;
  });
}

}  // namespace dualpipe::cli
