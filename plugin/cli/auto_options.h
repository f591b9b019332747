// plugin/cli/auto_options.h
//
// `--schedule auto`: the options of the search and its call, shared by the commands that plan a schedule.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "plugin/cli/schedule_options.h"
#include "plugin/search/choose_schedule.h"

namespace dualpipe::cli {

struct AutoOptions {
  std::optional<std::string> placement;
  std::optional<int> max_activations;
  std::optional<double> memory_limit_gb;
  std::optional<std::int64_t> evaluations;
  std::optional<double> time_budget;
};

// --placement, --max-activations, --memory-limit-gb, --search-evaluations and --time-budget.
void add_auto_options(CLI::App& command, AutoOptions& options);

inline bool is_auto(const ScheduleOptions& source) { return source.schedule == "auto"; }

// Throws ScheduleError with `command` as the origin where an option of the search stands beside a named schedule.
void refuse_auto_options(const std::string& command, const ScheduleOptions& source, const AutoOptions& options);

// Searches, and shows how far it is where standard error is a terminal. Throws ScheduleError as choose_schedule() does,
// and where a size is missing or a cost file cannot be divided into a placement's stages.
AutoChoice choose(const std::string& command, const ScheduleOptions& source, const CostSource& costs,
                  const AutoOptions& options);

// The keys that a choice adds to the JSON of its plan: placement, best_named, best_named_makespan, bound, evaluations,
// reason.
std::string add_to_json(const std::string& plan, const AutoChoice& choice);

}  // namespace dualpipe::cli
