#include "plugin/cli/auto_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "plugin/cli/summary.h"
#include "plugin/schedule/error.h"

namespace dualpipe::cli {
namespace {

// The first option of the search that was given.
std::optional<std::string> given_option(const AutoOptions& options) {
  if (options.placement) return "--placement";
  if (options.max_activations) return "--max-activations";
  if (options.memory_limit_gb) return "--memory-limit-gb";
  if (options.evaluations) return "--search-evaluations";
  if (options.time_budget) return "--time-budget";
  return std::nullopt;
}

// A line on standard error that is drawn again and again, and gone in the end.
class ProgressLine {
 public:
  explicit ProgressLine(std::string unit) : unit_(std::move(unit)), shows_(isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() {
    if (shows_) fmt::print(stderr, "\r\033[K");
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void draw(const SearchProgress& progress) const {
    if (!shows_) return;
    fmt::print(stderr, "\r\033[Ksearching, {:.0f} %: makespan {}{}", 100 * progress.done, number(progress.makespan),
               unit_);
    std::fflush(stderr);
  }

 private:
  std::string unit_;
  bool shows_;
};

void take_costs(const CostSource& costs, AutoRequest& request) {
  if (!costs.file()) {
    request.cost = costs.for_stages(1).cost;
    return;
  }
  const FittedCost fitted = costs.for_stages(static_cast<int>(costs.file()->stages.size()));
  request.cost = fitted.cost;
  request.bytes = fitted.bytes;
}

void require_bytes(const CostSource& costs) {
  if (!costs.file()) return;
  if (const std::optional<std::string> missing = missing_bytes(*costs.file())) {
    throw ScheduleError(costs.file()->name, fmt::format("{} must be given with --memory-limit-gb, got nothing; "
                                                        "--max-activations needs no bytes",
                                                        *missing));
  }
}

AutoRequest make_request(const std::string& command, const ScheduleOptions& source, const CostSource& costs,
                         const AutoOptions& options) {
  const ScheduleSpec spec = required_spec(command, source);
  AutoRequest request;
  request.pipeline_model_parallel_size = spec.pipeline_model_parallel_size;
  request.num_microbatches = spec.num_microbatches;
  request.virtual_pipeline_model_parallel_size = spec.virtual_pipeline_model_parallel_size;
  if (options.placement) request.placements = {parse_placement_kind("--placement", *options.placement)};
  request.max_activations = options.max_activations;
  request.memory_limit_gb = options.memory_limit_gb;
  request.evaluations = options.evaluations;
  request.time_budget_s = options.time_budget.value_or(request.time_budget_s);
  if (request.memory_limit_gb) require_bytes(costs);
  take_costs(costs, request);
  return request;
}

}  // namespace

void add_auto_options(CLI::App& command, AutoOptions& options) {
  const std::string group = "With --schedule auto";
  command
      .add_option("--placement", options.placement,
                  "loop, v or bidirectional; by default each that suits P and M, and costs are those of a stage where "
                  "the model is cut into P")
      ->group(group);
  command
      .add_option(
          "--max-activations", options.max_activations,
          "Most live micro-batches per rank, each in 1/P of the model (1/2P with --placement v), whatever the costs "
          "are of; by default, and without a memory limit, what the named schedules of the placement hold")
      ->group(group);
  command
      .add_option(
          "--memory-limit-gb", options.memory_limit_gb,
          "Most parameters, gradients, optimizer state and activations per rank, in 10^9 bytes; needs the bytes "
          "of a cost file")
      ->group(group);
  CLI::Option* evaluations =
      command.add_option("--search-evaluations", options.evaluations, "How many orders to look at")->group(group);
  command
      .add_option("--time-budget", options.time_budget,
                  "How many orders to look at, as seconds of two cores; the same budget gives the same order "
                  "everywhere. Default 20")
      ->group(group)
      ->excludes(evaluations);
}

void refuse_auto_options(const std::string& command, const ScheduleOptions& source, const AutoOptions& options) {
  const std::optional<std::string> given = given_option(options);
  if (given && !is_auto(source)) {
    throw ScheduleError(command,
                        fmt::format("{} needs --schedule auto, which searches, got {}", *given,
                                    source.schedule.empty() ? "no --schedule"
                                                            : "--schedule " + source.schedule + ", which is as it is"));
  }
}

AutoChoice choose(const std::string& command, const ScheduleOptions& source, const CostSource& costs,
                  const AutoOptions& options) {
  AutoRequest request = make_request(command, source, costs, options);
  const ProgressLine line(costs.unit().empty() ? "" : " " + costs.unit());
  request.on_progress = [&line](const SearchProgress& progress) { line.draw(progress); };
  return choose_schedule(request);
}

std::string add_to_json(const std::string& plan, const AutoChoice& choice) {
  auto json = nlohmann::ordered_json::parse(plan);
  json["placement"] = to_string(choice.placement);
  json["best_named"] = nullptr;
  json["best_named_makespan"] = nullptr;
  if (choice.best_named) {
    json["best_named"] = choice.best_named->schedule;
    json["best_named_makespan"] = choice.best_named->makespan;
  }
  json["bound"] = choice.bound;
  json["evaluations"] = choice.evaluations;
  json["reason"] = choice.reason;
  return json.dump(2);
}

}  // namespace dualpipe::cli
