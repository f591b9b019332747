#include "plugin/compare/comparison_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include <fmt/format.h>

namespace dualpipe {
namespace {

constexpr const char* kUnknown = "-";

struct Column {
  std::string over;  // The two lines of its head.
  std::string under;
  std::function<std::string(const ScheduleFigures&)> cell;
};

std::string to_ms(double ms) { return fmt::format("{:.{}f}", ms, ms < 100 ? 2 : 1); }

std::string ms_or_unknown(const std::optional<double>& ms) { return ms ? to_ms(*ms) : kUnknown; }

std::string spread(const std::optional<Estimate>& ms) {
  return ms ? fmt::format("{} ({} - {})", to_ms(ms->value), to_ms(ms->low), to_ms(ms->high)) : kUnknown;
}

// With how far it is from what was measured.
std::string predicted(const ScheduleFigures& run) {
  if (!run.predicted_difference) return ms_or_unknown(run.predicted_ms);
  return fmt::format("{} ({:+.1f}%)", to_ms(*run.predicted_ms), 100 * *run.predicted_difference);
}

std::string interval(const std::optional<SpeedUp>& speedup) {
  if (!speedup) return kUnknown;
  if (!speedup->low) return fmt::format("{:.3f}", speedup->value);
  if (speedup->low == speedup->high && speedup->value == 1) return "1";
  return fmt::format("{:.3f} ({:.3f} - {:.3f})", speedup->value, *speedup->low, *speedup->high);
}

std::string share(const std::optional<double>& value) {
  return value ? fmt::format("{:.1f}%", 100 * *value) : kUnknown;
}

std::string bytes(const std::optional<double>& value) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB", "PB"};
  if (!value) return kUnknown;
  std::size_t unit = 0;
  double scaled = *value;
  for (; scaled >= 9999.5 && unit + 1 < kUnits.size(); ++unit) scaled /= 1000;
  return fmt::format("{:.0f} {}", scaled, kUnits[unit]);
}

// Micro-batches times the part of the model that they are in: 5 x 1/4.
std::string peak(const ScheduleFigures& run) {
  return run.peak_activations ? fmt::format("{} x 1/{}", *run.peak_activations, *run.num_stages) : kUnknown;
}

std::string difference(const std::optional<double>& value) {
  if (!value) return kUnknown;
  return *value == 0 ? "0" : fmt::format("{:.1e}", *value);
}

std::string times(const std::optional<double>& count) { return count ? fmt::format("{:g}x", *count) : kUnknown; }

std::string number(const std::optional<int>& count) { return count ? std::to_string(*count) : kUnknown; }

using Run = const ScheduleFigures&;

std::vector<Column> time_columns(bool has_predictions) {
  std::vector<Column> columns = {
      {"", "schedule", [](Run run) { return run.schedule; }},
      {"ms per iteration", "median (quartiles)", [](Run run) { return spread(run.ms); }},
      {"speed-up", "(95% interval)", [](Run run) { return interval(run.speedup); }},
      {"pipeline", "ms", [](Run run) { return ms_or_unknown(run.pipeline_ms); }},
      {"simu-", "lated", [](Run run) { return ms_or_unknown(run.simulated_ms); }},
      {"", "bubble", [](Run run) { return share(run.bubble); }},
      {"exposed", "ms", [](Run run) { return ms_or_unknown(run.exposed_ms); }},
      {"", "busy", [](Run run) { return share(run.utilization); }},
  };
  if (has_predictions) columns.insert(columns.begin() + 2, Column{"predicted ms", "(difference)", predicted});
  return columns;
}

std::vector<Column> memory_columns() {
  return {
      {"", "schedule", [](Run run) { return run.schedule; }},
      {"", "copies", [](Run run) { return times(run.parameter_copies); }},
      {"", "chunks", [](Run run) { return number(run.chunks); }},
      {"", "parameters", [](Run run) { return bytes(run.parameter_bytes); }},
      {"", "optimizer", [](Run run) { return bytes(run.optimizer_bytes); }},
      {"peak", "activations", peak},
      {"", "bytes", [](Run run) { return bytes(run.peak_activation_bytes); }},
      {"largest difference", "of a loss", [](Run run) { return difference(run.loss_difference); }},
      {"", "of a norm", [](Run run) { return difference(run.grad_norm_difference); }},
  };
}

using Lines = std::vector<std::string>;

// The first column to the left, numbers to the right.
void append(Lines& lines, const std::vector<std::string>& cells, bool is_first) {
  std::size_t width = 0;
  for (const std::string& cell : cells) width = std::max(width, cell.size());
  for (std::size_t i = 0; i < lines.size(); ++i)
    lines[i] += is_first ? fmt::format("{:<{}}", cells[i], width) : fmt::format("  {:>{}}", cells[i], width);
}

std::string grid(const Comparison& comparison, const std::vector<Column>& columns) {
  Lines lines(2 + comparison.runs.size());
  bool is_first = true;
  for (const Column& column : columns) {
    std::vector<std::string> cells = {column.over, column.under};
    for (const ScheduleFigures& run : comparison.runs)
      cells.push_back(run.failure && !is_first ? std::string(kUnknown) : column.cell(run));
    append(lines, cells, is_first);
    is_first = false;
  }
  std::string text;
  for (const std::string& line : lines) text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  return text;
}

constexpr const char* kLegend =
    "speed-up: of the medians of a round, geometric mean of the rounds that both have; its interval is of the rounds.\n"
    "pipeline, bubble, exposed, busy: medians of the recorded steps, from a pipeline's first action to its last. "
    "bubble is\n"
    "the ranks' time without an action, exposed the part of actions that waited for an exchange, busy the rest. "
    "simulated:\n"
    "the same order with the costs of these steps. copies: ranks of a pipeline that hold a stage; chunks: stages of a "
    "rank.\n"
    "Bytes and activations are those of the rank that has most; 3 x 1/4 is three micro-batches in a quarter of the "
    "model.\n";

std::string legend(const std::optional<CostFile>& cost) {
  if (!cost) return kLegend;
  return fmt::format(
      "predicted: an iteration by the costs of {}, as dualpipe plan gives it, and how far that is from the "
      "median.\n{}",
      cost->name, kLegend);
}

std::string figures(const Comparison& comparison) {
  std::string text = fmt::format("{} iterations, {} {}, warm-up {} left out; baseline {}\n\n", comparison.iterations,
                                 comparison.rounds, comparison.rounds == 1 ? "round" : "rounds",
                                 comparison.options.warmup, comparison.options.baseline);
  const std::optional<CostFile>& cost = comparison.options.cost;
  text += grid(comparison, time_columns(cost.has_value())) + "\n" + grid(comparison, memory_columns()) + "\n";
  text += legend(cost);
  for (const std::string& note : comparison.notes) text += note + "\n";
  return text;
}

}  // namespace

std::string to_table(const Comparison& comparison) {
  std::string text =
      comparison.options.title + ": " + (comparison.rounds == 0 ? "no schedule finished\n" : figures(comparison));
  for (const ScheduleFigures& run : comparison.runs) {
    if (run.failure) text += fmt::format("{} {}: {}\n", run.not_run ? "NOT RUN" : "FAILED", run.schedule, *run.failure);
  }
  for (const std::string& mismatch : comparison.mismatches) text += "DIFFERS " + mismatch + "\n";
  return text;
}

}  // namespace dualpipe
