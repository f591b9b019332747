// validate() and the explorer (tests/stress/explorer) agree on schedules and programs that were changed at random. The
// k-th case depends on the seed and k alone; --first runs on from there. A disagreement is printed in the text form.
// Prints a JSON row; exits with 1 where one is missed.
#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "plugin/analysis/validate.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"
#include "tests/stress/explorer/explore.h"
#include "tests/stress/mutations/mutate.h"
#include "tests/stress/trials.h"

namespace dualpipe::stress {
namespace {

struct Base {
  const char* name;
  int ranks;
  int num_microbatches;
};

// Small enough that every rank and edge is changed often; dualpipe from 6 and dualpipev from 3 ranks need two slots.
constexpr Base kBases[] = {{"1f1b", 1, 3},
                           {"1f1b", 2, 4},
                           {"1f1b", 4, 8},
                           {"zb1p", 2, 4},
                           {"zb1p", 4, 9},
                           {"interleaved_1f1b", 2, 4},
                           {"interleaved_1f1b", 4, 8},
                           {"dualpipe", 2, 4},
                           {"dualpipe", 4, 8},
                           {"dualpipe", 4, 10},
                           {"dualpipe", 6, 12},
                           {"dualpipe", 8, 16},
                           {"dualpipev", 1, 3},
                           {"dualpipev", 2, 5},
                           {"dualpipev", 3, 6},
                           {"dualpipev", 4, 9}};

Fault fault_of(Violation::Rule rule) {
  switch (rule) {
    case Violation::Rule::kDeadlock:
      return Fault::kDeadlock;
    case Violation::Rule::kSlots:
      return Fault::kSlots;
    case Violation::Rule::kEdgeOrder:
      return Fault::kEdgeOrder;
    case Violation::Rule::kReductionOrder:
      return Fault::kReductionOrder;
    default:
      return Fault::kCells;
  }
}

Faults faults_of(const std::vector<Violation>& violations) {
  Faults faults;
  for (const Violation& violation : violations) {
    faults.insert(fault_of(violation.rule));
  }
  return faults;
}

// What both say of one case, and the rows for a report.
struct Verdicts {
  Faults validator;
  Faults explorer;
  std::string about;
  std::vector<Row> rows;
};

void change(Mutator& mutator, std::vector<Row>& rows, int stages, int num_microbatches) {
  for (std::size_t left = 1 + mutator.below(3); left > 0; --left) {
    mutator.change(rows, stages, num_microbatches);
  }
}

Verdicts try_schedule(Mutator& mutator, Schedule schedule) {
  change(mutator, schedule.rows, schedule.placement.stages(), schedule.num_microbatches);
  return {faults_of(validate(schedule, {.max_violations = 1000000})), explore(schedule), schedule.name,
          std::move(schedule.rows)};
}

Verdicts try_program(Mutator& mutator, const Schedule& schedule) {
  const int slots = 1 + static_cast<int>(mutator.below(3));
  const bool defers = mutator.below(4) == 0;
  Program program = lower(schedule, {.slots = slots, .defer_tail_weight_gradients = defers});
  change(mutator, program.rows, program.placement.stages(), program.num_microbatches);
  const ValidateOptions options{.max_violations = 1000000, .defer_tail_weight_gradients = defers};
  return {faults_of(validate(program, options)), explore(program, defers),
          program.name + " lowered with " + std::to_string(slots) + " slots" + (defers ? ", W deferred" : ""),
          std::move(program.rows)};
}

class Trials {
 public:
  explicit Trials(const TrialOptions& options) : options_(options) {
    for (const Base& base : kBases) {
      sound_.push_back(builtin_registry().make(base.name, {base.ranks, base.num_microbatches, 2}));
    }
  }

  void run() {
    for (std::uint64_t number = options_.first; number < options_.first + options_.count; ++number) {
      Mutator mutator(options_.seed * 0x9E3779B97F4A7C15u + number);
      const Schedule& sound = sound_[mutator.below(sound_.size())];
      note(number, mutator.below(3) == 0 ? try_schedule(mutator, sound) : try_program(mutator, sound));
    }
  }

  ResultRow row() const {
    return {"mutated schedules and programs on which validate() and the explorer agree",
            std::to_string(options_.count) + ", all",
            std::to_string(agreed_) + " of " + std::to_string(options_.count) + " (" + outcomes() + ")",
            std::to_string(options_.seed), agreed_ == options_.count};
  }

 private:
  void note(std::uint64_t number, const Verdicts& verdicts) {
    ++count_[to_string(verdicts.explorer)];
    if (verdicts.validator == verdicts.explorer) {
      ++agreed_;
      return;
    }
    if (++told_ > 5) {
      return;
    }
    std::cerr << "case " << number << ", " << verdicts.about << ": validate() says " << to_string(verdicts.validator)
              << ", the explorer " << to_string(verdicts.explorer) << "\n";
    print_rows(std::cerr, verdicts.rows);
  }

  std::string outcomes() const {
    std::string text;
    for (const auto& [name, count] : count_) {
      text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + name;
    }
    return text;
  }

  TrialOptions options_;
  std::vector<Schedule> sound_;
  std::map<std::string, std::uint64_t> count_;
  std::uint64_t agreed_ = 0;
  int told_ = 0;
};

}  // namespace
}  // namespace dualpipe::stress

int main(int argc, char** argv) {
  using namespace dualpipe::stress;
  return run_trials<Trials>(argc, argv, "validate() against an independent explorer");
}
