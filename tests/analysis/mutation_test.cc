// validate() and the slow reference agree on schedules and programs that were changed at random.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <sstream>

#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"
#include "tests/analysis/slow_reference.h"

namespace dualpipe {
namespace {

struct Base {
  std::string name;
  int ranks;
  int num_microbatches;
};

const Base kBases[] = {{"1f1b", 3, 4},      {"1f1b", 1, 2},     {"zb1p", 3, 4},      {"interleaved_1f1b", 2, 4},
                       {"dualpipe", 2, 4},  {"dualpipe", 4, 8}, {"dualpipe", 6, 12}, {"dualpipev", 1, 3},
                       {"dualpipev", 2, 4}, {"dualpipev", 3, 6}};

Schedule make(const Base& base) { return builtin_registry().make(base.name, {base.ranks, base.num_microbatches, 2}); }

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  int below(std::size_t bound) { return std::uniform_int_distribution<int>(0, static_cast<int>(bound) - 1)(random_); }

  // Swap (mostly neighbours), drop, repeat, retarget or put last one cell.
  void change(std::vector<Row>& rows, int stages, int num_microbatches) {
    Row& row = rows[below(rows.size())];
    if (row.size() < 2) {
      return;
    }
    const int cell = below(row.size() - 1);
    switch (below(8)) {
      case 0:
        row.erase(row.begin() + cell);
        break;
      case 1:
        row.insert(row.begin() + below(row.size() + 1), Action(row[cell]));
        break;
      case 2:
        retarget(row[cell], stages, num_microbatches);
        break;
      case 3:
        std::swap(row[cell], row[below(row.size())]);
        break;
      case 4:
        reduce_last(row);
        break;
      default:
        std::swap(row[cell], row[cell + 1]);
    }
  }

 private:
  // Moves the first REDUCE_GRAD of the row to its end.
  static void reduce_last(Row& row) {
    const auto first =
        std::find_if(row.begin(), row.end(), [](const Action& cell) { return cell.op.kind == Kind::kReduceGrad; });
    if (first != row.end()) {
      std::rotate(first, first + 1, row.end());
    }
  }

  void retarget(Action& action, int stages, int num_microbatches) {
    Op& op = action.paired && below(2) == 0 ? *action.paired : action.op;
    if (below(2) == 0) {
      op.stage = static_cast<std::uint16_t>(below(stages + 1));
    } else if (has_micro_batch(op.kind)) {
      op.micro_batch = below(num_microbatches + 1);
    }
  }

  std::mt19937 random_;
};

std::string print(const std::vector<Row>& rows) {
  std::ostringstream out;
  print_rows(out, rows);
  return out.str();
}

bool reduces(const Program& program) {
  return std::any_of(program.rows.begin(), program.rows.end(), [](const Row& row) {
    return std::any_of(row.begin(), row.end(), [](const Action& cell) { return cell.op.kind == Kind::kReduceGrad; });
  });
}

constexpr ValidateOptions kAll{.max_violations = 1000000};

TEST(Mutation, ValidateAgreesWithTheSlowReferenceOnSchedules) {
  Mutator mutator(20250101);
  Rules met;
  for (const Base& base : kBases) {
    const Schedule sound = make(base);
    ASSERT_EQ(slow_validate(sound), Rules{}) << base.name;
    ASSERT_EQ(rules_of(validate(sound)), Rules{}) << base.name;
    for (int round = 0; round < 400; ++round) {
      Schedule schedule = sound;
      for (int change = mutator.below(3); change >= 0; --change) {
        mutator.change(schedule.rows, schedule.placement.stages(), schedule.num_microbatches);
      }
      const Rules rules = rules_of(validate(schedule, kAll));
      ASSERT_EQ(rules, slow_validate(schedule)) << base.name << "\n" << print(schedule.rows);
      met.insert(rules.begin(), rules.end());
    }
  }
  using Rule = Violation::Rule;
  EXPECT_EQ(met, (Rules{Rule::kMissing, Rule::kRepeated, Rule::kOrder, Rule::kWrongRank, Rule::kOutOfRange,
                        Rule::kDeadlock}));
}

TEST(Mutation, ValidateAgreesWithTheSlowReferenceOnPrograms) {
  Mutator mutator(20250102);
  Rules met;
  for (const Base& base : kBases) {
    for (const int slots : {1, 2, 3}) {
      const Program lowered = lower(make(base), {.slots = slots});
      for (int round = 0; round < 150; ++round) {
        Program program = lowered;
        for (int change = round == 0 ? -1 : mutator.below(2); change >= 0; --change) {
          mutator.change(program.rows, program.placement.stages(), program.num_microbatches);
        }
        if (!reduces(program)) {
          continue;  // The only REDUCE_GRAD was dropped: a sound program for a host that reduces by itself.
        }
        const Rules rules = rules_of(validate(program, kAll));
        const Rules expected = slow_validate(program, lowered);
        if (expected == Rules{Violation::Rule::kMissing}) {
          ASSERT_FALSE(rules.empty()) << base.name << " slots " << slots << "\n" << print(program.rows);
        } else {
          ASSERT_EQ(rules, expected) << base.name << " slots " << slots << "\n" << print(program.rows);
        }
        met.insert(expected.begin(), expected.end());
      }
    }
  }
  using Rule = Violation::Rule;
  EXPECT_EQ(met, (Rules{Rule::kMissing, Rule::kDeadlock, Rule::kSlots, Rule::kEdgeOrder, Rule::kReductionOrder}));
}

}  // namespace
}  // namespace dualpipe
