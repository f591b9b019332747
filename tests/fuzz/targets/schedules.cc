// Schedules in the text form: what parses prints and parses back, and is validated, lowered and simulated.
#include <sstream>

#include "plugin/analysis/simulate.h"
#include "plugin/analysis/validate.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"
#include "tests/fuzz/targets.h"

namespace dualpipe::fuzz {
namespace {

std::string print(const std::vector<Row>& rows) {
  std::ostringstream text;
  print_rows(text, rows);
  return text.str();
}

void use(const Schedule& schedule) {
  const std::vector<Violation> violations = validate(schedule);
  for (const Violation& violation : violations) check(!explain(schedule, violation).empty(), "a violation says why");
  if (!violations.empty()) return;
  check(least_slots(schedule) >= 1, "a sound schedule has its slots");
  const Program program = lower(schedule, {.slots = least_slots(schedule) + 1});
  check(validate(program).empty(), "a sound schedule lowers to a sound program");
  check(simulate(schedule).makespan() >= 0, "a sound schedule ends");
}

}  // namespace

void read_schedule_csv(std::string_view bytes) {
  try {
    const Schedule schedule = parse_schedule(bytes, "fuzz.csv");
    const Schedule again = parse_schedule(print(schedule.rows), "fuzz.csv");
    check(again.rows == schedule.rows && again.placement == schedule.placement, "what is printed parses back");
    use(schedule);
  } catch (const ScheduleError&) {
  }
}

void read_schedule_cell(std::string_view bytes) {
  try {
    check(parse_row(print_row(parse_row(bytes))) == parse_row(bytes), "a row parses back");
    const Action action = parse_action(bytes);
    check(parse_action(to_string(action)) == action, "a cell parses back");
  } catch (const ScheduleError&) {
  }
}

}  // namespace dualpipe::fuzz
