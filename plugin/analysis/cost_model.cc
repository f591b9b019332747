#include "plugin/analysis/cost_model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

constexpr std::string_view kOrigin = "cost";
constexpr std::string_view kExample = "forward=1,backward_input=1,backward_weight=1,overlapped=3,latency=0";

std::vector<std::string> known_keys() {
  return {"forward", "backward_input", "backward_weight", "overlapped", "latency"};
}

double* find(CostModel& cost, std::string_view key) {
  StageCost& stage = cost.uniform;
  const std::pair<std::string_view, double*> fields[] = {{"forward", &stage.forward},
                                                         {"backward_input", &stage.backward_input},
                                                         {"backward_weight", &stage.backward_weight},
                                                         {"overlapped", &stage.overlapped},
                                                         {"latency", &cost.latency}};
  for (const auto& [name, value] : fields) {
    if (name == key) {
      return value;
    }
  }
  return nullptr;
}

[[noreturn]] void refuse_key(const std::string& key) {
  const std::string near = nearest_name(key, known_keys());
  const std::string hint = near.empty() ? "known are forward, backward_input, backward_weight, overlapped, latency"
                                        : "did you mean '" + near + "'?";
  throw ScheduleError(kOrigin, "unknown key '" + key + "': " + hint);
}

double parse_number(const std::string& key, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size() || !std::isfinite(value) || value < 0) {
    throw ScheduleError(kOrigin, key + " must be a finite number of at least 0, such as 1, got '" + text + "'");
  }
  if (value > kMostCost) throw ScheduleError(kOrigin, key + " must be at most 1e15, such as 1, got '" + text + "'");
  return value;
}

bool contains(const std::vector<std::string>& keys, const std::string& key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// Sets one key of `cost` and returns its name.
std::string parse_item(std::string_view item, const std::vector<std::string>& seen, CostModel& cost) {
  const std::size_t equals = item.find('=');
  if (equals == std::string_view::npos) {
    throw ScheduleError(kOrigin,
                        "'" + std::string(item) + "' must be of the form key=number, as in " + std::string(kExample));
  }
  const std::string key(item.substr(0, equals));
  double* value = find(cost, key);
  if (value == nullptr) {
    refuse_key(key);
  }
  if (contains(seen, key)) {
    throw ScheduleError(kOrigin, key + " must be given once, got it twice");
  }
  *value = parse_number(key, std::string(item.substr(equals + 1)));
  return key;
}

}  // namespace

double CostModel::duration(const Action& action) const {
  const StageCost& stage = of(action.op.stage);
  if (action.is_overlap()) {
    return stage.overlapped;
  }
  switch (action.op.kind) {
    case Kind::kForward:
      return stage.forward;
    case Kind::kBackward:
      return stage.backward_input + stage.backward_weight;
    case Kind::kBackwardInput:
      return stage.backward_input;
    case Kind::kBackwardWeight:
      return stage.backward_weight;
    default:
      throw ScheduleError(kOrigin, "only F, B, I and W have a cost, got " + to_string(action));
  }
}

CostModel parse_cost(std::string_view text) {
  CostModel cost;
  std::vector<std::string> seen;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    seen.push_back(parse_item(item, seen, cost));
  }
  if (!contains(seen, "overlapped")) {
    StageCost& stage = cost.uniform;
    stage.overlapped = stage.forward + stage.backward_input + stage.backward_weight;
  }
  return cost;
}

}  // namespace dualpipe
