#include "plugin/cli/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "plugin/analysis/memory_json.h"
#include "plugin/analysis/simulate.h"
#include "plugin/cli/summary.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/registry.h"

namespace dualpipe::cli {
namespace {

PlanRow plan_one(const std::string& name, const ScheduleSpec& spec, const CostSource& costs) {
  const Schedule schedule = builtin_registry().make(name, spec);
  const FittedCost fitted = costs.for_stages(schedule.placement.stages(), spec.pipeline_model_parallel_size);
  const Totals totals = simulate_totals(schedule, {fitted.cost}).front();
  PlanRow row;
  row.schedule = name;
  row.stages = schedule.placement.stages();
  row.iteration = totals.makespan + fitted.step_overhead;
  row.utilization = totals.utilization();
  row.parameter_copies = schedule.placement.is_bidirectional() ? 2 : 1;
  row.peak_activations = peak_activations(schedule);
  if (!fitted.bytes.empty()) {
    row.memory = memory_of(schedule, fitted.bytes);
  }
  row.note = fitted.note;
  return row;
}

PlanRow plan_or_refusal(const std::string& name, const ScheduleSpec& spec, const CostSource& costs) {
  try {
    return plan_one(name, spec, costs);
  } catch (const ScheduleError& error) {
    PlanRow row;
    row.schedule = name;
    row.refusal = error.what();
    return row;
  }
}

constexpr const char* kColumns = "{:<18}{:>7}{:>14}{:>9}{:>12}{:>13}{:>13}{:>10}\n";

const RankMemory& fullest(const PlanRow& row) {
  return *std::max_element(row.memory.begin(), row.memory.end(),
                           [](const RankMemory& a, const RankMemory& b) { return a.total() < b.total(); });
}

// Of its fullest rank.
std::vector<std::string> memory_cells(const PlanRow& row) {
  if (row.memory.empty()) {
    const int most = *std::max_element(row.peak_activations.begin(), row.peak_activations.end());
    const int ranks = static_cast<int>(row.peak_activations.size());
    return {"-", number(static_cast<double>(most) * ranks / row.stages), "-"};
  }
  const RankMemory& memory = fullest(row);
  return {byte_text(memory.parameters + memory.gradients + memory.optimizer), byte_text(memory.activations),
          byte_text(memory.total())};
}

std::string line_of(const PlanRow& row) {
  if (row.refusal) {
    return fmt::format("{:<18}{}\n", row.schedule, *row.refusal);
  }
  const std::vector<std::string> memory = memory_cells(row);
  return fmt::format(kColumns, row.schedule, row.stages, number(row.iteration),
                     fmt::format("{:.1f}%", 100 * (1 - row.utilization)), fmt::format("{}x", row.parameter_copies),
                     memory[0], memory[1], memory[2]);
}

// The first row runs, if any does.
std::string words_of(const std::vector<PlanRow>& rows) {
  const PlanRow& first = rows.front();
  if (first.refusal) {
    return "";
  }
  if (!first.memory.empty()) {
    return "bubble: mean idle share of the ranks. Memory is that of the fullest rank; state: parameters, gradients,\n"
           "optimizer.\n";
  }
  return fmt::format(
      "bubble: mean idle share of the ranks. activations: the most micro-batches that a rank holds, each "
      "in 1/{} of\nthe model.\n",
      first.peak_activations.size());
}

std::string notes_of(const std::vector<PlanRow>& rows, const CostSource& costs) {
  std::string doubles;
  std::set<std::string> notes;
  for (const PlanRow& row : rows) {
    if (row.parameter_copies == 2) {
      doubles += (doubles.empty() ? "" : ", ") + row.schedule;
    }
    if (row.note && costs.file()) {
      notes.insert(*row.note);
    }
  }
  std::string text = words_of(rows);
  if (!doubles.empty()) {
    text += doubles + ": every parameter on two ranks.\n";
  }
  for (const std::string& note : notes) {
    text += note + ".\n";
  }
  return text;
}

std::string title_of(const ScheduleSpec& spec, const CostSource& costs) {
  const std::string model =
      costs.file() ? fmt::format("costs of {}", costs.file()->name)
                   : fmt::format("costs of a stage where the model is cut into {}", spec.pipeline_model_parallel_size);
  return fmt::format("{} ranks, {} micro-batches, {}\n\n", spec.pipeline_model_parallel_size, spec.num_microbatches,
                     model);
}

nlohmann::ordered_json to_object(const PlanRow& row) {
  nlohmann::ordered_json json{{"schedule", row.schedule}, {"refusal", nullptr}};
  if (row.refusal) {
    json["refusal"] = *row.refusal;
    return json;
  }
  json["stages"] = row.stages;
  json["iteration"] = row.iteration;
  json["utilization"] = row.utilization;
  json["parameter_copies"] = row.parameter_copies;
  json["peak_activations"] = row.peak_activations;
  json["memory"] = analysis::memory_json(row.memory);
  json["note"] = row.note ? nlohmann::ordered_json(*row.note) : nullptr;
  return json;
}

}  // namespace

std::vector<PlanRow> plan_all(const ScheduleSpec& spec, const CostSource& costs) {
  std::vector<PlanRow> rows;
  for (const std::string& name : builtin_registry().names()) {
    rows.push_back(plan_or_refusal(name, spec, costs));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const PlanRow& a, const PlanRow& b) {
    return a.refusal.has_value() != b.refusal.has_value() ? b.refusal.has_value() : a.iteration < b.iteration;
  });
  return rows;
}

std::string to_table(const std::vector<PlanRow>& rows, const ScheduleSpec& spec, const CostSource& costs) {
  const std::string unit = costs.file() ? "iteration ms" : "iteration";
  std::string text = title_of(spec, costs);
  text += fmt::format(kColumns, "schedule", "stages", unit, "bubble", "parameters", "state", "activations", "memory");
  for (const PlanRow& row : rows) {
    text += line_of(row);
  }
  return text + "\n" + notes_of(rows, costs);
}

std::string to_json(const std::vector<PlanRow>& rows, const ScheduleSpec& spec) {
  nlohmann::ordered_json json{{"pipeline_model_parallel_size", spec.pipeline_model_parallel_size},
                              {"num_microbatches", spec.num_microbatches},
                              {"schedules", nlohmann::ordered_json::array()}};
  for (const PlanRow& row : rows) {
    json["schedules"].push_back(to_object(row));
  }
  return json.dump(2);
}

}  // namespace dualpipe::cli
