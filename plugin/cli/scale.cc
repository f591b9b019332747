// Schedules at sizes that nobody runs for a look: step time, bubble and messages, and what planning itself takes.
#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plugin/analysis/simulate.h"
#include "plugin/cli/commands.h"
#include "plugin/cli/summary.h"
#include "plugin/cli/validators.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/lower.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/rules.h"
#include "plugin/schedule/traffic.h"

namespace dualpipe::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ScaleOptions {
  std::vector<std::string> schedules = {"1f1b", "interleaved_1f1b", "zb1p", "dualpipe", "dualpipev"};
  std::vector<int> ranks = {16, 128, 1024};
  std::vector<int> per_rank = {2, 16};
  std::vector<double> latencies = {0.25, 0.5, 1, 2};
  std::string cost = "forward=1,backward_input=1,backward_weight=1,overlapped=2.25";
  std::string format = "table";
};

struct Step {
  double latency = 0;
  double makespan = 0;
  double bubble = 0;
};

struct Seconds {
  double generate = 0;
  double lower = 0;
  double simulate = 0;  // All latencies.
};

struct Result {
  std::string schedule;
  int ranks = 0;
  int num_microbatches = 0;
  std::optional<std::string> refusal;  // The schedule's own rule; then there is nothing below.
  std::size_t messages = 0;
  std::size_t actions = 0;  // Of the lowered programs: compute, communication and reduction.
  Seconds seconds;
  std::vector<Step> steps;
};

