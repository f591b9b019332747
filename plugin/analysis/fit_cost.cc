#include <algorithm>
#include <numeric>

#include "plugin/analysis/cost_file.h"
#include "plugin/analysis/divide_stages.h"
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
  analysis::for_each_share(static_cast<int>(given.size()), stages,
                           [&](int to, int from, double share) { add(fitted[to], given[from], share); });
  return fitted;
}

void check_divides(const CostFile& file, int stages) {
  const int given = static_cast<int>(file.stages.size());
  if (analysis::can_divide(given, stages)) return;
  throw ScheduleError(file.name, "the number of stages must divide the file's " + std::to_string(given) +
                                     " or be a multiple of it, got " + std::to_string(stages) + "; for example " +
                                     std::to_string(std::gcd(given, std::max(stages, 1))) + " or " +
                                     std::to_string((stages / given + 1) * given));
}

}  // namespace

std::optional<std::string> missing_bytes(const CostFile& file) {
  for (std::size_t stage = 0; stage < file.stages.size(); ++stage) {
    const std::string path = "stages[" + std::to_string(stage) + "].";
    if (!file.stages[stage].parameter_bytes) return path + "parameter_bytes";
    if (!file.stages[stage].activation_bytes) return path + "activation_bytes";
  }
  return std::nullopt;
}

FittedCost fit(const CostFile& file, int stages) {
  check_divides(file, stages);
  FittedCost fitted;
  fitted.cost.latency = file.latency;
  fitted.step_overhead = file.step_overhead;
  for (const FittedStage& stage : fit_stages(file.stages, stages)) {
    fitted.cost.per_stage.push_back(stage.cost);
    fitted.bytes.push_back(stage.bytes);
  }
  if (missing_bytes(file)) fitted.bytes.clear();
  if (const int given = static_cast<int>(file.stages.size()); stages > given) {
    fitted.note = "each of the " + std::to_string(given) + " stages in " + file.name + " is divided evenly in " +
                  std::to_string(stages / given);
  }
  return fitted;
}

}  // namespace dualpipe
