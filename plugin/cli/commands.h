// plugin/cli/commands.h
//
// The subcommands of `dualpipe`, one file each. add_*() registers the command; when the user calls it, it runs inside
// CLI::App::parse() and leaves its exit code in `status`. A mistake of the user throws ScheduleError.
#pragma once

#include <CLI/CLI.hpp>

namespace dualpipe::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitViolation = 1;  // A schedule breaks a rule, failed or trains differently; it is explained.
inline constexpr int kExitUsage = 2;      // The command line or a file is wrong.

void add_ab(CLI::App& app, int& status);
void add_plan(CLI::App& app, int& status);
void add_postmortem(CLI::App& app, int& status);
void add_draw(CLI::App& app, int& status);
void add_check(CLI::App& app, int& status);
void add_claims(CLI::App& app, int& status);
void add_scale(CLI::App& app, int& status);
void add_overlap(CLI::App& app, int& status);
void add_profile(CLI::App& app, int& status);
void add_demo(CLI::App& app, int& status);
void add_schedules(CLI::App& app, int& status);

}  // namespace dualpipe::cli
