#include "plugin/analysis/validate.h"

#include <gmock/gmock.h>

#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"
#include "tests/analysis/slow_reference.h"

namespace dualpipe {
namespace {

std::string print(const Violation& violation) {
  return to_string(violation.rule) + " " + std::to_string(violation.rank) + "/" + std::to_string(violation.column) +
         ": " + violation.message;
}

std::string print(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& violation : violations) {
    text += (text.empty() ? "" : "\n") + print(violation);
  }
  return text;
}

Schedule two_ranks(std::vector<std::string> rows) {
  Schedule schedule{"hand", Placement::loop(2), 2, {}};
  for (const std::string& row : rows) {
    schedule.rows.push_back(parse_row(row));
  }
  return schedule;
}

struct Case {
  std::string name;
  std::vector<std::string> rows;
  std::string violations;
};

TEST(ValidateSchedule, SaysWhatIsWrong) {
  const Case cases[] = {
      {"sound", {"0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"}, ""},
      {"sound with split and pair", {"0F0,0F1,0I0,0W0,0B1", "1F0,(1F1;1B0)OVERLAP_F_B,1I1,1W1"}, ""},
      // Each once, counted.
      {"F missing",
       {"0F0,0F1,0B0,0B1", "1F0,1B0,1B1"},
       "order 1/2: 1B1 needs 1F1 before it\nmissing 1/-1: 1F1 stands nowhere"},
      {"B missing", {"0F0,0F1,0B0", "1F0,1B0,1F1,1B1"}, "missing 0/-1: 0B1 stands nowhere"},
      {"W missing", {"0F0,0F1,0B0,0I1", "1F0,1B0,1F1,1B1"}, "missing 0/-1: 0W1 stands nowhere"},
      {"F repeated", {"0F0,0F1,0B0,0F0,0B1", "1F0,1B0,1F1,1B1"}, "repeated 0/3: 0F0 stands more than once"},
      {"I beside B",
       {"0F0,0F1,0B0,0I0,0B1", "1F0,1B0,1F1,1B1"},
       "repeated 0/3: 0I0 is part of 0B0, which stands before"},
      {"B beside I",
       {"0F0,0F1,0I0,0B0,0B1", "1F0,1B0,1F1,1B1"},
       "repeated 0/3: 0B0 repeats the I or W that stands before\nmissing 0/-1: 0W0 stands nowhere"},
      // Order on one rank.
      {"B before F", {"0F0,0B1,0F1,0B0", "1F0,1B0,1F1,1B1"}, "order 0/1: 0B1 needs 0F1 before it"},
      {"W before I", {"0F0,0F1,0W0,0I0,0B1", "1F0,1B0,1F1,1B1"}, "order 0/2: 0W0 needs 0I0 before it"},
      {"pair with itself",
       {"0F0,0F1,0B0,0B1", "(1F0;1B0)OVERLAP_F_B,1F1,1B1"},
       "order 1/0: 1B0 is overlapped with the F that it needs\nmissing 1/-1: 1F0 stands nowhere\n"
       "missing 1/-1: 1B0 stands nowhere"},
      // Place.
      {"wrong rank",
       {"0F0,0F1,0B0,0B1,1B1", "1F0,1B0,1F1"},
       "wrong rank 0/4: 1B1 belongs to rank 1\nmissing 1/-1: 1B1 stands nowhere"},
      {"no such stage", {"0F0,0F1,0B0,0B1,7F0", "1F0,1B0,1F1,1B1"}, "out of range 0/4: 7F0: stages are 0..1"},
      {"no such micro-batch",
       {"0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1,1F2"},
       "out of range 1/4: 1F2: micro-batches are 0..1"},
      {"communication",
       {"0F0,0SEND_F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"},
       "out of range 0/1: 0SEND_F0 is no compute action: communication is added by lowering"},
      {"rows and ranks", {"0F0,0F1,0B0,0B1"}, "out of range -1/-1: rows must be one per rank = 2, got 1"},
      // Between ranks.
      {"deadlock",
       {"0F0,0B0,0F1,0B1", "1F1,1F0,1B0,1B1"},
       "deadlock 0/1: rank 0 waits at 0B0 for 1B0 of rank 1; rank 1 waits at 1F1 for 0F1 of rank 0"},
  };
  for (const auto& [name, rows, violations] : cases) {
    EXPECT_EQ(print(validate(two_ranks(rows))), violations) << name;
  }
}

TEST(ValidateSchedule, AHandOverInsideARankHasAnOrder) {
  Schedule schedule{"hand", Placement::vee(1), 1, {parse_row("1F0,0F0,0B0,1B0")}};
  EXPECT_EQ(print(validate(schedule)), "order 0/0: 1F0 needs 0F0 before it\norder 0/2: 0B0 needs 1B0 before it");
}

TEST(ValidateSchedule, TheOptimizerStepMayRunW) {
  const Schedule schedule = two_ranks({"0F0,0F1,0B0,0I1", "1F0,1B0,1F1,1I1"});
  EXPECT_EQ(print(validate(schedule, {.defer_tail_weight_gradients = true})), "");
  EXPECT_EQ(print(validate(schedule)), "missing 0/-1: 0W1 stands nowhere\nmissing 1/-1: 1W1 stands nowhere");
}

TEST(ValidateSchedule, StopsAtTheAskedNumber) {
  const Schedule schedule = two_ranks({"", ""});
  EXPECT_EQ(validate(schedule, {.max_violations = 3}).size(), 3u);
  EXPECT_EQ(validate(schedule).size(), 8u);
}

TEST(ValidateSchedule, LongCirclesAreCutShort) {
  Schedule schedule{"hand", Placement::loop(9), 2, {}};
  const std::string first = "0F0,0B0,0F1,0B1";
  schedule.rows.push_back(parse_row(first));
  for (int stage = 1; stage < 9; ++stage) {
    const std::string s = std::to_string(stage);
    schedule.rows.push_back(parse_row(stage == 8 ? "8F1,8F0,8B0,8B1" : s + "F0," + s + "F1," + s + "B0," + s + "B1"));
  }
  EXPECT_EQ(print(validate(schedule)),
            "deadlock 0/1: rank 0 waits at 0B0 for 1B0 of rank 1; rank 1 waits at 1F1 for 0F1 of rank 0");
  std::swap(schedule.rows[0][1], schedule.rows[0][2]);
  EXPECT_EQ(print(validate(schedule)), "");
}

Program lowered(const std::string& name, int ranks, int num_microbatches, int slots = kDefaultSlots) {
  return lower(builtin_registry().make(name, {ranks, num_microbatches, 2}), {.slots = slots});
}

// The column of `cell` in a rank's row.
int column_of(const Program& program, int rank, const std::string& cell) {
  const Row& row = program.rows[rank];
  for (std::size_t column = 0; column < row.size(); ++column) {
    if (to_string(row[column]) == cell) {
      return static_cast<int>(column);
    }
  }
  ADD_FAILURE() << cell << " does not stand on rank " << rank;
  return 0;
}

void erase(Program& program, int rank, const std::string& cell) {
  program.rows[rank].erase(program.rows[rank].begin() + column_of(program, rank, cell));
}

TEST(ValidateProgram, EveryBuiltinScheduleIsSoundAtItsLeastSlots) {
  for (const std::string& name : builtin_registry().names()) {
    for (int ranks = 2; ranks <= 8; ranks += 2) {
      for (int num_microbatches = 2 * ranks; num_microbatches <= 4 * ranks; num_microbatches += 2 * ranks) {
        const Schedule schedule = builtin_registry().make(name, {ranks, num_microbatches, 2});
        const int least = least_slots(schedule);
        for (const int slots : {least, least + 1, 4}) {
          EXPECT_EQ(print(validate(lower(schedule, {.slots = slots}))), "") << name << " " << ranks << " " << slots;
        }
        EXPECT_EQ(print(validate(lower(schedule, {.reduce_grad = false}))), "") << name << " " << ranks;
      }
    }
  }
}

TEST(ValidateProgram, OneSlotDeadlocksDualpipeFromSixRanks) {
  using Rule = Violation::Rule;
  for (int ranks = 2; ranks <= 10; ranks += 2) {
    const Rules rules = rules_of(validate(lowered("dualpipe", ranks, 2 * ranks, 1)));
    EXPECT_EQ(rules, ranks >= 6 ? Rules{Rule::kSlots} : Rules{}) << ranks;
  }
  for (int ranks = 1; ranks <= 5; ++ranks) {
    const Rules rules = rules_of(validate(lowered("dualpipev", ranks, 2 * ranks, 1)));
    EXPECT_EQ(rules, ranks >= 3 ? Rules{Rule::kSlots} : Rules{}) << ranks;
  }
}

TEST(ValidateProgram, LeastSlotsIsTheLeastThatIsSound) {
  for (const auto& [name, ranks] : {std::pair{"dualpipe", 8}, {"dualpipev", 4}, {"1f1b", 4}, {"interleaved_1f1b", 4}}) {
    const Schedule schedule = builtin_registry().make(name, {ranks, 4 * ranks, 2});
    int slots = 1;
    while (!validate(lower(schedule, {.slots = slots})).empty()) {
      ++slots;
    }
    EXPECT_EQ(slots, least_slots(schedule)) << name;
  }
}

TEST(ValidateProgram, FindsWhatIsMissing) {
  Program program = lowered("1f1b", 2, 2);
  erase(program, 0, "0SEND_F1");
  EXPECT_EQ(print(validate(program)),
            "order 0/" + std::to_string(column_of(program, 0, "0WAIT_SEND_F1")) +
                ": 0WAIT_SEND_F1 needs 0SEND_F1 before it\nmissing 0/-1: 0SEND_F1 stands nowhere");
  program = lowered("1f1b", 2, 2);
  erase(program, 1, "1REDUCE_GRAD");
  EXPECT_EQ(print(validate(program)), "missing 1/-1: 1REDUCE_GRAD stands nowhere on rank 1");
}

TEST(ValidateProgram, NamesTheEdgeThatIsPostedInAnotherOrder) {
  Program program = lowered("1f1b", 2, 4);
  Row& row = program.rows[1];
  std::swap(row[column_of(program, 1, "1RECV_F0")], row[column_of(program, 1, "1RECV_F1")]);
  EXPECT_EQ(print(validate(program).front()),
            "edge order 1/0: 1RECV_F1 is receive number 0 of edge 0>1, but its message is sent as number 1");
}

TEST(ValidateProgram, FindsReceivesThatArePostedTooLate) {
  Program program{
      "hand",
      Placement::loop(2),
      1,
      2,
      {parse_row("0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0"), parse_row("1F0,1RECV_F0,1B0,1SEND_B0,1WAIT_SEND_B0")},
      {}};
  EXPECT_EQ(print(validate(program)), "deadlock 1/0: rank 1 waits at 1F0 for a receive that its own row posts later");
}

TEST(ValidateProgram, FindsWaitsThatNobodyEnds) {
  Program program{
      "hand",
      Placement::loop(2),
      1,
      2,
      {parse_row("0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0"), parse_row("1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0")},
      {}};
  EXPECT_EQ(print(validate(program)), "");
  program.rows[0] = parse_row("0F0,0SEND_F0,0WAIT_SEND_F0,0RECV_B0,0B0");
  EXPECT_EQ(print(validate(program)), "");
  program.rows[1] = parse_row("1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0");
  program.rows[0] = parse_row("0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0");
  EXPECT_EQ(print(validate(program)), "order 0/1: 0WAIT_SEND_F0 needs 0SEND_F0 before it");
}

TEST(ValidateProgram, CountsSlots) {
  Program program{"hand",
                  Placement::loop(2),
                  2,
                  1,
                  {parse_row("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0WAIT_SEND_F0,0WAIT_SEND_F1"),
                   parse_row("1RECV_F0,1RECV_F1,1F1,1F0,1B0,1SEND_B0,1B1,1SEND_B1,1WAIT_SEND_B0,1WAIT_SEND_B1")},
                  {}};
  EXPECT_EQ(print(validate(program)),
            "slots 1/2: rank 1 waits at 1F1 for a slot of edge 0>1: each of its 1 holds a message that rank 1 consumes "
            "later");
  program.slots = 2;
  EXPECT_EQ(print(validate(program)), "");
}

TEST(ValidateProgram, APairTakesItsMessagesOneAtATime) {
  Program program = lowered("dualpipe", 2, 4, 1);
  EXPECT_EQ(print(validate(program)), "");
}

TEST(ValidateProgram, MirrorsReduceInOneOrder) {
  Program program = lowered("dualpipe", 4, 8);
  Row& row = program.rows[3];
  const int first = column_of(program, 3, "0REDUCE_GRAD");
  const int second = column_of(program, 3, "3REDUCE_GRAD");
  const Action late = row[std::max(first, second)];
  row.erase(row.begin() + std::min(first, second));
  row.insert(row.end(), first < second ? single(make_op(0, Kind::kReduceGrad)) : single(make_op(3, Kind::kReduceGrad)));
  ASSERT_NE(row.back(), late);
  const std::vector<Violation> violations = validate(program);
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].rule, Violation::Rule::kReductionOrder);
  EXPECT_THAT(violations[0].message, testing::HasSubstr("its mirror, rank 3, reduces"));
}

