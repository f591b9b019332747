#include <algorithm>
#include <cstdint>
#include <numeric>

#include "plugin/analysis/cost_file.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr double kMoments = 2;  // Adam's, each as large as the parameters.

struct FittedStage {
  StageCost cost{0, 0, 0, 0};
  StageBytes bytes;
};

// Adds `share` of a stage of the file.
void add(FittedStage& sum, const CostFileStage& stage, double share) {
  sum.cost.forward += share * stage.cost.forward;
  sum.cost.backward_input += share * stage.cost.backward_input;
  sum.cost.backward_weight += share * stage.cost.backward_weight;
  sum.cost.overlapped += share * stage.cost.overlapped;
  const double parameters = stage.parameter_bytes.value_or(0);
  sum.bytes.parameters += share * parameters;
  sum.bytes.gradients += share * stage.gradient_bytes.value_or(parameters);
  sum.bytes.optimizer += share * stage.optimizer_bytes.value_or(kMoments * parameters);
  sum.bytes.activations += share * stage.activation_bytes.value_or(0);
}

std::vector<FittedStage> fit_stages(const std::vector<CostFileStage>& given, int stages) {
  std::vector<FittedStage> fitted(stages);
  const auto count = static_cast<std::int64_t>(given.size());
  const std::int64_t parts = std::max<std::int64_t>(count, stages);  // One divides the other.
  for (std::int64_t part = 0; part < parts; ++part) {
    add(fitted[part * stages / parts], given[part * count / parts], static_cast<double>(count) / parts);
  }
  return fitted;
}

bool knows_bytes(const std::vector<CostFileStage>& stages) {
  for (const CostFileStage& stage : stages) {
    if (!stage.parameter_bytes || !stage.activation_bytes) {
      return false;
    }
  }
  return true;
}

void check_divides(const CostFile& file, int stages) {
  const int given = static_cast<int>(file.stages.size());
  if (stages >= 1 && (given % stages == 0 || stages % given == 0)) {
    return;
  }
  throw ScheduleError(file.name, "the number of stages must divide the file's " + std::to_string(given) +
                                     " or be a multiple of it, got " + std::to_string(stages) + "; for example " +
                                     std::to_string(std::gcd(given, std::max(stages, 1))) + " or " +
                                     std::to_string((stages / given + 1) * given));
}

}  // namespace

FittedCost fit(const CostFile& file, int stages) {
  check_divides(file, stages);
  FittedCost fitted;
  fitted.cost.latency = file.latency;
  fitted.step_overhead = file.step_overhead;
  for (const FittedStage& stage : fit_stages(file.stages, stages)) {
    fitted.cost.per_stage.push_back(stage.cost);
    fitted.bytes.push_back(stage.bytes);
  }
  if (!knows_bytes(file.stages)) {
    fitted.bytes.clear();
  }
  if (const int given = static_cast<int>(file.stages.size()); stages > given) {
    fitted.note = "each of the " + std::to_string(given) + " stages in " + file.name + " is divided evenly in " +
                  std::to_string(stages / given);
  }
  return fitted;
}

}  // namespace dualpipe
