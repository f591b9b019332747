#include "plugin/cli/run_output.h"

#include <fmt/core.h>

#include "plugin/schedule/error.h"

namespace dualpipe::cli {
namespace {

bool means(const std::string& name, const std::filesystem::path& schedule) {
  return name == schedule || name == schedule.filename() || name == schedule.stem();
}

}  // namespace

RunFiles read_output(const std::filesystem::path& output, const std::string& schedule) {
  RunFiles run = read_run(output);
  if (!run.ranks.empty() && !means(run.ranks.front().schedule, schedule))
    throw ScheduleError((output / "timeline_rank0.jsonl").string() + ":1",
                        fmt::format("\"schedule\" must be DUALPIPE_SCHEDULE = \"{}\", got \"{}\": DUALPIPE_SCHEDULE "
                                    "was not honoured by the host",
                                    schedule, run.ranks.front().schedule));
  return run;
}

}  // namespace dualpipe::cli