TEST(ValidateProgram, KnowsDeferredWeightGradients) {
  for (const char* name : {"zb1p", "dualpipe", "dualpipev"}) {
    const Schedule schedule = builtin_registry().make(name, {4, 10, 2});
    Program program = lower(schedule, {.defer_tail_weight_gradients = true});
    EXPECT_EQ(print(validate(program, {.defer_tail_weight_gradients = true})), "") << name;
    EXPECT_EQ(rules_of(validate(program)).count(Violation::Rule::kMissing), 1u) << name;
    program.deferred_weight[0].pop_back();
    EXPECT_EQ(rules_of(validate(program, {.defer_tail_weight_gradients = true})).count(Violation::Rule::kMissing), 1u);
  }
}

TEST(Explain, MarksTheCell) {
  Schedule schedule = builtin_registry().make("1f1b", {4, 6, 2});
  std::swap(schedule.rows[1][1], schedule.rows[1][5]);
  const std::vector<Violation> violations = validate(schedule);
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(explain(schedule, violations[0]),
            "order at rank 1, column 1: 1B1 needs 1F1 before it\n"
            "\n"
            "column     0    1    2    3    4    5    6\n"
            "rank 0     0F0  0F1  0F2  0F3  0B0  0F4  0B1  ..\n"
            "rank 1     1F0 >1B1< 1F2  1B0  1F3  1F1  1F4  ..\n"
            "rank 2     2F0  2F1  2B0  2F2  2B1  2F3  2B2  ..\n"
            "rank 3     3F0  3B0  3F1  3B1  3F2  3B2  3F3  ..\n");
  EXPECT_THAT(explain(schedule, violations[0], true), testing::HasSubstr("\033[1;97;41m>1B1<\033[0m"));
}

TEST(Explain, ShowsTheNeighbourhoodOfAFarCell) {
  Schedule schedule = builtin_registry().make("1f1b", {32, 64, 2});
  schedule.rows[20].push_back(single(make_op(20, Kind::kBackward, 63)));
  const std::string text = explain(schedule, validate(schedule).front());
  EXPECT_THAT(text, testing::StartsWith("repeated at rank 20, column 128: 20B63 stands more than once\n\n"));
  EXPECT_THAT(text, testing::HasSubstr(">20B63<"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2 + 1 + 7);
}

}  // namespace
}  // namespace dualpipe