template <class Work>
auto timed(double& seconds, Work work) {
  const auto start = std::chrono::steady_clock::now();
  auto result = work();
  seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

// Costs are those of 1/P of the model, of which a stage may be a part.
CostModel cost_of(const Schedule& schedule, const CostModel& base, double latency) {
  const double share = static_cast<double>(schedule.placement.ranks()) / schedule.placement.stages();
  const StageCost& whole = base.uniform;
  CostModel cost;
  cost.uniform = {whole.forward * share, whole.backward_input * share, whole.backward_weight * share,
                  whole.overlapped * share};
  cost.latency = latency * whole.forward;
  return cost;
}

std::size_t count_lowered(const Schedule& schedule) {
  std::size_t actions = 0;
  lower_rows(schedule, {}, [&](const Row& row, const Row&) { actions += row.size(); });
  return actions;
}

void measure(const Schedule& schedule, const ScaleOptions& options, Result& result) {
  result.messages = count_messages(schedule.placement, schedule.num_microbatches);
  result.actions = timed(result.seconds.lower, [&] { return count_lowered(schedule); });
  std::vector<CostModel> costs;
  for (const double latency : options.latencies) {
    costs.push_back(cost_of(schedule, parse_cost(options.cost), latency));
  }
  const auto totals = timed(result.seconds.simulate, [&] { return simulate_totals(schedule, costs); });
  for (std::size_t i = 0; i < totals.size(); ++i) {
    result.steps.push_back({options.latencies[i], totals[i].makespan, 1 - totals[i].utilization()});
  }
}

Result run_case(const std::string& name, int ranks, int num_microbatches, const ScaleOptions& options) {
  Result result{name, ranks, num_microbatches, std::nullopt, 0, 0, {}, {}};
  const ScheduleSpec spec{.pipeline_model_parallel_size = ranks, .num_microbatches = num_microbatches};
  try {
    const Schedule schedule = timed(result.seconds.generate, [&] { return builtin_registry().make(name, spec); });
    measure(schedule, options, result);
  } catch (const ScheduleError& error) {
    result.refusal = error.what();
  }
  return result;
}

Json to_json(const Result& result) {
  Json json{{"schedule", result.schedule},
            {"pipeline_model_parallel_size", result.ranks},
            {"num_microbatches", result.num_microbatches}};
  if (result.refusal) {
    json["refused"] = *result.refusal;
    return json;
  }
  json["messages"] = result.messages;
  json["lowered_actions"] = result.actions;
  json["generate_seconds"] = result.seconds.generate;
  json["lower_seconds"] = result.seconds.lower;
  json["simulate_seconds"] = result.seconds.simulate;
  json["steps"] = Json::array();
  for (const Step& step : result.steps) {
    json["steps"].push_back({{"latency", step.latency}, {"makespan", step.makespan}, {"bubble", step.bubble}});
  }
  return json;
}

std::string headline(const ScaleOptions& options) {
  std::string text = fmt::format("{:>5}{:>7}  {:<17}{:>10}{:>8}{:>8}{:>8} |", "P", "M", "schedule", "messages",
                                 "plan s", "lower s", "sim. s");
  for (const double latency : options.latencies) {
    text += fmt::format("{:>16}", fmt::format("at {}F", number(latency)));
  }
  return text + "\n";
}

std::string to_line(const Result& result) {
  std::string text = fmt::format("{:>5}{:>7}  {:<17}", result.ranks, result.num_microbatches, result.schedule);
  if (result.refusal) {
    return text + *result.refusal + "\n";
  }
  text += fmt::format("{:>10}{:>8.2f}{:>8.2f}{:>8.2f} |", result.messages, result.seconds.generate,
                      result.seconds.lower, result.seconds.simulate);
  for (const Step& step : result.steps) {
    text += fmt::format("{:>9}{:>6.1f}%", fmt::format("{:.7g}", step.makespan), 100 * step.bubble);
  }
  return text + "\n";
}

template <class Visit>
void for_each_case(const ScaleOptions& options, Visit visit) {
  for (const int ranks : options.ranks) {
    for (const int per_rank : options.per_rank) {
      for (const std::string& schedule : options.schedules) {
        visit(run_case(schedule, ranks, ranks * per_rank, options));
      }
    }
  }
}

void print_json(const ScaleOptions& options) {
  Json rows = Json::array();
  for_each_case(options, [&](const Result& result) { rows.push_back(to_json(result)); });
  fmt::print("{}\n", rows.dump(2));
}

void print_table(const ScaleOptions& options) {
  fmt::print(
      "Costs of 1/P of the model: {}.\n"
      "A stage of interleaved_1f1b and dualpipev is half of that. Behind the bar: step time and bubble (mean share of\n"
      "the ranks' time) where a message takes that part of F. plan, lower, sim.: seconds to generate the schedule of\n"
      "all ranks, to lower it to their programs, and to simulate all steps of the line.\n\n{}",
      options.cost, headline(options));
  for_each_case(options, [](const Result& result) {
    fmt::print("{}", to_line(result));
    std::fflush(stdout);  // The largest rows take seconds.
  });
}

void run_scale(const ScaleOptions& options) {
  if (parse_cost(options.cost).latency != 0) {  // A mistake is told before the work is done.
    throw ScheduleError("scale", "latency must stand in --latency, as in --latency 0.5,1, got it in --cost");
  }
  options.format == "json" ? print_json(options) : print_table(options);
}

void add_lists(CLI::App& command, ScaleOptions& options) {
  command.add_option("--schedules", options.schedules, "Names (see dualpipe schedules), with commas")
      ->check(CLI::IsMember(builtin_registry().names()))
      ->delimiter(',')
      ->capture_default_str();
  command
      .add_option("-P,--pipeline-model-parallel-size,--pipeline-parallel-size", options.ranks,
                  "Ranks of the pipeline, with commas")
      ->check(CLI::Range(1, kMaxStages))
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--microbatches-per-rank", options.per_rank, "M as a multiple of P, with commas")
      ->check(CLI::Range(1, 4096))
      ->delimiter(',')
      ->capture_default_str();
  command
      .add_option("--latency", options.latencies, "Time of a message between neighbours, as a part of F, with commas")
      ->check(number_of_at_least_0("0.5"))
      ->delimiter(',')
      ->capture_default_str();
}

}  // namespace

void add_scale(CLI::App& app, int&) {
  auto options = std::make_shared<ScaleOptions>();
  CLI::App* command =
      app.add_subcommand("scale", "Step time, bubble and messages of up to 1,024 ranks and 16,384 micro-batches.");
  add_lists(*command, *options);
  command->add_option("--cost", options->cost, "As of dualpipe plan, without latency")->capture_default_str();
  command->add_option("--format", options->format, "table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  command->footer("The whole table takes one to two minutes and 4 GB of memory, nearly all of it for 1,024 ranks.");
  command->callback([options] { run_scale(*options); });
}

}  // namespace dualpipe::cli
