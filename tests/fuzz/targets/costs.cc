// Costs, from a file and from the command line.
#include "plugin/analysis/cost_file.h"
#include "plugin/schedule/error.h"
#include "tests/fuzz/targets.h"

namespace dualpipe::fuzz {

void read_cost_file(std::string_view bytes) {
  try {
    const CostFile file = parse_cost_file(bytes, "fuzz.json");
    check(parse_cost_file(to_json(file), "fuzz.json") == file, "a cost file is written as it was read");
    check(!missing_bytes(file) || !missing_bytes(file)->empty(), "what is missing has a name");
    for (int stages = 1; stages <= 8; ++stages) {
      check(fit(file, stages).cost.per_stage.size() == static_cast<std::size_t>(stages), "a cost per stage");
    }
  } catch (const ScheduleError&) {
  }
}

void read_cost_spec(std::string_view bytes) {
  try {
    const CostModel cost = parse_cost(bytes);
    check(cost.uniform.forward >= 0 && cost.latency >= 0, "costs are no less than 0");
  } catch (const ScheduleError&) {
  }
}

}  // namespace dualpipe::fuzz
