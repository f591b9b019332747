#include "plugin/cli/cost_source.h"

#include <filesystem>

#include "plugin/schedule/error.h"

namespace dualpipe::cli {
namespace {

bool is_file(const std::string& value) {
  std::error_code none;
  return value.ends_with(".json") || std::filesystem::is_regular_file(value, none);
}

}  // namespace

CostSource::CostSource(const std::optional<std::string>& value) {
  if (value && is_file(*value)) {
    file_ = read_cost_file(*value);
  } else if (value && !value->empty() && value->find('=') == std::string::npos) {
    throw ScheduleError("cost",
                        "must be numbers, such as forward=1,overlapped=3, or a cost file, which ends in .json "
                        "or exists, got '" +
                            *value + "'");
  } else if (value) {
    uniform_ = parse_cost(*value);
  }
}

FittedCost CostSource::for_stages(int stages) const {
  if (file_) {
    return fit(*file_, stages);
  }
  return {.cost = uniform_};
}

FittedCost CostSource::for_stages(int stages, int cut) const {
  if (file_) {
    return fit(*file_, stages);
  }
  CostFile model{"--cost", "", uniform_.latency, 0, {}, {}};
  model.stages.resize(cut);
  for (CostFileStage& stage : model.stages) {
    stage.cost = uniform_.uniform;
  }
  return fit(model, stages);
}

}  // namespace dualpipe::cli
