#include "plugin/compare/run_files.h"

#include <cmath>
#include <limits>

#include "plugin/compare/json_line.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

using compare::JsonLine;

constexpr double kLowest = std::numeric_limits<double>::lowest();
constexpr std::int64_t kMostIterations = std::int64_t{1} << 53;

// A training run may diverge; that is a result, not a mistake of the file.
double number_or_nan(const JsonLine& line, const char* key) {
  return line.optional_number(key, kLowest).value_or(std::numeric_limits<double>::quiet_NaN());
}

IterationMetrics read_iteration(const JsonLine& line) {
  IterationMetrics metrics;
  metrics.iteration = line.integer("iteration", 1, kMostIterations);
  metrics.lm_loss = number_or_nan(line, "lm_loss");
  if (line.contains("grad_norm")) metrics.grad_norm = number_or_nan(line, "grad_norm");
  metrics.ms = line.number("ms", 0);
  return metrics;
}

}  // namespace

std::vector<IterationMetrics> read_metrics(const std::filesystem::path& file) {
  std::vector<IterationMetrics> iterations;
  for (const JsonLine& line : compare::read_json_lines(file)) {
    iterations.push_back(read_iteration(line));
    if (iterations.size() > 1 && iterations.back().iteration <= iterations[iterations.size() - 2].iteration)
      line.refuse("\"iteration\" must be above that of the line before = " +
                  std::to_string(iterations[iterations.size() - 2].iteration) + ", got " +
                  std::to_string(iterations.back().iteration));
  }
  return iterations;
}

RunFiles read_run(const std::filesystem::path& folder) {
  return {read_metrics(folder / "metrics.jsonl"), read_timelines(folder)};
}

}  // namespace dualpipe
