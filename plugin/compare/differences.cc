#include "plugin/compare/differences.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace dualpipe::compare {
namespace {

void raise(std::optional<double>& largest, std::optional<double> given, std::optional<double> reference) {
  if (given && reference) largest = std::max(largest.value_or(0), relative_difference(*given, *reference));
}

void add_iteration(ScheduleFigures& figures, const IterationMetrics& given, const IterationMetrics& reference) {
  raise(figures.loss_difference, given.lm_loss, reference.lm_loss);
  raise(figures.grad_norm_difference, given.grad_norm, reference.grad_norm);
}

std::string sentence(const std::string& what, double difference, const std::string& reference, double tolerance,
                     const char* option) {
  return fmt::format("{} differs from {}'s by {:.2e}, more than {} = {:g}", what, reference, difference, option,
                     tolerance);
}

}  // namespace

double relative_difference(double a, double b) {
  if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<double>::infinity();
  return a == b ? 0 : std::abs(a - b) / std::abs(b);
}

void add_differences(ScheduleFigures& figures, const std::vector<RunFiles>& rounds,
                     const std::vector<IterationMetrics>& reference) {
  for (const RunFiles& round : rounds) {
    const IterationMetrics& first = round.iterations.front();
    raise(figures.first_loss_difference, first.lm_loss, reference.front().lm_loss);
    raise(figures.first_grad_norm_difference, first.grad_norm, reference.front().grad_norm);
    for (std::size_t i = 0; i < reference.size(); ++i) add_iteration(figures, round.iterations[i], reference[i]);
  }
}

std::vector<std::string> mismatches_of(const ScheduleFigures& figures, const std::string& reference,
                                       const ComparisonOptions& options) {
  std::vector<std::string> mismatches;
  const auto hold = [&](const std::string& what, const std::optional<double>& difference, double tolerance,
                        const char* option) {
    if (difference && *difference > tolerance)
      mismatches.push_back(sentence(figures.schedule + ": " + what, *difference, reference, tolerance, option));
  };
  hold("the first loss", figures.first_loss_difference, options.tolerance_first, "--tolerance-first");
  hold("the first gradient norm", figures.first_grad_norm_difference, options.tolerance_first, "--tolerance-first");
  hold("the loss curve", figures.loss_difference, options.tolerance_curve, "--tolerance-curve");
  return mismatches;
}

}  // namespace dualpipe::compare
